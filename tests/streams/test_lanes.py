import asyncio
from collections.abc import Mapping
from typing import Any

from streams.lanes import Lane, Turns


class Read:
    """What was read already, by lane; notes in which order it is taken."""

    def __init__(self, **waiting: int) -> None:
        self.waiting = waiting
        self.asked: list[str] = []

    async def fetch(self, lane: Lane, most: int | None) -> Mapping[Any, list[Any]]:
        name = lane.name.lower()
        self.asked.append(name)
        taken = min(self.waiting.get(name, 0), most or 10**9)
        self.waiting[name] = self.waiting.get(name, 0) - taken
        return {name: list(range(taken))} if taken else {}


def turns(clock: Any = lambda: 0.0) -> Turns:
    return Turns(lambda name: f"site.{name}", clock)


def take(read: Read, one: Turns | None = None, waiting: int = 0) -> dict[str, int]:
    found = asyncio.run((one or turns()).take(read.fetch, waiting))
    return {lane: len(records) for lane, records in found.items()}


def test_our_own_words_come_before_evidence_and_evidence_before_telemetry() -> None:
    names = ("verdicts", "isolation.acks", "suspicions", "kernel", "nccl", "context", "gpu")
    lanes = [turns().lane(f"site.{name}") for name in names]

    assert lanes == [Lane.OWN] * 3 + [Lane.EVIDENCE] * 3 + [Lane.TELEMETRY]
    assert turns().lane("site.worker-host-changelog") is Lane.EVIDENCE


def test_a_turn_takes_few_frames_whatever_waits() -> None:
    read = Read(own=3, evidence=10, telemetry=200_000)

    assert take(read) == {"own": 3, "evidence": 10, "telemetry": 96}
    assert read.asked == ["own", "evidence", "telemetry"]


def test_no_frames_are_taken_while_the_stages_have_enough_to_do() -> None:
    assert take(Read(evidence=1, telemetry=500), waiting=97) == {"evidence": 1}
    assert take(Read(telemetry=500), waiting=97) == {}
    assert take(Read(telemetry=500), waiting=96) == {"telemetry": 96}


def test_a_flood_of_evidence_holds_telemetry_up_for_a_second_and_no_longer() -> None:
    now = [0.0]
    one = turns(lambda: now[0])
    read = Read(evidence=10**6, telemetry=10**6)

    told = []
    for now[0] in (10.0, 10.5, 10.9, 11.0, 11.5, 12.0, 12.5):
        told.append("telemetry" in take(read, one))

    assert told == [False, False, False, True, False, False, True]


def test_when_the_flood_is_over_telemetry_is_taken_at_once() -> None:
    one = turns()

    assert take(Read(evidence=600, telemetry=5), one) == {"evidence": 512}
    assert take(Read(evidence=88, telemetry=5), one) == {"evidence": 88, "telemetry": 5}


def test_telemetry_waits_at_the_start_until_the_evidence_that_was_there_is_read() -> None:
    now = [0.0]
    turns = Turns(lambda name: name, clock=lambda: now[0])
    assert turns.level(lambda: False), "nothing was assigned anew"
    turns.begin()
    assert not turns.level(lambda: False)
    now[0] = 3.0
    assert turns.level(lambda: True)
    assert turns.level(lambda: False), "asked once for each assignment"


def test_telemetry_waits_at_the_start_for_ten_seconds_at_most() -> None:
    now = [100.0]
    turns = Turns(lambda name: name, clock=lambda: now[0])
    turns.begin()
    assert not turns.level(lambda: False)
    now[0] = 109.9
    assert not turns.level(lambda: False)
    now[0] = 110.0
    assert turns.level(lambda: False)
