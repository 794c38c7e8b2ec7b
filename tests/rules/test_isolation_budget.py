from dataclasses import replace

from msgspec import structs

from evidence.decisions import (
    Action,
    Cause,
    Command,
    Domain,
    DomainKind,
    Level,
    RequestAction,
)
from rules.isolation import rebuild
from rules.policy import CardCosts, Mode, load

from .isolation_stage import Stage, ack, card, node, request, rules, verdict


def test_the_second_node_within_the_hour_is_held_and_the_next_hour_is_free() -> None:
    stage = Stage(rules())
    assert stage.commands(verdict())[0].held is None
    (held,) = stage.take(verdict(card("gpu18"), "inc-2"), 3599)
    assert isinstance(held, Command)
    assert held.held == (
        "Budget: 1 of 1 node capacity left service in the last 3600 s, and this would make it 2."
    )
    (free,) = stage.commands(verdict(card("gpu19"), "inc-3"), 3600)
    assert free.held is None


def test_a_second_card_of_a_node_that_is_paid_for_costs_nothing() -> None:
    stage = Stage(rules())
    stage.take(verdict())
    (command,) = stage.commands(verdict(card(pci="0000:5d:00"), "inc-2"))
    assert command.held is None


def test_where_a_card_can_be_isolated_alone_it_costs_its_share() -> None:
    budget = replace(load().budget, card_costs=CardCosts.CARD, node_absolute=0.25)
    stage = Stage(rules(budget=budget))
    held = [
        stage.commands(verdict(card(f"gpu{number}"), f"inc-{number}"))[0].held is not None
        for number in range(4)
    ]
    assert held == [False, False, True, True]
    assert stage.commands(verdict(node("gpu9"), "inc-9", cause=Cause.NODE))[0].held is not None


def test_one_percent_of_a_large_fleet_is_more_than_one_node() -> None:
    stage = Stage(rules(budget=replace(load().budget, fleet_nodes=300)))
    held = [
        stage.commands(verdict(card(f"gpu{number}"), f"inc-{number}"))[0].held is not None
        for number in range(4)
    ]
    assert held == [False, False, False, True]


def test_a_rack_is_always_held_and_links_have_their_own_budget() -> None:
    stage = Stage(rules())
    rack = Domain(kind=DomainKind.RACK, rack="r9")
    assert stage.commands(verdict(rack, cause=Cause.NODE))[0].held is not None
    links = [Domain(kind=DomainKind.LINK, switch="0x1", port=port) for port in range(3)]
    held = [
        stage.commands(verdict(link, link.id, cause=Cause.IB_LINK))[0].held is not None
        for link in links
    ]
    assert held == [False, False, True]


def test_a_person_can_isolate_what_the_budget_holds_and_release_it_again() -> None:
    stage = Stage(rules())
    stage.take(verdict())
    stage.take(verdict(card("gpu18"), "inc-2"), 1)
    (command,) = stage.commands(request(RequestAction.ISOLATE, card("gpu18"), level=Level.DRAIN), 2)
    assert (command.held, command.by, command.level) == (None, "ana", Level.DRAIN)
    (back,) = stage.commands(request(RequestAction.RELEASE, card("gpu18")), 3)
    assert (back.action, back.held, back.act_by) == (Action.RELEASE, None, None)


def test_what_a_person_takes_out_counts_and_what_returned_does_not() -> None:
    stage = Stage(rules())
    stage.take(request(RequestAction.ISOLATE, node("gpu30")))
    assert stage.commands(verdict())[0].held is not None
    stage.take(request(RequestAction.RELEASE, node("gpu30")), 1)
    assert stage.commands(verdict(card("gpu18"), "inc-2"), 2)[0].held is None


def test_releasing_a_held_command_ends_its_incident() -> None:
    stage = Stage(rules())
    stage.take(verdict())
    (held,) = stage.commands(verdict(card("gpu18"), "inc-2"), 1)
    stage.take(request(RequestAction.RELEASE, card("gpu18")), 2)
    assert held.id not in stage.state.outbox
    assert stage.take(verdict(card("gpu18"), "inc-2", revision=1), 7200) == []


def test_what_others_drained_counts_until_they_say_it_is_back() -> None:
    stage = Stage(rules())
    assert stage.take(request(RequestAction.OUT, node("gpu44"), by="slurm")) == []
    held = stage.commands(verdict(), 1)[0].held
    assert held is not None
    assert "1 of 1 node" in held
    assert stage.take(request(RequestAction.BACK, node("gpu44"), by="slurm"), 2) == []
    assert stage.commands(verdict(card("gpu18"), "inc-2"), 3)[0].held is None


def test_what_others_drained_counts_for_shadow_too_and_for_an_hour_only() -> None:
    stage = Stage(rules(mode=Mode.SHADOW))
    stage.take(request(RequestAction.OUT, node("gpu44")))
    assert stage.commands(verdict(), 3599)[0].held is not None
    assert stage.commands(verdict(card("gpu18"), "inc-2"), 3600)[0].held is None


def test_a_card_of_a_node_that_others_drained_costs_nothing_more() -> None:
    stage = Stage(rules())
    stage.take(request(RequestAction.OUT, node()))
    assert stage.commands(verdict(), 1)[0].held is None
    stage.take(request(RequestAction.RELEASE), 2)
    assert stage.commands(verdict(card("gpu18"), "inc-2"), 3)[0].held is not None


def test_a_rebuilt_stage_still_counts_what_is_out() -> None:
    stage = Stage(rules())
    states = stage.states(verdict(), 5)
    again = Stage(rules(), rebuild(states))
    assert again.commands(verdict(card("gpu18"), "inc-2"), 60)[0].held is not None
    assert again.commands(verdict(card("gpu19"), "inc-3"), 3606)[0].held is None


def test_what_others_drained_counts_until_they_say_that_it_is_back() -> None:
    stage = Stage(rules())
    stage.take(request(RequestAction.OUT, node("gpu40"), id="o1"), 1)
    stage.take(request(RequestAction.OUT, node("gpu40"), id="o2"), 2)
    (held,) = stage.commands(verdict(), 3)
    assert held.held is not None
    stage.take(request(RequestAction.BACK, node("gpu40"), id="b1"), 4)
    (free,) = stage.commands(verdict(card("gpu18"), "inc-2"), 5)
    assert free.held is None


def test_a_card_that_its_scheduler_took_with_the_node_costs_the_node() -> None:
    budget = replace(load().budget, card_costs=CardCosts.CARD, node_absolute=1.0)
    stage = Stage(rules(budget=budget))
    (first,) = stage.commands(verdict())
    stage.take(structs.replace(ack(first), took=DomainKind.NODE), 1)
    (second,) = stage.commands(verdict(card("gpu18"), "inc-2"), 2)
    assert second.held is not None
    (same,) = stage.commands(verdict(card(pci="0000:9b:00"), "inc-3"), 3)
    assert same.held is None, "its node is paid for"


def test_two_cards_and_their_node_cost_one_node() -> None:
    stage = Stage(rules())
    told = [card(), card(pci="0000:9b:00"), node()]
    commands = [
        command
        for number, domain in enumerate(told)
        for command in stage.commands(verdict(domain, f"inc-{number}", cause=Cause.NODE), number)
    ]
    assert [one.held for one in commands] == [None, None, None]
