"""The picture of what is out, made of what the topics hold; without a broker."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec

from evidence.decisions import (
    Ack,
    AckStatus,
    Action,
    Cause,
    Command,
    DesiredState,
    Domain,
    DomainKind,
    Hold,
    Level,
    Request,
    RequestAction,
    Status,
    Verdict,
)
from ringfence.isolation import Overview, Topics, overview
from rules.policy import load

NOW = datetime(2026, 7, 8, 9, 0, tzinfo=UTC)
CARD = Domain(kind=DomainKind.GPU, host="tr-17", pci="0000:5e:00")
BUDGET = load().budget


def command(action: Action = Action.ISOLATE, domain: Domain = CARD, **fields: object) -> Command:
    told: dict[str, object] = {
        "id": f"c-{action}-{domain.id}",
        "level": Level.DRAIN,
        "cause": Cause.GPU_LOST,
        "reason": "It fell off the bus.",
        "incident": "i-1",
        "generation": 0,
        "issued_at": NOW - timedelta(minutes=5),
        "act_by": NOW + timedelta(minutes=25) if action is Action.ISOLATE else None,
    }
    return Command(action=action, domain=domain, domain_id=domain.id, **{**told, **fields})  # type: ignore[arg-type]


def state(domain: Domain = CARD, *, isolated: bool = True, **fields: object) -> DesiredState:
    hold = Hold(
        id="i-1",
        cause=Cause.GPU_LOST,
        by="ringfence",
        at=NOW - timedelta(minutes=5),
        reason="It fell off the bus.",
        level=Level.DRAIN,
    )
    told: dict[str, object] = {"generation": 0, "level": Level.DRAIN if isolated else None}
    return DesiredState(
        id="s",
        domain_id=domain.id,
        domain=domain,
        at=NOW,
        isolated=isolated,
        holds=(hold,) if isolated else (),
        **{**told, **fields},  # type: ignore[arg-type]
    )


def ack(of: Command, status: AckStatus = AckStatus.DONE, **fields: object) -> Ack:
    return Ack(
        id="a", command=of.id, domain_id=of.domain_id, at=NOW, scheduler="slurm", status=status,
        **fields,  # type: ignore[arg-type]
    )  # fmt: skip


def picture(*records: msgspec.Struct) -> Overview:
    found = Topics()
    for record in records:
        found.take(record)
    return overview(found, NOW, BUDGET)


def used(told: Overview) -> float:
    return next(one.used for one in told.budget if one.kind == "node")


def test_what_is_out_has_its_reason_author_time_and_level() -> None:
    out = command()
    (part,) = picture(out, state(), ack(out)).parts
    assert (part.status, part.level, part.by, part.why) == (
        "isolated",
        "drain",
        "ringfence",
        "It fell off the bus.",
    )
    assert (part.since, part.until, part.pending) == (NOW - timedelta(minutes=5), None, None)
    assert [one.status for one in part.answers] == [AckStatus.DONE]


def test_a_command_that_nobody_answered_is_pending_until_its_time_is_up() -> None:
    out = command()
    (part,) = picture(out, state()).parts
    assert (part.pending, part.until) == (out.id, out.act_by)


def test_a_held_command_waits_until_its_incident_is_over() -> None:
    held = command(held="Budget: 1 of 1.")
    assert picture(held).parts[0].status == "held"
    assert picture(held).parts[0].held == "Budget: 1 of 1."
    over = Verdict(
        id="v", incident="i-1", revision=2, at=NOW, decided_at=NOW, status=Status.RECOVERED,
        cause=Cause.GPU_LOST, domain=CARD, confidence=0.7, reason="It works again.",
    )  # fmt: skip
    assert picture(held, over).parts[0].status == "in-service"


def test_a_let_go_command_replaces_the_held_one() -> None:
    going = command(id="c-2", by="ana")
    assert picture(command(held="Budget."), going, state()).parts[0].status == "isolated"


def test_a_release_that_was_refused_is_shown() -> None:
    back = command(Action.RELEASE, generation=1)
    refused = ack(back, AckStatus.REFUSED, detail="unsigned")
    (part,) = picture(
        command(),
        back,
        state(isolated=False, generation=1, note="release refused by slurm"),
        refused,
    ).parts
    assert (part.status, part.note) == ("releasing", "release refused by slurm")
    assert [one.detail for one in part.answers] == ["unsigned"]


def test_what_is_back_costs_nothing_and_what_others_drained_does() -> None:
    other = Domain(kind=DomainKind.NODE, host="tr-18")
    out = Request(id="r1", at=NOW, action=RequestAction.OUT, domain=other, by="slurm")
    back = Request(id="r2", at=NOW, action=RequestAction.BACK, domain=other, by="slurm")
    assert used(picture(command(), state(), out)) == 2.0
    assert used(picture(command(), state(), out, back)) == 1.0
    assert used(picture(command(), state(isolated=False, generation=1))) == 0.0
    assert used(picture(command(dry_run=True))) == 0.0


def test_a_card_taken_out_with_its_node_costs_the_node() -> None:
    budget = replace(BUDGET, card_costs=type(BUDGET.card_costs)("card"))
    found = Topics()
    for record in (command(), state(), ack(command(), took=DomainKind.NODE)):
        found.take(record)
    assert used(overview(found, NOW, budget)) == 1.0
    found.acks.clear()
    assert used(overview(found, NOW, budget)) == 0.125


def test_an_alarm_about_many_nodes_stands_until_it_is_over() -> None:
    alarm = Verdict(
        id="v", incident="i-9", revision=1, at=NOW, decided_at=NOW, status=Status.SUSPECTED,
        cause=Cause.GPU_FIRMWARE, domain=Domain(kind=DomainKind.JOB, job="cluster"),
        confidence=0.7, reason="9 nodes failed alike.", rule="common-cause",
    )  # fmt: skip
    assert [one.reason for one in picture(alarm).alarms] == ["9 nodes failed alike."]
    over = msgspec.structs.replace(alarm, revision=2, status=Status.RECOVERED)
    assert picture(alarm, over).alarms == ()
