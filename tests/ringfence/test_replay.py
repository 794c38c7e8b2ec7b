"""Replay over a history that one worker made in Kafka's own order: everything comes out the same.

The worker is the stream's own runner of each stage; a list stands in for each topic, read as soon
as something is appended to it. The sink's own code writes the files.
"""

import asyncio
import json
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace as changed

from evidence.decisions import Command, Verdict
from evidence.records import (
    ContextRecord,
    FabricPort,
    FabricRecord,
    GpuEvent,
    GpuEventKind,
    GpuFrame,
    GpuSnapshot,
    GpuStatus,
    GpuTick,
    KernelRecord,
)
from evidence.topics import TOPICS
from evidence.wire import decode, encode
from ringfence.replay import Period, Replayed, replay
from rules.tables import Rules, load
from streams.routing import Outgoing
from streams.runner import Runner
from streams.stages import STAGES, bind, restored
from streams.states import States
from streams.ticks import TICK_KEY, is_ticked, tick
from warehouse.files import prepare
from warehouse.kinds import KINDS
from warehouse.partition import Partition, Policy
from warehouse.replay import messages

BEGAN = datetime(2026, 9, 10, 9, 30, tzinfo=UTC)
PCI = "0000:3a:00"
LONG = timedelta(days=1)
ALL = Period(BEGAN - LONG, BEGAN - LONG, BEGAN + LONG)


@dataclass
class Message:
    """As a consumer hands it out; milliseconds for the sink, seconds for the worker."""

    offset: int
    key: bytes | None
    value: bytes | None
    at: datetime
    partition: int = 0
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)
    seconds: bool = True

    @property
    def timestamp(self) -> float:
        ms = round(self.at.timestamp() * 1000)
        return ms / 1000 if self.seconds else ms


async def _set(event: asyncio.Event) -> None:
    event.set()


class Cluster:
    """Topics of one partition and a worker that reads each message as it is appended."""

    def __init__(self, rules: Rules) -> None:
        self.now = BEGAN
        self.topics: dict[str, list[Message]] = {topic: [] for topic in TOPICS}
        self._unread: list[tuple[str, Message]] = []
        self._runners: dict[str, Runner] = {}
        for stage in bind(STAGES, rules):
            known = restored(stage, ()) if stage.name == "isolation" else stage
            runner = Runner(known, States(known, 1 << 20), self, batch_size=1 << 20)
            self._runners |= dict.fromkeys(stage.topics, runner)
        self._loop = asyncio.Runner()  # one for all that it reads: a runner's events are its own

    async def send(self, message: Outgoing) -> Awaitable[object]:
        self.append(message.topic, message.key, message.value)
        return asyncio.sleep(0)

    async def keep(self, *_: object) -> object:
        return None

    async def fail(self, error: BaseException) -> None:
        raise error

    def append(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        message = Message(len(self.topics[topic]), key, value, self.now)
        self.topics[topic].append(message)
        self.now += timedelta(milliseconds=1)
        self._unread.append((topic, message))

    def work(self) -> None:
        """Read what was appended, and what the stages append meanwhile."""
        self._loop.run(self._work())

    async def _work(self) -> None:
        settling = [asyncio.create_task(one.settle()) for one in set(self._runners.values())]
        while self._unread:
            topic, message = self._unread.pop(0)
            if topic in self._runners:
                settled = asyncio.Event()
                await self._runners[topic].take(topic, message, partial(_set, settled))
                await asyncio.wait_for(settled.wait(), 10)  # what it said is appended
        for task in settling:
            task.cancel()
        await asyncio.gather(*settling, return_exceptions=True)

    def play(self, records: Iterable[tuple[float, str, bytes, Struct | bytes]], for_s: int) -> None:
        """Append each record at its second, and a tick every half second."""
        waiting = sorted(records, key=lambda one: one[0])
        for step in range(2 * for_s):
            self.now = BEGAN + timedelta(seconds=step / 2)
            while waiting and waiting[0][0] <= step / 2:
                _, topic, key, record = waiting.pop(0)
                self.append(topic, key, record if isinstance(record, bytes) else encode(record))
            for topic in filter(is_ticked, TOPICS):
                self.append(topic, TICK_KEY, encode(tick(self.now, topic, 0)))
            self.work()

    def said(self, topic: str, kind: type[Struct]) -> list[Any]:
        found = [decode(topic, one.value or b"") for one in self.topics[topic]]
        return [one for one in found if isinstance(one, kind)]

    def store(self, root: Path, a_file: int = 40) -> None:
        """Write every topic as the sink does, in several files; the worker has ended."""
        self._loop.close()
        prepare(root)
        policy = Policy(root, 1000, 2.0, 10.0, 90.0, 1 << 20, "zstd")
        for topic, found in self.topics.items():
            partition = Partition(
                kind=KINDS[topic], topic=f"ringfence.{topic}", base="0a1b2c3d", rounds=0,
                number=0, start=0, policy=policy,
            )  # fmt: skip
            for first in range(0, len(found), a_file):
                for one in found[first : first + a_file]:
                    one.seconds = False
                partition.add(found[first : first + a_file], 0.0)  # type: ignore[arg-type]
                partition.flush(0.0)


def xid(
    second: float, code: int, host: str = "n1", pci: str = PCI
) -> tuple[float, str, bytes, Any]:
    text = f"NVRM: Xid (PCI:{pci}): {code}, pid=4411, name=python3, hello"
    record = KernelRecord(
        id=f"k-{host}-{pci}-{code}-{second}", observed_at=BEGAN, raw=text, kind="xid", host=host,
        at=BEGAN + timedelta(seconds=second), code=code, pci=pci, message="hello", source="file",
    )  # fmt: skip
    return second, "kernel", host.encode(), record


def frame(second: float, host: str = "n1", **more: Any) -> tuple[float, str, bytes, Any]:
    at = BEGAN + timedelta(seconds=second)
    well = {"status": GpuStatus.OK, "ecc_volatile_uncorrected": 0, "remap_failure": False}
    gpu = GpuSnapshot(index=0, pci=PCI, uuid="GPU-3a3a-aaaa", **(well | more))
    record = GpuFrame(
        id=f"g-{host}-{second}", host=host, observed_at=at, seq=int(second),
        ticks=(GpuTick(at=at, gpus=(gpu,)),),
    )  # fmt: skip
    return second, "gpu", host.encode(), record


def planned(second: float) -> tuple[float, str, bytes, Any]:
    record = ContextRecord(
        id="c-1", observed_at=BEGAN, kind="gpu-reset", host="n2", pci=PCI, by="operator",
        at=BEGAN + timedelta(seconds=second), until=BEGAN + timedelta(seconds=second + 300),
    )  # fmt: skip
    return second, "context", b"n2", record


INCIDENT = [
    frame(1), frame(1, "n2"), planned(2), xid(3, 79, "n2"), frame(4, "n2", status=GpuStatus.LOST),
    xid(5, 48), xid(5.5, 63), frame(6, ecc_volatile_uncorrected=2, remap_failure=True),
    xid(7, 94), xid(9, 13, pci="0000:9a:00"), (10, "kernel", b"n1", b"{broken"),
    frame(20, "n2"), frame(20, ecc_volatile_uncorrected=2, remap_failure=True),
]  # fmt: skip


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> tuple[Cluster, Path]:
    """One incident as it was lived, and its history."""
    cluster = Cluster(load())
    cluster.play(INCIDENT, 45)
    root = tmp_path_factory.mktemp("replay") / "warehouse"
    cluster.store(root)
    return cluster, root


def again(root: Path, rules: Rules | None = None, period: Period = ALL, **more: Any) -> Replayed:
    return replay(root, rules or load(), STAGES, period, **more)


def ids(found: Iterable[Any]) -> list[str]:
    return list(dict.fromkeys(one.id for one in found))


def test_every_verdict_and_command_comes_out_again(lived: tuple[Cluster, Path]) -> None:
    cluster, root = lived
    verdicts = cluster.said("verdicts", Verdict)
    commands = cluster.said("isolation.commands", Command)
    assert len(ids(verdicts)) >= 4
    assert ids(commands) != []
    found = again(root)
    assert (found.different, found.failed) == ([], [])
    assert (found.order, found.late) == ({}, {})
    assert ids(found.verdicts) == ids(verdicts)
    assert found.verdicts == [next(v for v in verdicts if v.id == i) for i in ids(verdicts)]
    assert ids(found.commands) == ids(commands)
    assert found.same == {"verdict": len(ids(verdicts)), "command": len(ids(commands))}


def test_the_records_come_back_in_kafkas_order_as_they_were(lived: tuple[Cluster, Path]) -> None:
    cluster, root = lived
    topics = ("kernel", "gpu", "context", "verdicts")
    found = list(messages(root, topics, ALL.begin, ALL.until))
    assert [one.at for one in found] == sorted(one.at for one in found)
    for topic in topics:
        read = [one for one in found if one.topic == topic]
        assert [one.offset for one in read] == list(range(len(cluster.topics[topic])))
        for one, sent in zip(read, cluster.topics[topic], strict=True):
            broken = sent.value == b"{broken"
            assert one.record == (None if broken else decode(topic, sent.value or b""))
            assert one.key == sent.key


def test_a_decision_that_was_changed_in_the_history_is_found(
    lived: tuple[Cluster, Path], tmp_path: Path
) -> None:
    cluster, _ = lived
    forged = Cluster(load())
    forged.topics = {topic: list(found) for topic, found in cluster.topics.items()}
    commands = cluster.said("isolation.commands", Command)
    forged.topics["isolation.commands"] = [
        changed_message(one, reason="another one") if number == 0 else one
        for number, one in enumerate(cluster.topics["isolation.commands"])
        if decode("isolation.commands", one.value or b"").id == commands[0].id  # type: ignore[attr-defined]
    ]
    forged.store(tmp_path / "w")
    found = again(tmp_path / "w")
    assert ("changed", commands[0].id) in [(one.how, one.id) for one in found.different]
    others = set(ids(commands)) - {commands[0].id}
    assert {one.id for one in found.different if one.how == "replayed"} == others


def changed_message(message: Message, **fields: Any) -> Message:
    record = changed(decode("isolation.commands", message.value or b""), **fields)
    return Message(message.offset, message.key, encode(record), message.at)


def test_another_policy_shows_what_would_have_been_done(
    lived: tuple[Cluster, Path], tmp_path: Path
) -> None:
    _, root = lived
    policy = tmp_path / "policy.toml"
    policy.write_text('isolation.mode = { value = "cordon", why = "What if.", source = "test" }\n')
    found = again(root, load(None, policy), what_if=True)
    assert {one.dry_run for one in found.commands} == {False}
    assert {one.level for one in found.commands} == {"cordon"}
    assert {one.kind for one in found.different} == {"command"}


def test_what_the_stages_say_now_is_what_the_next_ones_meet(lived: tuple[Cluster, Path]) -> None:
    cluster, root = lived
    found = again(root, what_if=True)
    assert (found.different, found.order) == ([], {})
    assert ids(found.commands) == ids(cluster.said("isolation.commands", Command))


def test_one_host_alone_gives_what_it_gave_among_the_others(lived: tuple[Cluster, Path]) -> None:
    cluster, root = lived
    found = again(root, host="n1")
    assert (found.different, found.failed) == ([], [])
    mine = [one for one in cluster.said("verdicts", Verdict) if one.host == "n1"]
    assert ids(found.verdicts) == ids(mine) != []
    assert found.read["kernel"] == sum(1 for one in INCIDENT if one[1:3] == ("kernel", b"n1")) - 1


def test_a_part_of_the_history_is_compared_alone(lived: tuple[Cluster, Path]) -> None:
    _, root = lived
    whole = again(root)
    until = BEGAN + timedelta(seconds=4)
    first = again(root, period=Period(ALL.begin, ALL.since, until))
    rest = again(root, period=Period(ALL.begin, until + timedelta(microseconds=1), ALL.until))
    assert first.different == rest.different == []
    assert sorted(ids([*first.verdicts, *rest.verdicts])) == sorted(ids(whole.verdicts))
    assert ids(first.verdicts) != [] != ids(rest.verdicts)


def test_what_one_fetch_brought_late_is_met_in_the_workers_order(tmp_path: Path) -> None:
    """Kafka took the Xid first; the worker read the frame first, and judged it at once."""
    cluster = Cluster(load())
    cluster.play([frame(1), xid(3, 79), frame(3.5, status=GpuStatus.LOST)], 3)
    cluster.now = BEGAN + timedelta(seconds=3)
    cluster.append("kernel", b"n1", encode(xid(3, 79)[3]))
    late = cluster._unread
    cluster._unread = []
    cluster.now = BEGAN + timedelta(seconds=3.4)
    cluster.append("gpu", b"n1", encode(frame(3.4, status=GpuStatus.LOST)[3]))
    cluster.work()
    cluster._unread += late
    cluster.work()
    for step in range(8, 40):
        cluster.now = BEGAN + timedelta(seconds=step / 2)
        for topic in filter(is_ticked, TOPICS):
            cluster.append(topic, TICK_KEY, encode(tick(cluster.now, topic, 0)))
        cluster.work()
    cluster.store(tmp_path / "w")
    verdicts = cluster.said("verdicts", Verdict)
    assert {ref.source for ref in verdicts[0].evidence} == {"gpu"}
    assert "kernel" in {ref.source for ref in verdicts[-1].evidence}
    found = again(tmp_path / "w")
    assert (found.different, found.order) == ([], {})
    assert ids(found.verdicts) == ids(verdicts)


def test_a_port_and_an_event_of_nvml_come_back_as_they_were(tmp_path: Path) -> None:
    port = FabricPort(port=3, counters={"symbol_error": 2**64 - 1}, saturated=("symbol_error",))
    sweep = FabricRecord(
        id="f", observed_at=BEGAN, subnet="ib7", guid="0x1", name="leaf", kind="switch",
        ports=(port, FabricPort(port=4)),
    )  # fmt: skip
    bare = FabricRecord(id="b", observed_at=BEGAN, subnet="ib7", guid="0x2")
    event = GpuEvent(at=BEGAN, kind=GpuEventKind.XID, index=0, data=79)
    nothing = GpuTick(at=BEGAN, error=9, error_text="driver not loaded")
    gpus = (GpuSnapshot(index=0, unread={"power_w": "refused"}), GpuSnapshot(index=1))
    looked = GpuFrame(
        id="g", host="n1", observed_at=BEGAN, seq=1,
        ticks=(GpuTick(at=BEGAN, gpus=gpus, events=(event,)), nothing),
    )  # fmt: skip
    cluster = Cluster(load())
    for topic, record in (("fabric", sweep), ("fabric", bare), ("gpu", looked)):
        cluster.append(topic, b"k", encode(record))
    cluster.store(tmp_path)
    found = [one.record for one in messages(tmp_path, ("fabric", "gpu"), ALL.begin, ALL.until)]
    sent = (("fabric", sweep), ("fabric", bare), ("gpu", looked))
    assert found == [decode(topic, encode(record)) for topic, record in sent]


# --- The command line. --------------------------------------------------------------------------


def test_the_command_says_the_same_and_exits_0(ringfence: Any, lived: tuple[Cluster, Path]) -> None:
    cluster, root = lived
    result = ringfence("--data", str(root.parent), "replay", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    told = json.loads(result.stdout)
    assert told["different"] == []
    assert [one["id"] for one in told["commands"]] == ids(
        cluster.said("isolation.commands", Command)
    )
    shown = ringfence("--data", str(root.parent), "replay")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "different: 0" in shown.stdout


def test_nothing_in_the_period_is_no_difference(
    ringfence: Any, lived: tuple[Cluster, Path]
) -> None:
    _, root = lived
    result = ringfence(
        "--data", str(root.parent), "replay", "--since", "2026-09-10T23:00", "--json"
    )
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout)["same"] == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--since", "yesterday"), "'yesterday' is no time like 2026-03-02T05:41"),
        (("--since", "2026-09-11", "--until", "2026-09-10"), "is after the end of the period"),
        (("--policy", "/nowhere.toml"), "/nowhere.toml"),
        (("--warm-up", "nan"), "nan"),
    ],
)
def test_a_wrong_flag_is_one_sentence(
    ringfence: Any, lived: tuple[Cluster, Path], arguments: tuple[str, ...], words: str
) -> None:
    _, root = lived
    result = ringfence("--data", str(root.parent), "replay", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_without_a_history_it_says_so(ringfence: Any, tmp_path: Path) -> None:
    result = ringfence("--data", str(tmp_path), "replay")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "there is no warehouse" in result.stderr
    prepare(tmp_path / "warehouse")
    result = ringfence("--data", str(tmp_path), "replay")
    assert result.exit_code == 2
    assert "nothing is stored" in result.stderr


def test_a_damaged_file_is_named(ringfence: Any, tmp_path: Path) -> None:
    cluster = Cluster(load())
    cluster.append("kernel", b"n1", encode(xid(1, 79)[3]))
    cluster.store(tmp_path / "warehouse")
    (file,) = (tmp_path / "warehouse" / "kernel").glob("day=2026*/*.parquet")
    file.write_bytes(file.read_bytes()[:100])
    result = ringfence("--data", str(tmp_path), "replay")
    assert result.exit_code == 2
    assert f"{file} cannot be read" in result.stderr.replace("\n", "")
