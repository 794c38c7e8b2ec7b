"""Bad input through files, topics and the command line: said clearly, and nothing else is lost."""

import gzip
import json
import random
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer

from evidence.decisions import AckStatus, Cause, Status, Verdict
from evidence.records import (
    GpuFrame,
    GpuSnapshot,
    GpuTick,
    KernelKind,
    KernelRecord,
    NcclKind,
    NcclRecord,
)
from evidence.topics import CLUSTER_KEY, TOPICS
from evidence.transport import Kafka
from evidence.wire import encode

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

CHANCE = random.Random()
HOST = f"hgx-{CHANCE.randrange(1000, 9999)}"
PCI = f"0000:{CHANCE.randrange(16, 255):02x}:00"
OTHER_PCI = "0000:0e:00"
TEN_MB = 10 * 1024 * 1024
NOISE = bytes(CHANCE.randrange(256) for _ in range(4096))

LOST = f"NVRM: Xid (PCI:{PCI}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def stamp(text: str) -> bytes:
    """A line of the kernel log, written now."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S,%f}+00:00 {text}\n".encode()


# One line each; the last is an Xid whose process is named in no encoding, and is one.
ODD_NAME = stamp(f"NVRM: Xid (PCI:{OTHER_PCI}): 31, pid=4711, name=NAME, Ch 00000010").replace(
    b"NAME", b"tr\xe4in\xff"
)
BAD_KERNEL = [
    NOISE.replace(b"\n", b" ") + b"\n",
    b"\x00" * 2000 + b"\n",
    b"NVRM: Xid (PCI:\n",
    b"NVRM: Xid (PCI:zzzz:00:00): 79, not an address\n",
    b"NVRM: Xid (PCI:0000:0d:00): 99999999999999999999, no such code\n",
    b'{"schema":"kernel/9","at":"tomorrow"}\n',
    stamp("NVRM: Xid (PCI:0000:0d:00): 13, ")[:-1] + b"x" * TEN_MB + b"\n",
    b"\xff\xfe\xfa caf\xe9 " * 40 + b"\n",
    ODD_NAME,
]
RANK_OUT_OF_MEMORY = (
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.62 GiB. GPU 3 has a "
    "total capacity of 79.11 GiB of which 604.06 MiB is free.\n"
)
BAD_NCCL = [
    NOISE.replace(b"\n", b" ") + b"\n",
    b"[rank3]:[E1201 99:99:99.000 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught\n",
    b"x" * TEN_MB + b"\n",
    b"node:1:2 [0] NCCL INFO comm 0x rank nranks \xff\xfe busId - Init COMPLETE\n",
    b'{"schema":"nccl/9"}\n',
]
BAD_TICKS = [
    NOISE.replace(b"\n", b" ") + b"\n",
    b'{"at":"2026-13-45","gpus":[]}\n',
    b'{"at":"2026-01-05T00:00:00Z","gpus":[{"index":"first"}]}\n',
    b"[" * 100_000 + b"\n",
    b"{" + b" " * TEN_MB + b"}\n",
]


def write(path: Path, *pieces: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        for piece in pieces:
            file.write(piece)


def judged(here: Any) -> list[Verdict]:
    """Verdicts that the card of the good line is lost."""
    return [
        one
        for one in here.records("verdicts")
        if isinstance(one, Verdict)
        and (one.domain.host, one.domain.pci, one.cause) == (HOST, PCI, Cause.GPU_LOST)
    ]


def test_what_an_agent_reads_may_be_anything_and_the_good_line_behind_it_is_judged(
    kafka: Kafka, installed: Any, tmp_path: Path
) -> None:
    here = installed(kafka)
    logs = tmp_path / "node"
    kernel, ticks = logs / "kern.log", logs / "gpu.ndjson"
    write(kernel, *BAD_KERNEL, stamp(LOST)[:40])  # the good line is half written
    write(logs / "cut.log", gzip.compress(stamp(LOST) * 50)[:90])
    write(logs / "j5" / f"{HOST}-3.log", *BAD_NCCL, RANK_OUT_OF_MEMORY.encode()[:30])
    tick = GpuTick(at=datetime.now(UTC), gpus=(GpuSnapshot(index=0, uuid="GPU-1", pci=PCI),))
    write(ticks, *BAD_TICKS, encode(tick)[:9])
    here.start_worker()
    here.start_sink()
    here.start_scheduler()
    here.start_agent(
        HOST, "--kernel-file", str(kernel), "--kernel-file", str(logs / "cut.log"),
        "--nccl", str(logs / "{job}" / "{host}-{rank}.log"),
        "--gpu", "recording", "--gpu-recording", str(ticks),
    )  # fmt: skip
    here.until(lambda: any(one.pci == OTHER_PCI for one in kernel_records(here)))
    write(kernel, stamp(LOST)[40:])
    write(logs / "j5" / f"{HOST}-3.log", RANK_OUT_OF_MEMORY.encode()[30:])
    write(ticks, encode(tick)[9:] + b"\n")
    here.until(
        lambda: bool(
            here.carried_out()
            and any(
                (one.status, one.domain.job) == (Status.SOFTWARE, "j5") for one in verdicts(here)
            )
            and here.records("isolation.acks")
            and frames(here)
        )
    )
    here.finish()

    found = kernel_records(here)
    (lost,) = [one for one in found if one.code == 79]
    assert (lost.pci, lost.host, lost.raw.endswith("off the bus.")) == (PCI, HOST, True)
    (odd,) = [one for one in found if one.pci == OTHER_PCI]
    assert (odd.code, odd.pid, odd.process) == (31, 4711, "tr\\xe4in\\xff")
    (long,) = [one for one in found if one.code == 13]
    assert long.pci == "0000:0d:00"
    assert len(long.raw) < 100_000
    assert not [one for one in found if one.kind is KernelKind.XID and one not in (lost, odd, long)]
    assert {one.domain.pci for one in judged(here)} == {PCI}
    (command,) = {one.id: one for one in here.records("isolation.commands")}.values()
    assert (command.domain.host, command.domain.pci) == (HOST, PCI)
    assert [(one.at, one.gpus) for frame in frames(here) for one in frame.ticks] == [
        (tick.at, tick.gpus)
    ]
    (memory,) = [one for one in here.records("nccl") if kind(one) is NcclKind.OUT_OF_MEMORY]
    assert (memory.job, memory.rank) == ("j5", 3)
    assert here.logs_with("Traceback") == []
    assert "cut.log is compressed; only plain files are followed" in here.log(f"agent-{HOST}")
    assert here.said == []
    assert here.stored() == here.sent()


def kernel_records(here: Any) -> list[KernelRecord]:
    return [one for one in here.records("kernel") if isinstance(one, KernelRecord)]


def verdicts(here: Any) -> list[Verdict]:
    return [one for one in here.records("verdicts") if isinstance(one, Verdict)]


def frames(here: Any) -> list[GpuFrame]:
    return [one for one in here.records("gpu") if isinstance(one, GpuFrame)]


def kind(record: Any) -> Any:
    return getattr(record, "kind", None)


def record_of(topic: str) -> bytes:
    """A sound record of a topic that accuses nobody, to be spoilt."""
    at = datetime.now(UTC)
    if topic == "nccl":
        return encode(NcclRecord(id="n", observed_at=at, raw="r", kind=NcclKind.WARN, job="j"))
    return encode(KernelRecord(id="k", observed_at=at, raw="r", kind=KernelKind.OTHER, host=HOST))


def spoilt(topic: str) -> list[bytes]:
    """Messages that no build reads, or that only a newer one does."""
    tag = str(TOPICS[topic].types[0].__struct_config__.tag)
    newer = tag.split("/", maxsplit=1)[0] + "/9"
    return [
        NOISE,
        b"",
        b"null",
        b"[" * 50_000,
        b'{"schema":',
        record_of("kernel")[:-7],
        json.dumps({"schema": newer, "id": "x", "host": HOST}).encode(),
        json.dumps({"schema": tag}).encode(),
        b'{"schema":"' + tag.encode() + b'","id":"\xff\xfe"}',
        gzip.compress(record_of("kernel"))[:40],
        b"\xee" * 900_000,
    ]


def test_what_stands_on_the_topics_may_be_anything_and_the_good_record_behind_it_is_judged(
    kafka: Kafka, installed: Any
) -> None:
    here = installed(kafka)
    read_by_stages = [name for name in TOPICS if name not in ("isolation.commands",
                      "isolation.state", "growth", "drills", "deadletters")]  # fmt: skip
    producer = KafkaProducer(**kafka.client(), acks="all", max_request_size=1 << 20)
    sent = set()
    for topic in (*read_by_stages, "isolation.commands", "isolation.state"):
        cluster = TOPICS[topic].key.value in ("cluster", "domain")
        for value in spoilt(topic):
            key = CLUSTER_KEY if cluster else HOST.encode()
            producer.send(kafka.topic(topic), value, key=key).get(30)
            sent.add((topic, value))
    at = datetime.now(UTC)
    lost = KernelRecord(
        id="good", observed_at=at, at=at, raw=LOST, kind=KernelKind.XID, host=HOST, code=79,
        pci=PCI, message="GPU has fallen off the bus.",
    )  # fmt: skip
    producer.send(kafka.topic("kernel"), encode(lost), key=HOST.encode()).get(30)
    producer.close()
    here.start_worker()
    here.start_sink()
    here.start_scheduler()
    here.until(lambda: bool(judged(here) and here.records("isolation.acks")))
    here.until(lambda: len(here.records("deadletters")) >= len(sent) - len(spoilt("kernel")))
    here.finish()

    letters = here.records("deadletters")
    buried = {(one.topic, one.value) for one in letters}
    # Nobody reads the published states but a worker that starts without its own.
    unread = {(topic, value) for topic, value in sent if topic == "isolation.state"}
    assert {one for one in sent - unread if one not in buried} == set()
    assert buried <= sent
    assert {one.stage for one in letters} == {"host", "job", "fabric", "isolation", "scheduler"}
    for one in letters:
        assert one.error.startswith(f"topic {one.topic}: ")
        if b"/9" in one.value[:40]:
            assert "/9', this build reads" in one.error
    (ack,) = {one.id: one for one in here.records("isolation.acks")}.values()
    assert ack.status is AckStatus.DONE
    assert [one["domain"]["pci"] for one in here.carried_out()] == [PCI]
    assert here.logs_with("Traceback") == []
    assert here.said == []
    assert here.stored() == here.sent()


@pytest.mark.parametrize(
    "at", [datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)], ids=["end", "dawn"]
)
def test_a_clock_at_the_end_or_the_beginning_of_time_stops_no_stage(
    kafka: Kafka, installed: Any, at: datetime
) -> None:
    here = installed(kafka)
    now = datetime.now(UTC)
    producer = KafkaProducer(**kafka.client(), acks="all")
    odd = KernelRecord(
        id="odd", observed_at=at, at=at, raw="NVRM: Xid", kind=KernelKind.XID, host=HOST, code=31,
        pci=OTHER_PCI,
    )  # fmt: skip
    frame = GpuFrame(
        id="frame", host=HOST, observed_at=at, seq=1,
        ticks=(GpuTick(at=at, gpus=(GpuSnapshot(index=0, pci=OTHER_PCI),)),),
    )  # fmt: skip
    waits = NcclRecord(
        id="waits", observed_at=at, at=at, raw="r", kind=NcclKind.TIMEOUT, job="j", rank=1, seq=4,
        op="ALLREDUCE", timeout_ms=600_000,
    )  # fmt: skip
    lost = KernelRecord(
        id="good", observed_at=now, at=now, raw=LOST, kind=KernelKind.XID, host=HOST, code=79,
        pci=PCI, message="GPU has fallen off the bus.",
    )  # fmt: skip
    for topic, key, record in (
        ("kernel", HOST, odd),
        ("gpu", HOST, frame),
        ("nccl", "j", waits),
        ("kernel", HOST, lost),
    ):
        producer.send(kafka.topic(topic), encode(record), key=key.encode()).get(30)
    producer.close()
    here.start_worker()
    here.start_sink()
    here.until(lambda: bool(judged(here)))
    # What was said in the year 1 is too old to be held against anybody.
    topic = "suspicions" if at.year == 1 else "verdicts"
    here.until(lambda: any(getattr(one, "job", None) == "j" for one in here.records(topic)))
    here.finish()
    assert here.records("deadletters") == []
    assert here.logs_with("Traceback") == []
    assert here.said == []
    assert here.stored() == here.sent()


def ringfence(*arguments: str, stdin: bytes = b"") -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, NDJSON and stderr of one call."""
    done = subprocess.run(
        [sys.executable, "-m", "ringfence", *arguments],
        input=stdin,
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert b"Traceback" not in done.stderr
    text = done.stdout.decode()
    found = (
        [json.loads(text)]
        if text.startswith("{\n")
        else list(map(json.loads, text.split("\n")[:-1]))
    )
    return done.returncode, found, done.stderr.decode()


def test_parse_makes_a_record_of_every_bad_line_and_of_the_good_one(tmp_path: Path) -> None:
    code, found, said = ringfence("parse", "kernel", stdin=b"".join(BAD_KERNEL) + stamp(LOST))
    assert (code, said) == (0, "")
    assert [one["line"] for one in found] == list(range(1, len(BAD_KERNEL) + 2))
    xids = [(one["code"], one["pci"]) for one in found if one["kind"] == "xid"]
    assert xids == [(13, "0000:0d:00"), (31, OTHER_PCI), (79, PCI)]
    assert max(len(one["raw"]) for one in found) < 100_000

    file = tmp_path / "rank.log"
    file.write_bytes(b"".join(BAD_NCCL) + RANK_OUT_OF_MEMORY.encode())
    code, found, said = ringfence("parse", "nccl", str(file))
    assert (code, said) == (0, "")
    assert [(one["kind"], one["rank"]) for one in found][-1] == ("out-of-memory", 3)


def test_a_truncated_gzip_is_parsed_as_far_as_it_goes_and_said(tmp_path: Path) -> None:
    file = tmp_path / "kern.log.gz"
    whole = gzip.compress(b"".join(stamp(LOST) for _ in range(5000)))
    file.write_bytes(whole[: len(whole) // 2])
    code, found, said = ringfence("parse", "kernel", str(file))
    assert code == 2
    assert len(said.splitlines()) == 1
    assert "kern.log.gz: broke off:" in said
    assert {(one["code"], one["pci"]) for one in found if one["line"] < 1000} == {(79, PCI)}


def test_triage_judges_the_good_line_amid_all_that_is_bad(tmp_path: Path) -> None:
    folder = tmp_path / "incident"
    write(folder / HOST / "kern.log", *BAD_KERNEL, stamp(LOST))
    write(folder / HOST / "rank-3.log", *BAD_NCCL, RANK_OUT_OF_MEMORY.encode())
    write(folder / HOST / "noise.bin", NOISE)
    write(folder / HOST / "newer.json", b'{"schema":"kernel/9"}\n')
    write(folder / HOST / "empty.log", b"")
    write(folder / HOST / "cut.log.gz", gzip.compress(stamp(LOST) * 3000)[:80])
    write(folder / HOST / "cut.tar.gz", gzip.compress(NOISE * 40)[:3000])
    write(folder / HOST / "fake.gz", b"\x1f\x8b" + NOISE)
    code, (found,), said = ringfence("triage", "--json", str(folder))
    assert (code, said) == (1, "")
    statuses = {(one["status"], one["domain"]["pci"]) for one in found["verdicts"]}
    assert ("localized", PCI) in statuses
    assert {status for status, _ in statuses} <= {"localized", "software", "insufficient"}
    (command,) = found["commands"]
    assert command["domain"]["pci"] == PCI
    unread = {Path(one["file"]).name: one["reason"] for one in found["unread"]}
    assert unread.keys() == {
        "noise.bin", "newer.json", "empty.log", "cut.log.gz", "cut.tar.gz", "fake.gz",
    }  # fmt: skip
    assert all(unread.values())
