"""Each rule can be held in shadow or switched off, whatever the mode."""

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from evidence.decisions import Command, DesiredState, Level, RequestAction
from rules.isolation import Output
from rules.policy import Mode, load
from rules.rulebook import Maturity

from .isolation_stage import Governed, Stage, card, request, roomy, rules, verdict


def governed(**by_rule: dict[str, Any]) -> Governed:
    known = dict(load().rules)
    for word, settings in by_rule.items():
        name = word.replace("_", "-")
        known[name] = {**known.get(name, {}), **settings}
    return roomy(rules=MappingProxyType(known))


SHADOW = {"maturity": Maturity.SHADOW}
OFF = {"enabled": False}


def kinds(outputs: list[Output]) -> list[type]:
    return [type(one) for one in outputs]


def test_a_shadow_rule_only_shows_what_it_would_do_while_others_act() -> None:
    stage = Stage(governed(two_witnesses=SHADOW))
    (shown,) = stage.take(verdict(rule="two-witnesses"))
    assert isinstance(shown, Command)
    assert (shown.dry_run, shown.level) == (True, Level.DRAIN)
    outputs = stage.take(verdict(card("gpu18"), "inc-2", rule="three-witnesses"))
    assert kinds(outputs) == [Command, DesiredState]


def test_a_rule_that_is_off_isolates_nothing_and_leaves_no_trace() -> None:
    stage = Stage(governed(over_temperature=OFF))
    before = stage.state
    assert stage.take(verdict(rule="over-temperature")) == []
    assert stage.state == before
    assert len(stage.commands(verdict(incident="inc-2", rule="gpu-lost"))) == 1


@pytest.mark.parametrize(
    ("settings", "rule", "acts"),
    [
        ({"xid": SHADOW}, "xid-48", False),
        ({"xid": SHADOW, "xid_48": {"maturity": Maturity.STABLE}}, "xid-48", True),
        ({"xid": SHADOW}, "sxid-12028", True),
        ({"default": SHADOW}, "sxid-12028", True),  # shipped: sxid has an entry of its own
        ({"default": SHADOW}, "never-heard-of", False),
        ({"default": SHADOW}, None, False),
        ({}, None, True),
    ],
)
def test_a_rule_without_an_entry_has_its_familys_or_the_defaults(
    settings: dict[str, Any], rule: str | None, acts: bool
) -> None:
    (command,) = Stage(governed(**settings)).commands(verdict(rule=rule))
    assert command.dry_run is not acts


def test_a_shadow_rule_adds_nothing_to_a_part_that_is_really_out() -> None:
    stage = Stage(governed(two_witnesses=SHADOW))
    stage.take(verdict(rule="gpu-lost"))
    assert stage.take(verdict(incident="inc-2", rule="two-witnesses"), 5) == []
    (back, _) = stage.take(request(RequestAction.RELEASE), 10)
    assert isinstance(back, Command)
    assert not back.dry_run


def test_a_stable_rule_acts_on_a_part_that_a_shadow_rule_only_showed() -> None:
    stage = Stage(governed(two_witnesses=SHADOW))
    (shown,) = stage.commands(verdict(rule="two-witnesses"))
    (real,) = stage.commands(verdict(incident="inc-2", rule="gpu-lost"), 5)
    assert (shown.dry_run, real.dry_run) == (True, False)


def test_a_dry_run_and_its_real_command_are_told_apart_by_their_ids() -> None:
    (shown,) = Stage(rules(mode=Mode.SHADOW)).commands(verdict())
    (real,) = Stage(rules()).commands(verdict())
    assert shown.id != real.id
    assert replace_id(shown) == replace_id(real)


def replace_id(command: Command) -> tuple[str, str, int]:
    return command.domain_id, command.incident, command.generation


def test_a_persons_release_of_what_was_only_shown_is_real() -> None:
    stage = Stage(rules(mode=Mode.SHADOW))
    stage.take(verdict())
    outputs = stage.take(request(RequestAction.RELEASE), 5)
    assert kinds(outputs) == [Command, DesiredState]
    assert isinstance(outputs[0], Command)
    assert not outputs[0].dry_run


def test_vary_in_code_is_what_a_file_does() -> None:
    assert replace(load(), rules={}).rule("xid-48").muted is None
