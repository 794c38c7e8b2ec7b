from dataclasses import replace
from datetime import timedelta

from evidence.decisions import (
    Action,
    Cause,
    Domain,
    DomainKind,
    RequestAction,
)
from evidence.records import Mig
from rules.policy import CardCosts, load

from .isolation_stage import T0, Stage, card, node, request, roomy, rules, verdict


def test_parts_inside_an_isolated_node_issue_nothing_until_it_is_back() -> None:
    stage = Stage(roomy())
    stage.take(verdict(node(), cause=Cause.NODE))
    inside = (
        card(),
        Domain(kind=DomainKind.NVLINK, host="gpu17", pci="0000:4f:00", link=2),
        Domain(kind=DomainKind.MIG, host="gpu17", pci="0000:4f:00", mig=Mig(1)),
    )
    for number, domain in enumerate(inside):
        assert stage.take(verdict(domain, f"inside-{number}"), 1) == []
    assert len(stage.commands(verdict(card("gpu18"), "other"), 1)) == 1
    stage.take(request(RequestAction.RELEASE, node()), 10)
    again = verdict(card(), "after", at=T0 + timedelta(seconds=20))
    assert len(stage.commands(again, 20)) == 1


def test_a_mig_instance_or_link_of_an_isolated_card_issues_nothing() -> None:
    stage = Stage(roomy())
    stage.take(verdict(card(uuid="GPU-aa")))
    mig = Domain(kind=DomainKind.MIG, host="gpu17", pci="0000:4f:00", mig=Mig(1))
    assert stage.take(verdict(mig, "inc-2"), 1) == []


def test_nodes_of_an_isolated_rack_and_links_of_an_isolated_switch_issue_nothing() -> None:
    budget = replace(load().budget, rack_absolute=1.0, node_absolute=9.0)
    stage = Stage(rules(budget=budget))
    stage.take(verdict(Domain(kind=DomainKind.RACK, rack="r9"), cause=Cause.NODE))
    assert stage.take(verdict(node(), "inc-2", cause=Cause.NODE, rack="r9")) == []
    stage.take(
        verdict(Domain(kind=DomainKind.SWITCH, switch="0x1"), "inc-3", cause=Cause.IB_SWITCH)
    )
    link = Domain(kind=DomainKind.LINK, switch="0x1", port=3)
    assert stage.take(verdict(link, "inc-4", cause=Cause.IB_LINK)) == []


def test_a_node_after_one_of_its_cards_costs_nothing_more_and_returns_with_it() -> None:
    stage = Stage(rules())
    (first,) = stage.commands(verdict(rule="xid-79", cause=Cause.GPU_LOST))
    whole = verdict(node(), "inc-node", at=T0 + timedelta(seconds=1), cause=Cause.NODE)
    (second,) = stage.commands(whole, 900)
    assert (first.held, second.held, second.domain_id) == (None, None, "node:gpu17")
    held = stage.commands(verdict(card("gpu18"), "inc-3"), 901)[0].held
    assert held is not None
    assert "1 of 1 node" in held
    back, card_back = stage.commands(request(RequestAction.RELEASE, node()), 1000)
    assert (back.action, back.domain_id) == (Action.RELEASE, "node:gpu17")
    assert (card_back.action, card_back.domain_id) == (Action.RELEASE, first.domain_id)
    assert card_back.reason == "tested (with node:gpu17)"
    assert stage.commands(verdict(card("gpu19"), "inc-4"), 1001)[0].held is None


def test_all_cards_lost_one_by_one_and_then_the_node_cost_one_node() -> None:
    stage = Stage(rules(budget=replace(load().budget, card_costs=CardCosts.CARD)))
    for number in range(8):
        one = verdict(card(pci=f"0000:{number:02x}:00"), f"inc-{number}", cause=Cause.GPU_LOST)
        assert stage.commands(one, number / 10)[0].held is None
    (command,) = stage.commands(verdict(node(), "inc-node", cause=Cause.NODE), 900)
    assert command.held is None
    inside = verdict(card(pci="0000:07:00"), "inc-7", revision=2)
    assert stage.take(inside, 901) == []
    assert len(stage.commands(request(RequestAction.RELEASE, node()), 1000)) == 9


def test_a_release_of_the_node_says_what_somebody_else_keeps_out() -> None:
    stage = Stage(roomy())
    stage.take(request(RequestAction.HOLD, by="bo"))
    stage.take(verdict(node(), cause=Cause.NODE), 1)
    (back,) = stage.commands(request(RequestAction.RELEASE, node()), 10)
    assert back.reason == "tested; still out: gpu:gpu17/0000:4f:00"
    assert stage.state.parts["gpu:gpu17/0000:4f:00"].holds


def test_evidence_older_than_the_release_of_its_node_never_counts() -> None:
    stage = Stage(roomy())
    stage.take(verdict(node(), cause=Cause.NODE))
    assert stage.take(verdict(card(), "inside"), 1) == []
    stage.take(request(RequestAction.RELEASE, node()), 10)
    assert stage.take(verdict(card(), "inside", revision=2), 11) == []
    newer = verdict(card(), "newer", at=T0 + timedelta(seconds=12))
    assert len(stage.commands(newer, 12)) == 1


def test_a_held_card_waits_no_more_once_its_node_is_out() -> None:
    stage = Stage(rules())
    stage.take(verdict(card("gpu1"), "inc-0"))
    (held,) = stage.commands(verdict(card("gpu2"), "inc-1"), 1)
    assert held.held is not None
    stage.take(request(RequestAction.ISOLATE, node("gpu2")), 2)
    assert held.id not in stage.state.outbox
    assert stage.state.parts[held.domain_id].held is None


def test_dismissing_a_held_node_leaves_its_card_out() -> None:
    stage = Stage(
        rules(budget=replace(load().budget, node_absolute=0.125, card_costs=CardCosts.CARD))
    )
    stage.take(verdict())
    (held,) = stage.commands(verdict(node(), "inc-2", cause=Cause.NODE), 1)
    assert held.held is not None
    (back,) = stage.commands(request(RequestAction.RELEASE, node()), 2)
    assert back.reason == "tested; still out: gpu:gpu17/0000:4f:00"


def test_an_nvswitch_of_a_node_costs_that_node_and_holds_its_cards() -> None:
    stage = Stage(rules())
    switch = Domain(kind=DomainKind.NODE, host="gpu17", switch="0000:a9:00", port=30)
    (command,) = stage.commands(verdict(switch, cause=Cause.NVSWITCH))
    assert (command.domain_id, command.held) == ("node:gpu17", None)
    assert stage.take(verdict(card(), "inc-2"), 1) == []
    assert stage.commands(verdict(card("gpu18"), "inc-3"), 2)[0].held is not None


def test_a_link_that_names_no_port_is_nothing_a_scheduler_can_take_out() -> None:
    for link in (
        Domain(kind=DomainKind.LINK, host="gpu17"),
        Domain(kind=DomainKind.LINK, switch="0x1"),
    ):
        assert Stage(roomy()).take(verdict(link, cause=Cause.IB_LINK)) == []


def test_a_waiting_rack_explains_its_nodes_then_and_not_what_a_card_does_next_week() -> None:
    stage = Stage(rules(budget=replace(load().budget, node_absolute=9.0)))
    (held,) = stage.commands(verdict(Domain(kind=DomainKind.RACK, rack="r9"), cause=Cause.NODE))
    assert held.held is not None
    assert stage.take(verdict(node(), "inc-2", cause=Cause.NODE, rack="r9"), 900) == []
    week = 7 * 86400.0
    later = verdict(card(), "inc-3", rack="r9", at=T0 + timedelta(seconds=week))
    assert len(stage.commands(later, week)) == 1
