from datetime import timedelta
from itertools import pairwise

import msgspec
import pytest
from msgspec.structs import replace

from evidence.decisions import (
    AckStatus,
    DesiredState,
    Level,
    RequestAction,
)
from rules.isolation import due
from rules.policy import Mode

from .isolation_stage import T0, Stage, ack, card, request, rules, tick, verdict


def test_a_command_is_sent_again_byte_for_byte_until_its_ack_is_read() -> None:
    stage = Stage(rules())
    (command,) = stage.commands(verdict())
    sent = []
    for second in range(1, 40):
        sent += [(second, out) for out in stage.take(*tick(second))]
    assert [second for second, _ in sent] == [2, 6, 14, 30]
    assert {msgspec.json.encode(out) for _, out in sent} == {msgspec.json.encode(command)}
    assert stage.take(ack(command), 40) == []
    assert due(stage.state) is None
    assert stage.take(*tick(100)) == []


def test_the_stage_asks_for_the_tick_that_it_needs() -> None:
    stage = Stage(rules())
    assert due(stage.state) is None
    stage.take(verdict())
    assert due(stage.state) == T0 + timedelta(seconds=2)


def test_the_interval_between_two_tries_does_not_grow_beyond_its_limit() -> None:
    stage = Stage(rules())
    stage.take(verdict())
    seconds = [second for second in range(1, 400) if stage.take(*tick(second))]
    gaps = [later - earlier for earlier, later in pairwise(seconds[4:])]
    assert set(gaps) == {60}


def test_an_isolate_that_nobody_carried_out_in_time_ends_and_says_so() -> None:
    stage = Stage(rules())
    (command,) = stage.commands(verdict())
    (state,) = stage.take(*tick(1800))
    assert isinstance(state, DesiredState)
    assert (state.isolated, state.holds) == (False, ())
    assert state.note == f"expired: command {command.id} was not carried out"
    assert stage.take(*tick(1900)) == []
    assert stage.commands(verdict(card("gpu18"), "inc-2"), 1901)[0].held is None


def test_an_ack_that_comes_after_the_end_puts_the_hold_back() -> None:
    stage = Stage(rules())
    (command,) = stage.commands(verdict())
    stage.take(*tick(1800))
    (state,) = stage.take(ack(command), 1801)
    assert isinstance(state, DesiredState)
    assert (state.isolated, state.level) == (True, Level.DRAIN)


def test_a_release_is_sent_until_it_is_acknowledged_however_long_that_takes() -> None:
    stage = Stage(rules())
    stage.take(verdict())
    (back,) = stage.commands(request(RequestAction.RELEASE), 10)
    week = 7 * 86400.0
    assert stage.take(*tick(week)) == [back]
    stage.take(ack(back, AckStatus.FAILED), week + 1)
    assert stage.take(*tick(week + 40)) == [back]
    stage.take(ack(back), week + 41)
    assert due(stage.state) is None


def test_a_failed_command_is_tried_again_three_times_and_its_hold_stays() -> None:
    stage = Stage(rules())
    (command,) = stage.commands(verdict())
    second = 0.0
    for _ in range(3):
        stage.take(ack(command, AckStatus.FAILED), second)
        assert stage.take(*tick(second + 29)) == []
        second += 30
        assert stage.take(*tick(second)) == [command]
    stage.take(ack(command, AckStatus.FAILED), second)
    assert due(stage.state) is None
    assert stage.state.parts[command.domain_id].holds


@pytest.mark.parametrize(
    ("mode", "status", "settled"),
    [
        (Mode.SHADOW, AckStatus.SKIPPED, True),
        (Mode.ENFORCE, AckStatus.SKIPPED, False),
        (Mode.ENFORCE, AckStatus.DONE, True),
        (Mode.ENFORCE, AckStatus.EXPIRED, True),
    ],
)
def test_what_an_ack_settles(mode: Mode, status: AckStatus, settled: bool) -> None:
    stage = Stage(rules(mode=mode))
    (command,) = stage.commands(verdict())
    stage.take(ack(command, status), 1)
    assert (command.id not in stage.state.outbox) is settled


def test_an_ack_of_an_unknown_command_changes_nothing() -> None:
    stage = Stage(rules())
    (command,) = Stage(rules()).commands(verdict())
    before = stage.state
    assert stage.take(ack(command)) == []
    assert stage.state == before


def test_a_refused_isolate_is_shown_and_sent_until_its_time_is_up() -> None:
    stage = Stage(rules())
    (command,) = stage.commands(verdict())
    no = replace(ack(command, AckStatus.REFUSED), detail="over its own budget")
    (state,) = stage.take(no, 1)
    assert isinstance(state, DesiredState)
    assert (state.isolated, state.note) == (
        True,
        "isolate refused by slurm: over its own budget",
    )
    assert stage.take(no, 2) == [], "the same refusal is no news"
    assert stage.commands(*tick(3)) == [command]
    (ended,) = stage.take(*tick(1800))
    assert isinstance(ended, DesiredState)
    assert ended.note == (
        f"expired: command {command.id} was not carried out (refused by slurm: over its own budget)"
    )


def test_a_refusal_is_forgotten_when_a_scheduler_carries_the_command_out() -> None:
    stage = Stage(rules())
    (command,) = stage.commands(verdict())
    stage.take(replace(ack(command, AckStatus.REFUSED), detail="unsigned"), 1)
    (state,) = stage.take(ack(command), 2)
    assert isinstance(state, DesiredState)
    assert (state.isolated, state.note) == (True, None)


def test_a_refused_release_is_shown_and_not_sent_for_ever() -> None:
    stage = Stage(rules())
    stage.take(verdict())
    (back,) = stage.commands(request(RequestAction.RELEASE), 10)
    second, sent, notes = 11.0, 0, []
    while due(stage.state) is not None:
        assert second < 10_000, "a refused release is sent for ever"
        no = replace(ack(back, AckStatus.REFUSED), detail="unsigned")
        notes += [out.note for out in stage.take(no, second) if isinstance(out, DesiredState)]
        second += 40
        sent += len(stage.commands(*tick(second)))
    assert sent == 3
    assert notes == [
        "release refused by slurm: unsigned",
        "release refused by slurm: unsigned; not sent again",
    ]
    (again,) = stage.commands(request(RequestAction.RELEASE, id="r2"), second)
    assert again.generation == back.generation + 1


def test_a_refused_dry_run_is_settled() -> None:
    stage = Stage(rules(mode=Mode.SHADOW))
    (shown,) = stage.commands(verdict())
    assert stage.take(ack(shown, AckStatus.REFUSED), 1) == []
    assert stage.state.outbox == {}
