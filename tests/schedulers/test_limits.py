import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from evidence.decisions import Ack, AckStatus, Action, Command, Domain, DomainKind, Level
from schedulers.adapter import Outcome, SchedulerError
from schedulers.budget import Limits
from schedulers.clerk import Clerk, Delivery
from schedulers.journal import Journal

Build = Callable[..., Command]


@dataclass
class Site:
    """A scheduler that notes in which calls it was asked for what; ``fails`` are ids."""

    calls: list[list[str]] = field(default_factory=list)
    levels: list[Level] = field(default_factory=list)
    fails: dict[str, int] = field(default_factory=dict)
    racks: dict[str, int] = field(default_factory=dict)

    def apply(self, command: Command) -> Outcome:
        return self.apply_all([command])[0]

    def apply_all(self, commands: Sequence[Command]) -> list[Outcome]:
        self.calls.append([one.id for one in commands])
        self.levels += [one.level for one in commands]
        return [self._outcome(one) for one in commands]

    def _outcome(self, command: Command) -> Outcome:
        left = self.fails.get(command.id, 0)
        self.fails[command.id] = left - 1
        return Outcome(AckStatus.FAILED, "busy") if left > 0 else Outcome(AckStatus.DONE)

    def nodes(self, domain: Domain) -> int | None:
        return self.racks.get(domain.rack or "")


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


def _on(host: str | None, command: Build, ident: str, **fields: Any) -> Command:
    if host is None or host.startswith("rack"):
        domain = Domain(kind=DomainKind.RACK, rack=host)
    else:
        domain = Domain(kind=DomainKind.NODE, host=host)
    return command(id=ident, domain=domain, domain_id=domain.id, **fields)


def _handled(
    site: Any, journal: Journal, clock: Clock, commands: list[Command], **limits: Any
) -> list[Ack]:
    clerk = Clerk(
        "site", site, journal, clock, Event(), retry_wait_s=0.0, limits=Limits(**limits), topic="t"
    )
    acks = clerk.handle_all([Delivery(one) for one in commands])
    found = [ack for ack in acks if ack is not None]
    assert len(found) == len(commands)
    return found


def test_no_more_nodes_than_the_budget_are_taken_out_and_releases_always_pass(
    command: Build, journal: Journal, clock: Clock
) -> None:
    commands = [_on(f"n{number}", command, f"c{number}") for number in range(4)]
    commands.append(_on("n0", command, "r", action=Action.RELEASE, generation=2))
    acks = _handled(Site(), journal, clock, commands, max_isolations=2)
    assert [ack.status.value for ack in acks] == ["done", "done", "refused", "refused", "done"]
    assert acks[2].detail == (
        "this scheduler's own budget: 2 of 2 nodes were taken out in the last 3600 s, "
        "1 more asked for"
    )


def test_two_cards_of_a_node_are_one_node_of_the_budget(
    command: Build, journal: Journal, clock: Clock
) -> None:
    cards = [Domain(kind=DomainKind.GPU, host="n1", pci=f"0000:{bus}:00") for bus in ("3b", "5e")]
    commands = [command(id=one.id, domain=one, domain_id=one.id) for one in cards]
    acks = _handled(Site(), journal, clock, commands, max_isolations=1)
    assert [ack.status for ack in acks] == [AckStatus.DONE] * 2


def test_the_budget_outlives_a_restart_and_comes_back_after_its_window(
    command: Build, tmp_path: Path, clock: Clock
) -> None:
    first, second = _on("n1", command, "c1"), _on("n2", command, "c2", act_by=None)
    limits = {"max_isolations": 1, "window_s": 600.0}
    with Journal(tmp_path, "site") as journal:
        _handled(Site(), journal, clock, [first], **limits)
    with Journal(tmp_path, "site") as journal:
        assert _handled(Site(), journal, clock, [second], **limits)[0].status is AckStatus.REFUSED
        clock.at += timedelta(seconds=601)
        assert _handled(Site(), journal, clock, [second], **limits)[0].status is AckStatus.DONE


def test_a_budget_of_nothing_isolates_nothing(
    command: Build, journal: Journal, clock: Clock
) -> None:
    (ack,) = _handled(Site(), journal, clock, [command()], max_isolations=0)
    assert ack.status is AckStatus.REFUSED


def test_a_rack_counts_with_its_nodes_and_fills_the_budget_where_they_are_unknown(
    command: Build, journal: Journal, clock: Clock
) -> None:
    site = Site(racks={"rack1": 4})
    commands = [
        _on("n1", command, "c1"),
        _on("rack1", command, "c2"),
        _on("rack2", command, "c3"),
    ]
    acks = _handled(site, journal, clock, commands, max_isolations=5)
    assert [ack.status.value for ack in acks] == ["done", "done", "refused"]
    assert site.calls == [["c1"], ["c2"]]


def test_the_rate_is_of_isolations_in_the_last_minute(
    command: Build, journal: Journal, clock: Clock
) -> None:
    commands = [_on(f"n{number}", command, f"c{number}") for number in range(3)]
    acks = _handled(Site(), journal, clock, commands, per_minute=2)
    assert [ack.status.value for ack in acks] == ["done", "done", "refused"]
    clock.at += timedelta(seconds=61)
    assert _handled(Site(), journal, clock, commands[2:], per_minute=2)[0].status is AckStatus.DONE


@pytest.mark.parametrize("attempts_needed", [0, 1])
def test_a_level_above_the_most_allowed_is_carried_out_lower_and_the_ack_says_so(
    command: Build, journal: Journal, clock: Clock, attempts_needed: int
) -> None:
    site = Site(fails={"c1": attempts_needed})
    (ack,) = _handled(site, journal, clock, [command(level=Level.EVICT)], at_most=Level.CORDON)
    assert set(site.levels) == {Level.CORDON}
    assert ack.status is AckStatus.DONE
    assert ack.detail == "evict carried out as cordon, the most that is allowed here"


def test_a_level_below_stays(command: Build, journal: Journal, clock: Clock) -> None:
    site = Site()
    _handled(site, journal, clock, [command(level=Level.CORDON)], at_most=Level.DRAIN)
    assert site.levels == [Level.CORDON]


def test_commands_that_do_not_meet_are_carried_out_together_the_others_in_order(
    command: Build, journal: Journal, clock: Clock
) -> None:
    site = Site(racks={"rack1": 1})
    commands = [
        _on("n1", command, "a"),
        _on("n2", command, "b"),
        _on("n1", command, "c", action=Action.RELEASE, generation=2),
        _on("n3", command, "d"),
        _on("rack1", command, "e"),
        _on("n4", command, "f"),
    ]
    acks = _handled(site, journal, clock, commands)
    assert [ack.command for ack in acks] == list("abcdef")
    assert site.calls == [["a", "b"], ["c", "d"], ["e"], ["f"]]


def test_only_those_that_failed_are_tried_again(
    command: Build, journal: Journal, clock: Clock
) -> None:
    site = Site(fails={"b": 1, "c": 9})
    commands = [_on(f"n{ident}", command, ident) for ident in "abc"]
    acks = _handled(site, journal, clock, commands)
    assert [(ack.status.value, ack.attempt) for ack in acks] == [
        ("done", 1),
        ("done", 2),
        ("failed", 3),
    ]
    assert site.calls == [["a", "b", "c"], ["b", "c"], ["c"]]


@dataclass
class Nosy(Site):
    """It looks, from beside, what is on disk when it is asked to act."""

    journal: Path = Path()
    found: list[tuple[str, str | None]] = field(default_factory=list)

    def apply_all(self, commands: Sequence[Command]) -> list[Outcome]:
        beside = sqlite3.connect(f"file:{self.journal}?mode=ro", uri=True)
        self.found = beside.execute("select id, status from commands order by id").fetchall()
        beside.close()
        return super().apply_all(commands)


def test_all_of_a_batch_is_on_disk_before_any_of_it_is_carried_out(
    command: Build, tmp_path: Path, clock: Clock
) -> None:
    site = Nosy(journal=tmp_path / "site.sqlite")
    with Journal(tmp_path, "site") as journal:
        _handled(site, journal, clock, [_on(f"n{ident}", command, ident) for ident in "abc"])
    assert site.found == [("a", None), ("b", None), ("c", None)]


class Forgetful(Site):
    """It answers for fewer than it was asked."""

    def apply_all(self, commands: Sequence[Command]) -> list[Outcome]:
        return super().apply_all(commands)[1:]


def test_a_batch_with_too_few_outcomes_has_failed_as_a_whole(
    command: Build, journal: Journal, clock: Clock
) -> None:
    commands = [_on("n1", command, "a"), _on("n2", command, "b")]
    acks = _handled(Forgetful(), journal, clock, commands)
    assert [ack.status for ack in acks] == [AckStatus.FAILED] * 2
    assert acks[0].detail == "adapter error: ValueError: 1 outcomes for 2 commands"


def test_a_dry_run_stops_what_was_interrupted_too(
    command: Build, journal: Journal, clock: Clock
) -> None:
    journal.begin(command(), 1, clock.at)
    site = Site()
    (ack,) = _handled(site, journal, clock, [command()], dry_run=True)
    assert ack.status is AckStatus.FAILED
    assert ack.detail.startswith("interrupted in try 1, outcome unknown; dry run")
    assert site.calls == []


def test_a_generation_of_a_topic_that_was_made_anew_counts_from_the_start(
    command: Build, journal: Journal, clock: Clock
) -> None:
    journal.saw("gpu:hpc-n041/0000:5e:00", "older topic", 7)
    (ack,) = _handled(Site(), journal, clock, [command(generation=1)])
    assert ack.status is AckStatus.DONE


def test_what_the_desired_state_is_past_is_out_of_generation(
    command: Build, journal: Journal, clock: Clock
) -> None:
    clerk = Clerk("site", Site(), journal, clock, Event(), floor={"gpu:hpc-n041/0000:5e:00": 3}.get)
    ack = clerk.handle(command(generation=2))
    assert ack is not None
    assert ack.detail.startswith("out of generation: it is of generation 2, and 3 was seen")


def test_a_damaged_journal_starts_nothing(command: Build, tmp_path: Path, now: datetime) -> None:
    with Journal(tmp_path, "site") as journal:
        for number in range(200):
            journal.begin(command(id=f"c{number}"), 1, now)
    path = tmp_path / "site.sqlite"
    content = bytearray(path.read_bytes())
    content[4096:12288] = b"\xa5" * 8192
    path.write_bytes(content)
    with pytest.raises(SchedulerError, match=r"The journal .*site.sqlite cannot be used"):
        Journal(tmp_path, "site")


def test_a_journal_of_an_earlier_release_is_read_on(
    command: Build, tmp_path: Path, clock: Clock
) -> None:
    old = sqlite3.connect(tmp_path / "site.sqlite")
    old.execute(
        "create table commands (id text primary key, attempt integer not null, "
        "begun_at text not null, finished_at text, status text, detail text, "
        "exit_code integer, took_ms integer) strict"
    )
    at = clock.at.isoformat()
    old.execute("insert into commands values ('c1', 1, ?, ?, 'done', 'drained', 0, 5)", (at, at))
    old.commit()
    old.close()
    site = Site()
    with Journal(tmp_path, "site") as journal:
        (ack,) = _handled(site, journal, clock, [command()])
    assert (ack.status, ack.detail) == (AckStatus.DONE, "drained")
    assert site.calls == []
