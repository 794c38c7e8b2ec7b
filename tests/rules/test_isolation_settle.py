"""What is not a hard fact waits for the rest, and then goes in an order of its own."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evidence.decisions import Cause, Command, Domain, DomainKind, Status, Verdict
from rules.isolation import due
from rules.policy import load

from .isolation_stage import T0, Governed, Stage, card, node, roomy, rules, tick, verdict


def soft(domain: Domain, second: float, **fields: object) -> Verdict:
    at = T0 + timedelta(seconds=second)
    return verdict(domain, f"inc-{domain.id}", at=at, hard=False, **fields)


def run(governed: Governed, arriving: list[tuple[float, Verdict]]) -> list[Command]:
    """Everything commanded, each once: what nobody answers is sent again meanwhile."""
    stage = Stage(governed)
    commands = [command for second, one in arriving for command in stage.commands(one, second)]
    if (at := stage.state.settles_at) is not None:
        commands += stage.commands(*tick((at - T0).total_seconds()))
    assert stage.state.settles_at is None
    return list({one.id: one for one in commands}.values())


def said(commands: list[Command]) -> set[tuple[str, str, str, bool]]:
    return {(one.id, one.domain_id, one.level, one.held is not None) for one in commands}


def test_a_verdict_that_is_not_hard_waits_ten_seconds_for_the_rest() -> None:
    stage = Stage(rules())
    assert stage.take(soft(card(), 0), 3) == []
    assert due(stage.state) == T0 + timedelta(seconds=13)
    assert stage.take(*tick(12.9)) == []
    (command,) = stage.commands(*tick(13))
    assert command.domain_id == "gpu:gpu17/0000:4f:00"
    assert due(stage.state) == T0 + timedelta(seconds=15)


def test_what_arrives_after_the_wait_ends_it_whether_or_not_a_tick_came() -> None:
    stage = Stage(rules())
    stage.take(soft(card("gpu18"), 5), 0)
    (command,) = stage.commands(soft(card("gpu17"), 1), 10)
    assert command.domain.host == "gpu18"
    assert [one.domain.host for one in stage.state.waiting] == ["gpu17"]


def test_a_revision_that_takes_it_back_within_the_wait_leaves_nothing() -> None:
    stage = Stage(rules())
    stage.take(soft(card(), 0, revision=1), 0)
    for status in (Status.VICTIM, Status.RECOVERED, Status.SUSPECTED):
        stage.take(soft(card(), 0, revision=2), 1)
        stage.take(soft(card(), 0, revision=3, status=status), 2)
        assert stage.state.waiting == ()
    assert due(stage.state) is None


def test_a_newer_revision_takes_the_older_ones_place_and_does_not_begin_the_wait_anew() -> None:
    stage = Stage(rules())
    stage.take(soft(card(), 0, revision=1), 0)
    stage.take(soft(card(), 0, revision=2, reason="And NVML agrees."), 6)
    assert stage.take(soft(card(), 0, revision=1), 7) == []
    (command,) = stage.commands(*tick(10))
    assert command.reason == "And NVML agrees."


def test_a_revision_that_has_become_hard_acts_at_once() -> None:
    stage = Stage(rules())
    stage.take(soft(card(), 0, revision=1), 0)
    later = replace_hard(soft(card(), 0, revision=2))
    assert len(stage.commands(later, 1)) == 1
    assert stage.state.waiting == ()


def replace_hard(one: Verdict) -> Verdict:
    return verdict(one.domain, one.incident, at=one.at, revision=one.revision)


def test_a_hard_fact_goes_before_all_that_waits() -> None:
    first = [(0.0, soft(card("gpu18"), 0)), (4.0, verdict(card("gpu19"), "hard"))]
    other = [(0.0, verdict(card("gpu19"), "hard")), (4.0, soft(card("gpu18"), 0))]
    assert said(run(rules(), first)) == said(run(rules(), other))
    (hard, held) = run(rules(), first)
    assert (hard.domain.host, hard.held, held.domain.host) == ("gpu19", None, "gpu18")
    assert held.held is not None


def test_a_node_that_waits_beside_its_card_is_the_only_command() -> None:
    for arriving in ([card(), node()], [node(), card()]):
        told = [(n, soft(d, n, cause=Cause.NODE)) for n, d in enumerate(arriving)]
        (command,) = run(roomy(), told)  # type: ignore[arg-type]
        assert command.domain_id == "node:gpu17"


def test_a_wait_of_zero_is_none() -> None:
    assert len(Stage(rules(settle_s=0.0)).commands(soft(card(), 0))) == 1


def test_a_flood_does_not_wait() -> None:
    stage = Stage(roomy())
    commands = [
        command for n in range(600) for command in stage.commands(soft(card(f"n{n}"), n), 0)
    ]
    assert len(commands) == 513
    assert len(stage.state.waiting) == 87


def test_what_waits_carries_no_more_than_its_command_needs() -> None:
    long = soft(card(), 0, victims=tuple(card(f"n{n}") for n in range(99)), missing=("x" * 999,))
    stage = Stage(rules())
    stage.take(long)
    (kept,) = stage.state.waiting
    assert (kept.victims, kept.missing, [ref.id for ref in kept.evidence]) == ((), (), ["e1"])


PARTS = [
    *(card(f"gpu{n}", pci) for n in range(4) for pci in ("0000:1b:00", "0000:9c:00")),
    *(node(f"gpu{n}") for n in range(2)),
    *(Domain(kind=DomainKind.LINK, switch="0x7f", port=port) for port in range(4)),
    Domain(kind=DomainKind.SWITCH, switch="0x7e"),
]
TOLD = [soft(part, number % 5) for number, part in enumerate(PARTS)]


@given(st.permutations(TOLD), st.integers(1, 3), st.data())
@settings(max_examples=40, deadline=None)
def test_any_order_of_arrival_within_the_wait_gives_the_same_commands(
    arriving: list[Verdict], nodes: int, data: st.DataObject
) -> None:
    governed = rules(budget=replace(load().budget, node_absolute=float(nodes)))
    seconds = sorted(data.draw(st.lists(st.floats(0, 9.9), min_size=len(TOLD), max_size=len(TOLD))))
    shuffled = run(governed, list(zip(seconds, arriving, strict=True)))
    plain = run(governed, list(zip(seconds, TOLD, strict=True)))
    assert said(shuffled) == said(plain)
    out = [one.domain for one in shuffled if one.held is None]
    assert len({part.host for part in out if part.host}) == nodes
    assert sum(part.kind is DomainKind.LINK for part in out) == 2


@pytest.mark.parametrize("ticks", [(12,), (12, 13, 14), (30,)])
def test_how_often_time_is_told_changes_no_command(ticks: tuple[int, ...]) -> None:
    stage = Stage(rules())
    for one in TOLD:
        stage.take(one, 2)
    commands = [c for second in ticks for c in stage.commands(*tick(second))]
    assert said(commands) == said(run(rules(), [(2.0, one) for one in TOLD]))
