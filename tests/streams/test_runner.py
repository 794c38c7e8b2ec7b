"""The runner over a wire that only notes what it is asked; the real one is in the integration."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct

from evidence.decisions import DeadLetter, Domain, DomainKind, Says, Suspicion, Witness
from evidence.records import KernelRecord, Tick
from evidence.wire import encode
from rules.stage import Arrived
from streams.config import TooLargeError
from streams.deadletters import KEPT_BYTES
from streams.routing import Outgoing
from streams.runner import Runner
from streams.stage import Stage
from streams.states import States, read_kept
from streams.ticks import TICK_KEY, tick

START = datetime(2026, 11, 3, 9, 12, 44, tzinfo=UTC)


class Count(Struct, frozen=True, omit_defaults=True):
    count: int = 0
    due: datetime | None = None


def suspicion(reason: str, host: str | None) -> Suspicion:
    return Suspicion(
        id=reason,
        at=START,
        observed_at=START,
        witness=Witness.KERNEL,
        says=Says.ACCUSES,
        kind="count",
        domain=Domain(kind=DomainKind.NODE),
        host=host,
        reason=reason,
    )


def step(state: Count, arrived: Arrived) -> tuple[Count | None, Iterable[Struct]]:
    record = arrived.record
    if isinstance(record, Tick):
        if state.count > 99:
            raise ValueError("no tick, please")
        return Count(state.count), [suspicion(f"waited {state.count} {record.at:%S}", "node-a")]
    assert isinstance(record, KernelRecord)
    match record.raw:
        case "same":
            return state, []
        case "raise":
            raise ValueError("a step that cannot")
        case "forget":
            return None, []
        case "hostless":
            return Count(state.count + 1), [suspicion("nobody", None)]
        case "hundred":
            return Count(100, START), []
        case _:
            count = Count(state.count + 1, START + timedelta(seconds=10))
            return count, [suspicion(f"{record.raw} {count.count}", "node-a")]


@dataclass
class Message:
    key: bytes | None
    value: bytes | None
    offset: int
    partition: int = 0
    timestamp: float | None = START.timestamp()
    headers: list[tuple[str, bytes]] = field(default_factory=list)


class Wire:
    """Notes, in order, what was asked and what was acknowledged."""

    def __init__(self, refuse: Callable[[Outgoing], bool] = lambda _message: False) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.table: dict[bytes, bytes] = {}
        self.failed: list[BaseException] = []
        self.broken: Exception | None = None
        self._refuse = refuse

    async def send(self, message: Outgoing) -> Awaitable[object]:
        return self._acknowledged(message)

    async def _acknowledged(self, message: Outgoing) -> None:
        await asyncio.sleep(0)
        if self.broken is not None:
            raise self.broken
        if self._refuse(message):
            raise TooLargeError("too large")
        self.done.append(("sent", message.topic, message.key, message.value))

    async def keep(self, key: bytes, value: bytes | None, partition: int) -> object:
        await asyncio.sleep(0)
        self.done.append(("kept", key, partition))
        if value is None:
            self.table.pop(key, None)
        else:
            self.table[key] = value
        return None

    async def fail(self, error: BaseException) -> None:
        self.failed.append(error)

    def acknowledge(self, name: object) -> Callable[[], Awaitable[object]]:
        async def ack() -> None:
            self.done.append(("acked", name))

        return ack

    def sent(self, topic: str) -> list[bytes]:
        return [entry[3] for entry in self.done if entry[:2] == ("sent", topic)]

    def reasons(self) -> list[str]:
        return [
            msgspec.json.decode(value, type=Suspicion).reason for value in self.sent("suspicions")
        ]

    def letters(self) -> list[DeadLetter]:
        return [msgspec.json.decode(value, type=DeadLetter) for value in self.sent("deadletters")]


def kernel(offset: int, raw: str, key: bytes | None = b"node-a", partition: int = 0) -> Message:
    record = KernelRecord(id=f"r{offset}", observed_at=START, raw=raw, kind="xid", host="node-a")
    return Message(key, encode(record), offset, partition)


def ticked(offset: int, seconds: float, partition: int = 0) -> Message:
    at = START + timedelta(seconds=seconds)
    value = encode(tick(at, "kernel", partition))
    return Message(TICK_KEY, value, offset, partition, at.timestamp())


def stage() -> Stage[Count]:
    return Stage("count", ("kernel",), Count, step, lambda state: state.due)


def drive(
    wire: Wire,
    messages: list[Message],
    states: States | None = None,
    batch_size: int = 256,
) -> Runner:
    """Take all messages, then settle until nothing is left to settle."""
    kept = States(stage(), 10_000) if states is None else states
    runner = Runner(stage(), kept, wire, batch_size=batch_size)

    async def run() -> None:
        settling = asyncio.create_task(runner.settle())
        for message in messages:
            await runner.take("kernel", message, wire.acknowledge(message.offset))
        await asyncio.sleep(0.05)
        settling.cancel()

    asyncio.run(run())
    return runner


def test_outputs_are_acknowledged_before_the_state_is_kept_and_that_before_the_ack() -> None:
    wire = Wire()

    drive(wire, [kernel(0, "line")])

    assert [entry[:2] for entry in wire.done] == [
        ("sent", "suspicions"),
        ("kept", b"node-a"),
        ("acked", 0),
    ]


def test_a_batch_keeps_only_the_last_state_of_a_key_and_acks_in_order() -> None:
    wire = Wire()

    drive(wire, [kernel(number, "line") for number in range(5)])

    assert wire.reasons() == [f"line {number}" for number in range(1, 6)]
    assert [entry for entry in wire.done if entry[0] == "kept"] == [("kept", b"node-a", 0)]
    assert [entry[1] for entry in wire.done if entry[0] == "acked"] == list(range(5))
    kept = read_kept(wire.table[b"node-a"])
    assert kept.seen == {"kernel": 4}
    assert msgspec.json.decode(kept.state)["count"] == 5


def test_more_than_a_batch_waits_and_loses_nothing() -> None:
    wire = Wire()

    drive(wire, [kernel(number, "line") for number in range(50)], batch_size=4)

    assert wire.reasons() == [f"line {number}" for number in range(1, 51)]
    assert [entry[1] for entry in wire.done if entry[0] == "acked"] == list(range(50))


def test_the_same_state_back_writes_no_table() -> None:
    wire = Wire()

    drive(wire, [kernel(0, "same")])

    assert wire.done == [("acked", 0)]


def test_a_redelivered_record_is_passed_over_but_acked() -> None:
    wire = Wire()

    drive(wire, [kernel(0, "line"), kernel(0, "line"), kernel(1, "line")])

    assert wire.reasons() == ["line 1", "line 2"]
    assert [entry[1] for entry in wire.done if entry[0] == "acked"] == [0, 0, 1]


def test_a_redelivery_after_a_crash_before_the_state_was_kept_makes_the_same_outputs() -> None:
    first, second = Wire(), Wire()
    drive(first, [kernel(0, "line")])
    drive(second, [kernel(0, "line")])  # nothing was restored: the state was not kept

    assert second.sent("suspicions") == first.sent("suspicions")


def test_a_redelivery_after_a_crash_once_the_state_was_kept_is_passed_over() -> None:
    first, second = Wire(), Wire()
    drive(first, [kernel(0, "line")])
    restored = States(stage(), 10_000)
    restored.restore((0, key, value) for key, value in first.table.items())

    drive(second, [kernel(0, "line"), kernel(1, "line")], restored)

    assert second.reasons() == ["line 2"]


def test_what_fails_becomes_a_dead_letter_and_leaves_the_state_as_it_was() -> None:
    wire = Wire()
    garbage = Message(b"node-a", b"\x00\xff", 1)

    drive(wire, [kernel(0, "line"), garbage, kernel(2, "raise"), kernel(3, "line")])

    assert wire.reasons() == ["line 1", "line 2"]
    undecodable, failing = wire.letters()
    assert (undecodable.value, undecodable.offset) == (b"\x00\xff", 1)
    assert undecodable.error.startswith("topic kernel: not a JSON object")
    assert (failing.offset, failing.error) == (2, "step failed: ValueError: a step that cannot")
    assert [entry[1] for entry in wire.done if entry[0] == "acked"] == [0, 1, 2, 3]


def test_a_record_without_a_key_is_a_dead_letter_and_a_tombstone_is_nothing() -> None:
    wire = Wire()

    drive(wire, [kernel(0, "line", key=None), Message(b"node-a", None, 1)])

    assert [one.error for one in wire.letters()] == ["topic kernel: message without a key"]
    assert wire.reasons() == []


def test_keys_that_are_due_are_stepped_once_when_time_reaches_them() -> None:
    wire = Wire()
    before = [kernel(0, "line"), kernel(0, "line", key=b"node-b", partition=1)]

    drive(wire, [*before, ticked(1, 9), ticked(2, 10), ticked(3, 11), ticked(1, 12, partition=1)])

    assert wire.reasons() == ["line 1", "line 1", "waited 1 54", "waited 1 56"]
    assert read_kept(wire.table[b"node-b"]).partition == 1


def test_a_workers_clock_that_is_an_hour_off_and_put_right_ends_no_wait_early_or_late() -> None:
    wire = Wire()
    hour_off = encode(tick(START + timedelta(hours=1), "kernel", 0))
    off = Message(TICK_KEY, hour_off, 1, 0, START.timestamp() + 9)
    drive(wire, [kernel(0, "one"), off])
    assert wire.reasons() == ["one 1"]

    wire = Wire()
    drive(wire, [kernel(0, "one"), off, ticked(2, 11)])
    assert len(wire.reasons()) == 2


def test_a_tick_with_nothing_due_writes_nothing() -> None:
    wire = Wire()

    drive(wire, [ticked(0, 5)])

    assert wire.done == [("acked", 0)]


def test_a_step_that_fails_on_a_tick_is_told_once_a_minute() -> None:
    wire = Wire()

    drive(wire, [kernel(0, "hundred"), ticked(1, 1), ticked(2, 2), ticked(3, 62)])

    letters = wire.letters()
    assert [one.error for one in letters] == [
        "step failed on a tick: ValueError: no tick, please"
    ] * 2
    assert {(one.topic, one.key) for one in letters} == {("tick", b"node-a")}


def test_a_forgotten_key_is_deleted_from_the_table() -> None:
    wire = Wire()

    drive(wire, [kernel(0, "line"), kernel(1, "forget")])

    assert wire.table == {}


def test_a_suspicion_for_nobody_is_counted_and_the_state_still_kept() -> None:
    wire = Wire()

    runner = drive(wire, [kernel(0, "hostless")])

    assert runner.counts.dropped == 1
    assert wire.reasons() == []
    assert b"node-a" in wire.table


def test_an_output_that_is_too_large_becomes_a_dead_letter_and_the_rest_goes_on() -> None:
    wire = Wire(refuse=lambda message: message.topic == "suspicions" and b"big" in message.value)

    drive(wire, [kernel(0, "big"), kernel(1, "small")])

    assert wire.reasons() == ["small 2"]
    assert [one.topic for one in wire.letters()] == ["suspicions"]


def test_a_dead_letter_that_is_too_large_is_cut() -> None:
    wire = Wire(refuse=lambda message: len(message.value) > 1_000_000)

    drive(wire, [Message(b"node-a", b"\xff" * 900_000, 0)])

    [kept] = wire.letters()
    assert kept.value == b"\xff" * KEPT_BYTES


def test_a_broker_that_takes_nothing_ends_the_worker_before_anything_is_kept_or_acked() -> None:
    wire = Wire()
    wire.broken = TimeoutError("gone")

    drive(wire, [kernel(0, "line")])

    assert wire.failed == [wire.broken]
    assert wire.done == []
