"""Pickles made by the real picklers, and pickles made to do harm."""

import builtins
import contextlib
import os
import pickle
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from collectors.nccl.flight_recorder_pickle import (
    CONTAINERS_MAX,
    MEMO_MAX,
    OPCODES_MAX,
    PickleError,
    TruncatedError,
    load,
)

sys.path.insert(0, str(Path(__file__).parent))
from flight_dumps import dump, entry, to_pickle

ROOT = Path(__file__).parents[2]
PLAIN = {
    "text": "ä \U0001f600",
    "numbers": [0, 255, 256, 65536, -1, -(2**31), 2**62, -(2**62)],
    "float": 0.25,
    "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
    "none": None,
    "booleans": [True, False],
    "nested": {"a": [{"b": [[1, 2], []]}]},
    7: "a number as a key",
}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_data_of_the_standard_pickler_is_read(protocol: int) -> None:
    shared = ["shared"]
    content = PLAIN | {"twice": [shared, shared]}
    assert load(pickle.dumps(content, protocol)) == content


def test_what_torchs_pickler_writes_is_read_as_the_standard_unpickler_reads_it() -> None:
    content = to_pickle(dump([entry(n, n) for n in range(400)]))
    assert load(content) == pickle.loads(content)


class _Harm:
    def __init__(self, call: Any, *arguments: Any) -> None:
        self._call, self._arguments = call, arguments

    def __reduce__(self) -> Any:
        return self._call, self._arguments


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: {"entries": [one]}])
def test_a_pickle_that_calls_something_does_nothing(
    protocol: int, wrap: Any, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    for harm in (
        _Harm(os.system, f"touch {trace}"),
        _Harm(builtins.eval, f"open({str(trace)!r}, 'w')"),
        _Harm(Path.touch, trace),
    ):
        with pytest.raises(PickleError, match=r"refused|no opcode"):
            load(pickle.dumps(wrap(harm), protocol))
        assert not trace.exists()


@pytest.mark.parametrize(
    ("name", "opcodes"),
    [
        ("GLOBAL", b"cos\nsystem\n."),
        ("STACK_GLOBAL", b"\x8c\x02os\x8c\x06system\x93."),
        ("INST", b"(ios\nsystem\n."),
        ("OBJ", b"(cos\nsystem\no."),
        ("NEWOBJ", b"))\x81."),
        ("NEWOBJ_EX", b"))}\x92."),
        ("REDUCE", b"))R."),
        ("BUILD", b"}}b."),
        ("PERSID", b"Pwhatever\n."),
        ("BINPERSID", b")Q."),
        ("EXT1", b"\x82\x01."),
        ("EXT2", b"\x83\x01\x00."),
        ("EXT4", b"\x84\x01\x00\x00\x00."),
    ],
)
def test_an_opcode_that_makes_objects_is_refused_by_name(name: str, opcodes: bytes) -> None:
    with pytest.raises(PickleError, match=r"^the pickle asks") as raised:
        load(b"\x80\x02" + opcodes)
    assert "refused" in str(raised.value)
    assert (name in str(raised.value)) or (name == "OBJ" and "GLOBAL" in str(raised.value))


def peak(content: bytes) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(PickleError):
            load(content)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_huge_memo_number_costs_no_memory() -> None:
    assert peak(b"\x80\x02]" + b"r" + struct.pack("<I", 2**32 - 1) + b"0.") < 1_000_000


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02X" + struct.pack("<I", 2**32 - 1) + b"short",
        b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"short",
        b"\x80\x04\x95" + struct.pack("<Q", 2**63 - 1) + b"]",
    ],
)
def test_a_length_beyond_the_file_costs_no_memory(content: bytes) -> None:
    assert peak(content) < 1_000_000


def test_a_flood_of_empty_containers_is_stopped() -> None:
    with pytest.raises(PickleError, match="more than 400000 containers"):
        load(b"\x80\x02(" + b"}" * (CONTAINERS_MAX + 1) + b"t.")


def test_a_flood_of_numbers_is_stopped() -> None:
    with pytest.raises(PickleError, match="more than 2000000 opcodes"):
        load(b"\x80\x02(" + b"N" * OPCODES_MAX + b"t.")


def test_a_flood_of_remembered_values_is_stopped() -> None:
    with pytest.raises(PickleError, match="remembers more than 400000 values"):
        load(b"\x80\x04N" + b"\x94" * (MEMO_MAX + 1) + b".")
    assert load(b"\x80\x04N" + b"\x94" * MEMO_MAX + b".") is None


_PEAK = """
import resource, sys
from pathlib import Path
from collectors.nccl.flight_recorder import MAX_BYTES, read_file
from datetime import UTC, datetime
head, many, tail = (bytes.fromhex(one) for one in sys.argv[2:])
path = Path(sys.argv[1])
path.write_bytes(head)
with path.open("ab") as out:
    for _ in range(64):
        out.write(many * (MAX_BYTES // 65 // len(many)))
    out.write(tail)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
read_file(path, job="j", host="h", now=datetime.now(UTC))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize(
    ("head", "many", "tail"),
    [
        (b"\x80\x04](", b"\x8c\x02ab", b"e."),
        (b"\x80\x04](", b"J\xff\xff\xff\x7f", b"e."),
        (b"\x80\x04](", b"G\0\0\0\0\0\0\0\0", b"e."),
        (b"\x80\x04](", b"}\x94", b"e."),
        (b'{"entries":[', b'"ab",', b"0]}"),
        (b'{"entries":[', b"{},", b"0]}"),
    ],
)
def test_the_worst_dump_there_can_be_leaves_the_agent_its_memory(
    head: bytes, many: bytes, tail: bytes, tmp_path: Path
) -> None:
    argv = [sys.executable, "-c", _PEAK, str(tmp_path / "dump")]
    argv += [part.hex() for part in (head, many, tail)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    # The unit has 200 MB, and the agent takes 50 of it.
    assert int(done.stdout) < 150


def test_a_big_number_is_refused_before_it_is_made() -> None:
    with pytest.raises(PickleError, match="whole number of 255 bytes"):
        load(b"\x80\x02\x8a\xff" + b"\xff" * 255 + b".")
    with pytest.raises(PickleError, match="no opcode"):
        load(b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b".")


def test_nesting_without_end_harms_nobody() -> None:
    with pytest.raises(PickleError, match="nests deeper"):
        load(b"\x80\x02" + b"]" + b"(]" * 100_000 + b"e" * 100_000 + b".")
    # A tuple in a tuple needs no mark; as a key it would be hashed to its bottom.
    deep = b")" + b"\x85" * 300_000
    assert load(b"\x80\x02" + deep + b".") != ()
    with pytest.raises(PickleError, match="broken"):
        load(b"\x80\x02}" + deep + b"Ns.")


def test_a_list_that_holds_itself_is_only_a_list() -> None:
    found = load(b"\x80\x02]q\x00h\x00a.")
    assert found[0] is found


@pytest.mark.parametrize("content", [b"", b"\x80", b"\x80\x02", b"\x80\x02}(X\x05\x00\x00\x00ver"])
def test_a_pickle_without_its_end_says_so(content: bytes) -> None:
    with pytest.raises(TruncatedError, match="ends after"):
        load(content)


def test_every_prefix_of_a_dump_is_told_from_a_broken_one() -> None:
    content = to_pickle(dump([entry(1, 1), entry(2, 2, state="started")]))
    for size in range(len(content) - 1):
        with pytest.raises(TruncatedError):
            load(content[:size])


def test_no_damage_of_a_dump_raises_anything_else() -> None:
    content = bytearray(to_pickle(dump([entry(1, 1), entry(2, 2, state="started")])))
    for at in range(len(content)):
        for flip in (0x01, 0x80, 0xFF):
            content[at] ^= flip
            with contextlib.suppress(PickleError):
                load(bytes(content))
            content[at] ^= flip


@pytest.mark.parametrize("content", [b"\x80\x02.", b"\x80\x02e.", b"\x80\x02h\x05.", b"\x80\x09N."])
def test_a_broken_pickle_is_one_sentence(content: bytes) -> None:
    with pytest.raises(PickleError, match=r"broken at byte|protocol 9"):
        load(content)
