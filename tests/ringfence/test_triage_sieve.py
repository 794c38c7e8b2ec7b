"""What the sieve lets through must give the records that the parser gives for the whole log."""

import json
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors import kernel, nccl
from collectors.kernel.grammar import FIRST_WORDS, parse_message
from collectors.kernel.host import _BEGINNINGS, _BY_DRIVER
from collectors.nccl.grammar import relevant
from collectors.nccl.stream import NcclStream
from evidence.records import KernelKind, KernelRecord, NcclRecord
from ringfence.logs import Log, LogKind
from ringfence.reading import records, training
from ringfence.sieve import KERNEL, NCCL, candidates

NOW = datetime(2026, 9, 10, 11, 12, 13, tzinfo=UTC)
SHARED = Path(os.environ.get("RINGFENCE_SHARED", Path(__file__).parents[3] / "shared"))
#: The tests of the parsers hold a line of every shape.
PARSER_TESTS = sorted((Path(__file__).parents[1] / "collectors").glob("test_*.py"))


def in_blocks(data: bytes, size: int) -> Iterator[bytes]:
    """Blocks of whole lines of at least ``size`` bytes, but for the last."""
    at = 0
    while at < len(data):
        end = data.find(b"\n", min(at + size, len(data)) - 1) + 1 or len(data)
        yield data[at:end]
        at = end


def log(data: bytes, kind: LogKind, size: int = 1 << 20) -> Log:
    return Log("n1/a.log", "n1", kind, lambda: in_blocks(data, size))


def lines_of(data: bytes) -> list[bytes]:
    return [line for line in re.split(rb"(?<=\n)", data) if line]


def whole_kernel(data: bytes) -> list[KernelRecord]:
    told = kernel.parse_stream(
        lines_of(data), host="n1", now=NOW, file="n1/a.log", coalesce=True, keep_other=False
    )
    return [one for one in told if one.kind is not KernelKind.OTHER]


def sieved_kernel(data: bytes, size: int = 1 << 20) -> list[Any]:
    return [record for _, _, record in records(log(data, LogKind.KERNEL, size), NOW)]


def whole_nccl(data: bytes) -> list[NcclRecord]:
    return list(nccl.parse_stream(lines_of(data), job="job", host="n1", now=NOW, file="n1/a.log"))


def sieved_nccl(data: bytes, size: int = 1 << 20) -> list[Any]:
    """In blocks of ``size`` exactly as they are: `Log.blocks` would join them again."""
    stream = NcclStream(job="job", host="n1", file="n1/a.log")
    return [*training(stream, in_blocks(data, size), NOW), *stream.flush(NOW)]


# --- Every word of the parsers is a word of the sieve. ------------------------------------------


@pytest.mark.parametrize("word", sorted(FIRST_WORDS))
def test_no_first_word_of_a_kernel_message_is_passed_over(word: str) -> None:
    rest = {
        "EDAC": " MC3: 1 UE memory read error on CPU#0 (page:0x7e)",
        "INFO:": " task kworker/7:1:314 blocked for more than 122 seconds.",
        "Memory": " failure: 0x7740c0: recovery action for dirty page: Recovered",
        "NETDEV": " WATCHDOG: eth0 (mlx5_core): transmit queue 0 timed out",
        "Out": " of memory: Killed process 4242 (python) total-vm:9000000kB",
        "infiniband": " mlx5_0: create_qp:3192:(pid 4323): Create QP type 2 failed",
        "traps:": " python3[51807] general protection fault ip:7f3a1c2b5e10 sp:7ffd error:0",
        "oom_reaper:": " reaped process 4242 (python), now anon-rss:0kB",
    }.get(word, " hello")
    message = word + rest
    assert parse_message(message)["kind"] is not KernelKind.OTHER
    block = f"[    1.000000] {message}\n".encode()
    assert KERNEL.starts(b"noise\n" + block) == [6]


@pytest.mark.parametrize("beginning", sorted(_BEGINNINGS))
@pytest.mark.parametrize("driver", [*sorted(_BY_DRIVER), "ixgbe", "nvidia"])
def test_no_line_of_a_pci_device_is_passed_over(driver: str, beginning: str) -> None:
    for device in ("0000:3a:00.0", "10000:e1:00.7:pcie004", "0000:65:00.0 ens15np0"):
        block = f"noise\n[    1.000000] {driver} {device}: {beginning} 5] x\n".encode()
        assert KERNEL.starts(block) == [6]


WORDS = [one for one in relevant.__code__.co_consts if isinstance(one, str)][1:]


@pytest.mark.parametrize("word", [one for one in WORDS if relevant(f"a {one}b")])
def test_no_word_that_makes_a_training_log_line_relevant_is_passed_over(word: str) -> None:
    assert NCCL.starts(f"noise\na {word}b\n".encode()) == [6]


@pytest.mark.parametrize("word", [one for one in WORDS if not relevant(f"a {one}b")])
def test_no_two_words_that_make_it_relevant_together_are_passed_over(word: str) -> None:
    told = [f"a {one}{word}{other}b" for other in WORDS for one in ("", other)]
    lines = [line for line in told if relevant(line) and not any(map(relevant, _halves(line)))]
    for line in lines:
        assert NCCL.starts(f"noise\n{line}\n".encode()) == [6], line


def _halves(line: str) -> list[str]:
    """The line without its relevant words that need no other: those have their own test."""
    return [one for one in WORDS if one in line]


def test_the_words_of_a_training_log_are_those_of_its_parser() -> None:
    assert {"rror", "ProcessGroup", "SIGKILL", "NCCL ", "raining "} <= set(WORDS)


# --- Whole logs. --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 700, 1 << 20])
@pytest.mark.parametrize("file", PARSER_TESTS, ids=lambda file: file.stem)
def test_the_lines_of_the_parsers_tests_give_the_same_records(file: Path, size: int) -> None:
    text = file.read_text(encoding="utf-8")
    # As they stand, and each string on its own line, with escapes as in a log.
    strings = "\n".join(re.findall(r'"((?:[^"\\\n]|\\.)+)"', text))
    for data in (text.encode(), strings.encode(), strings.encode()[:-1] + b"\xff"):
        assert sieved_kernel(data, size) == whole_kernel(data)
        assert sieved_nccl(data, size) == whole_nccl(data)


def shared_logs() -> list[Path]:
    places = ("cases/nccl/*/log.txt", "cases/torch-runs/*.log", "data/kmsg/*.log")
    return [path for place in places for path in sorted(SHARED.glob(place))]


def test_the_shared_logs_give_the_same_records() -> None:
    found = shared_logs()
    if not found:
        pytest.skip(f"no shared logs in {SHARED} (RINGFENCE_SHARED names another folder)")
    for path in found:
        data = path.read_bytes()
        for size in (1, 4096):
            assert sieved_kernel(data, size) == whole_kernel(data), path
            assert sieved_nccl(data, size) == whole_nccl(data), path


PIECES = [
    b"[Thu Sep 10 09:30:01 2026] NVRM: Xid (PCI:0000:3a:00): 79, GPU has fallen off the bus.",
    b"[  811.120031] nvidia-nvswitch2: SXid (PCI:0000:87:00.0): 20034, Fatal, Link 41 LTSSM Fault",
    b"[  811.120032] nvidia-nvswitch2: SXid (PCI:0000:87:00.0): 20034, Severity 1 Engine instance",
    b"[  811.120033] nvidia-nvswitch2: SXid (PCI:0000:87:00.0): 20034, Data {0x1, 0x2, 0x3}",
    b"[  812.000000] NVRM: The NVIDIA GPU 0000:b3:00.0",
    b"[  812.000001] NVRM: (PCI ID: 10de:26b5) installed in this system has",
    b"[  812.000002] NVRM: fallen off the bus and is not responding to commands.",
    b"[Feb 27 2025 15:10:02] [ERROR] [tid 12727] detected NVSwitch non-fatal error 12028 on fid 0",
    b"Sep 10 09:00:00 n7 kernel: pcieport 0000:00:03.0:    [ 5] Surprise Down Error    (First)",
    b"[  813.000000] usb 1-1: new high-speed USB device number 2 using xhci_hcd",
    b"iteration 12/100 | lm loss: 2.25 | grad norm: 0.16",
    b"Traceback (most recent call last):",
    b'  File "train.py", line 7, in <module>',
    b"StopIteration",
    b"[rank3]:[E910 09:40:03.000000001 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught "
    b"collective operation timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE, NumelIn=6, NumelOut=6, "
    b"Timeout(ms)=600000) ran for 600020 milliseconds before timing out.",
    b"[rank3]:[E910 09:40:03.000000002 ProcessGroupNCCL.cpp:2168] [PG ID 0 PG GUID 0(default_pg) "
    b"Rank 3]  failure detected by watchdog at work sequence id: 41 PG status: last enqueued "
    b"work: 41, last completed work: 40",
    b"n3:811:902 [3] NCCL INFO Channel 00/0 : 3[3] -> 4[4] via P2P/CUMEM",
    b"n3:811:902 [3] NCCL INFO Bootstrap : Using eth0:10.3.0.7<0>",
    b"Root Cause (first observed failure):",
    b"[0]:",
    b"  rank      : 7 (local_rank: 7)",
    b"  exitcode  : -9 (pid: 3437)",
    b"============================================================",
    b"10%|#\r20%|##\rRuntimeError: CUDA error: uncorrectable ECC error encountered",
    b"\xff\xfe\x00 no text",
    b"",
    b"x" * 70_000,
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(PIECES), max_size=60),
    st.integers(1, 5000),
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
)
def test_any_mix_of_lines_in_any_blocks_gives_the_same_records(
    pieces: list[bytes],
    size: int,
    end: bytes,
    ended: bool,
) -> None:
    data = end.join(pieces) + (end if ended else b"")
    assert sieved_kernel(data, size) == whole_kernel(data)
    assert sieved_nccl(data, size) == whole_nccl(data)


def test_a_candidate_keeps_its_place_in_the_file() -> None:
    lines = [b"noise %d\n" % number for number in range(1000)]
    lines[400] = b"NVRM: here\n"
    data = b"".join(lines)
    for size in (1, 999, 1 << 20):
        ((one,),) = candidates(in_blocks(data, size), KERNEL)
        assert (one.number, one.data, one.cut) == (401, b"NVRM: here", False)
        assert data[one.offset :].startswith(one.data)


def test_a_storm_is_parsed_line_by_line() -> None:
    storm = b"NVRM: Xid\n" * 10_000
    assert KERNEL.starts(storm) is None
    assert [len(one) for one in candidates([storm], KERNEL)] == [10_000]


def test_a_journal_in_json_is_parsed_line_by_line() -> None:
    entry = {"MESSAGE": "NVRM: Xid (PCI:0000:3a:00): 79, GPU has fallen off the bus."}
    data = json.dumps(entry | {"_HOSTNAME": "n9", "_TRANSPORT": "kernel"}).encode() + b"\n"
    assert KERNEL.starts(data) is None
    assert sieved_kernel(data) == whole_kernel(data) != []
