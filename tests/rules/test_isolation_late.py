"""Verdicts of a worker that works off a backlog: what ended the fault may be right behind them."""

from datetime import timedelta

import pytest

from evidence.decisions import Status, Verdict
from tests.rules.isolation_stage import T0, Stage, roomy, tick, verdict

HOUR = 3600.0


def decided(second: float, **fields: object) -> Verdict:
    at = T0 + timedelta(seconds=second)
    return verdict(at=at, decided_at=at, revision=1, **fields)


def test_a_hard_verdict_of_hours_ago_waits_and_its_recovery_overtakes_it() -> None:
    stage = Stage(roomy())
    assert stage.commands(decided(1), 5 * HOUR) == []
    back = decided(HOUR, status=Status.RECOVERED, hard=False)
    assert stage.commands(back, 5 * HOUR + 3) == []
    assert stage.commands(*tick(5 * HOUR + 60)) == []


def test_one_that_nothing_follows_is_acted_upon_after_the_wait() -> None:
    stage = Stage(roomy())
    assert stage.commands(decided(1), 5 * HOUR) == []
    assert len(stage.commands(*tick(5 * HOUR + 10))) == 1


@pytest.mark.parametrize("late", [0.0, 0.5, 1.9])
def test_one_that_is_fresh_is_acted_upon_at_once(late: float) -> None:
    assert len(Stage(roomy()).commands(decided(1), 1 + late)) == 1


def test_a_card_that_a_plan_explains_a_moment_later_is_never_out() -> None:
    """A worker that starts behind its agents reads frames before the reset that was announced."""
    stage = Stage(roomy())
    assert stage.commands(decided(1), 7.4) == []
    explained = verdict(
        at=T0 + timedelta(seconds=1), decided_at=T0 + timedelta(seconds=1), revision=2,
        status=Status.SUSPECTED, hard=False, explained_by="reset",
    )  # fmt: skip
    assert stage.commands(explained, 7.4) == []
    assert stage.commands(*tick(60)) == []


def test_a_stale_verdict_commands_nothing_and_withdraws_nothing_that_is_out() -> None:
    stage = Stage(roomy())
    assert len(stage.commands(decided(1), 1)) == 1
    stale = decided(2, muted="stale", hard=False, status=Status.SUSPECTED)
    assert stage.take(stale, 2) == []
    assert [part.holds for part in stage.state.parts.values()] != [()]
