from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event

import pytest

from evidence.decisions import Ack, AckStatus, Action, Command
from schedulers.adapter import Outcome
from schedulers.clerk import Clerk
from schedulers.journal import Journal

DONE = Outcome(AckStatus.DONE, "drained", 0)
FAILED = Outcome(AckStatus.FAILED, "exit code 1: busy", 1)
Build = Callable[..., Command]


@dataclass
class Site:
    """A scheduler whose answers the test lays out; it notes what it was asked to do."""

    answers: list[Outcome | Exception] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    after: Callable[[], None] = lambda: None

    def apply(self, command: Command) -> Outcome:
        self.asked.append(command.id)
        answer = self.answers.pop(0) if self.answers else DONE
        self.after()
        if isinstance(answer, Exception):
            raise answer
        return answer


@dataclass
class Clock:
    at: datetime

    def __call__(self) -> datetime:
        return self.at


@pytest.fixture
def clock(now: datetime) -> Clock:
    return Clock(now)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path, "site") as opened:
        yield opened


def _clerk(site: Site, journal: Journal, clock: Clock, stop: Event | None = None) -> Clerk:
    return Clerk("site", site, journal, clock, stop or Event(), attempts=3, retry_wait_s=0.0)


def _ack(ack: Ack | None) -> Ack:
    assert ack is not None
    return ack


def test_a_command_is_carried_out_and_acked(command: Build, journal: Journal, clock: Clock) -> None:
    site = Site()
    ack = _ack(_clerk(site, journal, clock).handle(command()))
    assert site.asked == ["c1"]
    assert ack == Ack(
        id=ack.id,
        command="c1",
        domain_id="gpu:hpc-n041/0000:5e:00",
        at=clock.at,
        scheduler="site",
        status=AckStatus.DONE,
        detail="drained",
        exit_code=0,
        attempt=1,
        took_ms=ack.took_ms,
    )


def test_the_same_command_again_is_answered_the_same_and_not_carried_out(
    command: Build, journal: Journal, clock: Clock
) -> None:
    site = Site()
    clerk = _clerk(site, journal, clock)
    first = clerk.handle(command())
    clock.at += timedelta(hours=1)  # past act_by too: what was done was done
    assert clerk.handle(command()) == first
    assert site.asked == ["c1"]


def test_a_failure_that_passes_is_done_on_a_later_try(
    command: Build, journal: Journal, clock: Clock
) -> None:
    site = Site([FAILED, FAILED, DONE])
    ack = _ack(_clerk(site, journal, clock).handle(command()))
    assert (ack.status, ack.attempt, ack.exit_code) == (AckStatus.DONE, 3, 0)
    assert site.asked == ["c1"] * 3


def test_a_failure_that_stays_is_failed_after_the_last_try_and_remembered(
    command: Build, journal: Journal, clock: Clock
) -> None:
    site = Site([FAILED] * 3)
    clerk = _clerk(site, journal, clock)
    ack = _ack(clerk.handle(command()))
    assert (ack.status, ack.attempt, ack.detail) == (AckStatus.FAILED, 3, "exit code 1: busy")
    assert clerk.handle(command()) == ack
    assert site.asked == ["c1"] * 3


def test_what_failed_is_carried_out_anew_when_it_is_sent_again_later(
    command: Build, journal: Journal, clock: Clock
) -> None:
    site = Site(answers=[FAILED] * 3)
    clerk = _clerk(site, journal, clock)
    assert _ack(clerk.handle(command())).status is AckStatus.FAILED
    clock.at += timedelta(seconds=19)
    assert _ack(clerk.handle(command())).status is AckStatus.FAILED
    assert len(site.asked) == 3
    clock.at += timedelta(seconds=1)
    again = _ack(clerk.handle(command()))
    assert (again.status, again.attempt) == (AckStatus.DONE, 4)
    assert _ack(clerk.handle(command())).id == again.id
    assert len(site.asked) == 4


def test_what_failed_is_not_carried_out_anew_after_its_time(
    command: Build, journal: Journal, clock: Clock
) -> None:
    site = Site(answers=[FAILED] * 3)
    clerk = _clerk(site, journal, clock)
    clerk.handle(command())
    clock.at += timedelta(minutes=6)
    assert _ack(clerk.handle(command())).status is AckStatus.FAILED
    assert len(site.asked) == 3


def test_a_hopeless_failure_is_not_tried_again(
    command: Build, journal: Journal, clock: Clock
) -> None:
    site = Site([Outcome(AckStatus.FAILED, "drain cannot be run", retry=False)])
    ack = _ack(_clerk(site, journal, clock).handle(command()))
    assert (ack.status, ack.attempt) == (AckStatus.FAILED, 1)
    assert site.asked == ["c1"]


def test_an_adapter_that_raises_is_a_failed_try(
    command: Build, journal: Journal, clock: Clock
) -> None:
    site = Site([ValueError("odd host")] * 3)
    ack = _ack(_clerk(site, journal, clock).handle(command()))
    assert (ack.status, ack.detail) == (AckStatus.FAILED, "adapter error: ValueError: odd host")


def test_an_isolate_past_its_time_is_expired_without_acting(
    command: Build, journal: Journal, clock: Clock
) -> None:
    site = Site()
    late = command(act_by=clock.at - timedelta(seconds=1))
    ack = _ack(_clerk(site, journal, clock).handle(late))
    assert ack.status is AckStatus.EXPIRED
    assert ack.detail.startswith("act_by 2026-11-03T02:14:08+00:00 had passed")
    assert site.asked == []


def test_an_isolate_without_a_time_limit_and_one_just_in_time_are_carried_out(
    command: Build, journal: Journal, clock: Clock
) -> None:
    site = Site()
    clerk = _clerk(site, journal, clock)
    assert _ack(clerk.handle(command(id="a", act_by=None))).status is AckStatus.DONE
    assert _ack(clerk.handle(command(id="b", act_by=clock.at))).status is AckStatus.DONE


def test_a_release_never_expires(command: Build, journal: Journal, clock: Clock) -> None:
    site = Site()
    release = command(action=Action.RELEASE, act_by=clock.at - timedelta(days=9))
    assert _ack(_clerk(site, journal, clock).handle(release)).status is AckStatus.DONE
    assert site.asked == ["c1"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"dry_run": True}, "dry run"),
        ({"held": "budget of 1 node an hour is used"}, "held: budget of 1 node an hour is used"),
    ],
)
def test_dry_run_and_held_commands_are_skipped_with_the_reason(
    command: Build, journal: Journal, clock: Clock, fields: dict[str, object], reason: str
) -> None:
    site = Site()
    ack = _ack(_clerk(site, journal, clock).handle(command(**fields)))
    assert (ack.status, ack.detail, ack.attempt) == (AckStatus.SKIPPED, reason, 0)
    assert site.asked == []


def test_a_held_command_that_is_let_go_is_carried_out(
    command: Build, journal: Journal, clock: Clock
) -> None:
    site = Site()
    clerk = _clerk(site, journal, clock)
    held = _ack(clerk.handle(command(held="budget")))
    done = _ack(clerk.handle(command()))
    assert (held.status, done.status) == (AckStatus.SKIPPED, AckStatus.DONE)
    assert held.id != done.id
    assert site.asked == ["c1"]


def test_an_interrupted_command_is_carried_out_again(
    command: Build, journal: Journal, clock: Clock
) -> None:
    journal.begin(command(), 1, clock.at)
    site = Site()
    ack = _ack(_clerk(site, journal, clock).handle(command()))
    assert (ack.status, ack.attempt) == (AckStatus.DONE, 2)
    assert site.asked == ["c1"]


def test_a_command_interrupted_in_its_last_try_gets_another(
    command: Build, journal: Journal, clock: Clock
) -> None:
    journal.begin(command(), 3, clock.at)
    site = Site()
    ack = _ack(_clerk(site, journal, clock).handle(command()))
    assert (ack.status, ack.attempt) == (AckStatus.DONE, 4)


def test_an_interrupted_isolate_whose_time_has_passed_says_that_nobody_knows(
    command: Build, journal: Journal, clock: Clock
) -> None:
    journal.begin(command(), 1, clock.at)
    clock.at += timedelta(hours=1)
    site = Site()
    ack = _ack(_clerk(site, journal, clock).handle(command()))
    assert ack.status is AckStatus.FAILED
    assert ack.detail.startswith("interrupted in try 1, outcome unknown; act_by 2026-11-03T02:19")
    assert site.asked == []


def test_a_second_try_is_not_begun_past_the_time_limit(
    command: Build, journal: Journal, clock: Clock
) -> None:
    def an_hour_passes() -> None:
        clock.at += timedelta(hours=1)

    site = Site([FAILED], after=an_hour_passes)
    ack = _ack(_clerk(site, journal, clock).handle(command()))
    assert (ack.status, ack.attempt, ack.exit_code) == (AckStatus.FAILED, 1, 1)
    assert ack.detail.startswith("exit code 1: busy; not tried again: act_by")
    assert site.asked == ["c1"]


def test_a_stop_between_tries_answers_nothing_and_goes_on_after_the_restart(
    command: Build, journal: Journal, clock: Clock
) -> None:
    stop = Event()
    site = Site([FAILED], after=stop.set)
    assert _clerk(site, journal, clock, stop).handle(command()) is None
    ack = _ack(_clerk(site, journal, clock).handle(command()))
    assert (ack.status, ack.attempt) == (AckStatus.DONE, 2)


def test_acks_of_two_schedulers_differ(command: Build, tmp_path: Path, clock: Clock) -> None:
    with Journal(tmp_path / "1", "a") as one, Journal(tmp_path / "2", "b") as other:
        first = Clerk("a", Site(), one, clock, Event()).handle(command())
        second = Clerk("b", Site(), other, clock, Event()).handle(command())
    assert _ack(first).id != _ack(second).id
