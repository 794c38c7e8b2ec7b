"""Every verdict names the rule behind it, by a name that a policy may speak of."""

from dataclasses import replace
from typing import Any

import pytest

from rules import attribution
from rules.rulebook import Maturity, family_of, is_rule
from rules.tables import Rules

from .conftest import Node


def rules_of(node: Node) -> set[str | None]:
    return {verdict.rule for verdict in node.latest()}


def test_every_name_that_a_verdict_can_be_given_is_one_a_policy_may_use() -> None:
    named = (
        *attribution._BY_SUBJECT.values(),
        *attribution._BY_WORD.values(),
        *attribution._AGREED.values(),
        *("collective-alone", "repeats", "link-repeats", "driver-chain"),
        *("rack", "hot-rack", "switch", "fabric-errors", "xid-79", "sxid-12028", "nvml-15"),
    )
    assert [name for name in named if not is_rule(name)] == []
    assert not any(map(is_rule, ("xid-", "xid-0", "XID-79", "two witnesses", "")))
    assert [family_of(name) for name in ("xid-74", "sxid-1", "rack")] == ["xid", "sxid", "default"]


@pytest.mark.parametrize(
    ("codes", "rule"),
    [((79,), "xid-79"), ((48, 63, 94), "driver-chain"), ((119,), "xid-119"), ((13,), "xid-13")],
)
def test_a_kernel_log_alone_names_its_code_or_the_chain(
    codes: tuple[int, ...], rule: str, node: Node, records: Any
) -> None:
    node.feed(records.quiet())
    for number, code in enumerate(codes):
        node.take(records.kernel(10 + number / 100, code=code))
    node.run_on()
    assert rules_of(node) == {rule}


def test_a_hot_card_names_the_threshold(node: Node, records: Any) -> None:
    for second in range(0, 900, 30):
        node.take(records.frame((second, {2: {"temperature_c": 93}})))
    node.run_on()
    assert "over-temperature" in rules_of(node)


def test_all_cards_at_once_name_the_widening(node: Node, records: Any) -> None:
    node.feed(records.quiet())
    for gpu in range(8):
        node.take(records.kernel(10 + gpu / 100, gpu, code=79))
    node.run_on()
    assert "all-gpus" in rules_of(node)


@pytest.mark.parametrize(
    ("settings", "muted"),
    [
        ({}, None),
        ({"xid-79": {"enabled": False}}, "off"),
        ({"xid-79": {"maturity": Maturity.SHADOW}}, "shadow"),
    ],
)
def test_a_rule_that_is_held_back_is_still_said_and_marked(
    settings: dict[str, Any], muted: str | None, rules: Rules, records: Any
) -> None:
    policy = replace(rules.policy, rules={**rules.policy.rules, **settings})
    node = Node(replace(rules, policy=policy))
    node.feed([*records.quiet(), records.kernel(10, code=79)])
    node.run_on()
    (verdict,) = node.latest()
    assert (verdict.status, verdict.rule, verdict.muted) == ("localized", "xid-79", muted)
