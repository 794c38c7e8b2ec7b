"""Many nodes of one rack that fail together are the rack, once, and not a node or card each."""

import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from evidence import decisions
from evidence.decisions import (
    Cause,
    Command,
    Domain,
    DomainKind,
    Says,
    Status,
    Verdict,
    Witness,
)
from evidence.identity import digest
from evidence.records import Tick
from rules import isolation, tables
from rules.desired import IsolationState, rebuild
from rules.policy import Mode
from rules.rulebook import Maturity
from rules.stage import Arrived
from rules.tables import Rules

START = datetime(2026, 6, 1, 2, 0, tzinfo=UTC)
TWO = (Witness.FABRIC, Witness.HEALTH)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def node_down(host: str, seconds: float, rack: str | None = "r41", **fields: Any) -> Verdict:
    witnesses = fields.pop("witnesses", TWO)
    domain = fields.pop("domain", Domain(kind=DomainKind.NODE, host=host, rack=rack))
    plain: dict[str, Any] = {
        "status": Status.SUSPECTED,
        "cause": Cause.NODE,
        "confidence": 0.5,
        "revision": 1,
    }
    return Verdict(
        id=digest(host, seconds, fields),
        incident=digest(host, "down"),
        at=at(seconds),
        decided_at=at(seconds),
        domain=domain,
        reason=f"{host} fell silent.",
        host=host,
        rack=rack,
        testimony=tuple(
            decisions.Testimony(witness=one, says=Says.ACCUSES, weight=0.3) for one in witnesses
        ),
        **(plain | fields),
    )


@dataclass(slots=True)
class Cluster:
    """The isolation stage, whose verdicts come back to it as in the stream."""

    rules: Rules
    state: IsolationState = field(default_factory=rebuild)
    verdicts: list[Verdict] = field(default_factory=list)
    commands: dict[str, Command] = field(default_factory=dict)

    def take(self, record: Any, seconds: float) -> None:
        arrived = Arrived("verdicts", record, at(seconds))
        self.state, outputs = isolation.step(self.state, arrived, self.rules)
        for output in outputs:
            if isinstance(output, Verdict):
                self.verdicts.append(output)
                self.take(output, seconds)
            elif isinstance(output, Command):
                self.commands[output.id] = output

    def tick(self, seconds: float) -> None:
        self.take(Tick(id=f"t{seconds}", at=at(seconds)), seconds)

    def isolated(self) -> list[str]:
        return sorted(one.domain_id for one in self.commands.values() if not one.held)


@pytest.fixture(scope="module")
def rules() -> Rules:
    loaded = tables.load()
    budget = replace(loaded.policy.budget, rack_absolute=1.0, node_absolute=100.0)
    policy = replace(loaded.policy, mode=Mode.ENFORCE, budget=budget)
    return replace(loaded, policy=policy)


@pytest.fixture
def cluster(rules: Rules) -> Cluster:
    return Cluster(rules)


def test_a_rack_that_loses_its_power_is_one_command(cluster: Cluster) -> None:
    for number in range(8):
        cluster.take(node_down(f"n{number}", number * 0.9), 30 + number)
    cluster.tick(50)
    (verdict,) = cluster.verdicts
    assert (verdict.domain.id, verdict.status, verdict.cause) == (
        "rack:r41",
        Status.LOCALIZED,
        Cause.NODE,
    )
    assert [one.host for one in verdict.victims] == [f"n{number}" for number in range(8)]
    assert cluster.isolated() == ["rack:r41"]


def test_its_nodes_are_not_isolated_after_it(cluster: Cluster) -> None:
    for number in range(4):
        cluster.take(node_down(f"n{number}", 1), 30)
    cluster.tick(50)
    for number in range(4):
        cluster.take(node_down(f"n{number}", 1, status=Status.LOCALIZED, revision=2), 900)
    assert cluster.isolated() == ["rack:r41"]


def test_a_rack_that_waits_for_a_person_holds_its_nodes_back_too(rules: Rules) -> None:
    budget = replace(rules.policy.budget, rack_absolute=0.0)
    cluster = Cluster(replace(rules, policy=replace(rules.policy, budget=budget)))
    for number in range(4):
        cluster.take(node_down(f"n{number}", 1), 30)
    cluster.tick(50)
    for number in range(4):
        cluster.take(node_down(f"n{number}", 1, status=Status.LOCALIZED, revision=2), 900)
    assert cluster.isolated() == []
    (held,) = [one for one in cluster.commands.values() if one.held]
    assert held.domain_id == "rack:r41"


@pytest.mark.parametrize(
    "verdicts",
    [
        pytest.param([node_down("n0", 0), node_down("n1", 0)], id="two nodes"),
        pytest.param(
            [node_down(f"n{n}", 0, rack=f"r{n}") for n in range(5)], id="one node a rack"
        ),
        pytest.param([node_down(f"n{n}", 0, rack=None) for n in range(5)], id="no rack told"),
        pytest.param([node_down(f"n{n}", n * 120) for n in range(5)], id="minutes apart"),
        pytest.param(
            [node_down(f"n{n}", 0, witnesses=(Witness.HEALTH,)) for n in range(8)],
            id="only silent: that may be our own pipeline",
        ),
        pytest.param(
            [node_down(f"n{n}", 0, explained_by="window") for n in range(8)], id="planned"
        ),
        pytest.param(
            [
                node_down(
                    f"n{n}", 0, cause=Cause.GPU_LOST, status=Status.LOCALIZED,
                    domain=Domain(kind=DomainKind.GPU, host=f"n{n}", pci="0000:3b:00"),
                )
                for n in range(5)
            ],
            id="cards, not nodes",
        ),
    ],
)  # fmt: skip
def test_less_than_that_is_no_rack(cluster: Cluster, verdicts: list[Verdict]) -> None:
    for verdict in verdicts:
        cluster.take(verdict, (verdict.at - START).total_seconds() + 30)
        cluster.tick((verdict.at - START).total_seconds() + 60)
    cluster.tick(2_000)
    assert cluster.verdicts == []


def test_nodes_that_come_back_before_it_settled_are_no_rack(cluster: Cluster) -> None:
    for number in range(4):
        cluster.take(node_down(f"n{number}", 0), 30)
    for number in range(3):
        cluster.take(node_down(f"n{number}", 0, status=Status.RECOVERED, revision=2), 35)
    cluster.tick(60)
    assert cluster.verdicts == []


def test_a_hot_rack_is_a_matter_of_the_building(cluster: Cluster) -> None:
    for number in range(4):
        hot = Domain(kind=DomainKind.GPU, host=f"n{number}", pci="0000:3b:00", rack="r41")
        cluster.take(
            node_down(f"n{number}", number * 100, cause=Cause.GPU_THERMAL, domain=hot),
            number * 100 + 1,
        )
    cluster.tick(600)
    (verdict,) = cluster.verdicts
    assert (verdict.cause, verdict.domain.id) == (Cause.FACILITY, "rack:r41")
    assert cluster.isolated() == []


def test_it_is_said_once_however_many_nodes_follow(cluster: Cluster) -> None:
    for number in range(3):
        cluster.take(node_down(f"n{number}", 0), 30)
    cluster.tick(45)
    for number in range(3, 8):
        cluster.take(node_down(f"n{number}", 1), 50)
    cluster.tick(70)
    cluster.tick(400)
    assert len(cluster.verdicts) == 1


def test_the_order_of_arrival_changes_nothing(rules: Rules) -> None:
    def told(seed: int) -> list[Verdict]:
        cluster = Cluster(rules)
        nodes = [node_down(f"n{number}", number) for number in range(6)]
        random.Random(seed).shuffle(nodes)
        for one in nodes:
            cluster.take(one, 30)
        cluster.tick(50)
        return cluster.verdicts

    assert all(told(seed) == told(0) for seed in range(1, 8))


def test_the_state_survives_its_table(cluster: Cluster) -> None:
    for number in range(3):
        cluster.take(node_down(f"n{number}", 0), 30)
    kept = msgspec.json.decode(msgspec.json.encode(cluster.state), type=IsolationState)
    assert kept == cluster.state
    assert isolation.due(kept) == at(40)


def test_a_node_that_failed_a_little_before_the_others_does_not_hide_the_rack(
    cluster: Cluster,
) -> None:
    cluster.take(node_down("n0", 0), 30)
    cluster.tick(41)
    for number in range(1, 4):
        cluster.take(node_down(f"n{number}", 20), 45)
    cluster.tick(56)
    (verdict,) = cluster.verdicts
    assert [one.host for one in verdict.victims] == ["n0", "n1", "n2", "n3"]


def test_a_second_failing_of_the_rack_is_told_again_although_the_first_still_stands(
    cluster: Cluster,
) -> None:
    for number in range(4):
        cluster.take(node_down(f"n{number}", 0), 30)
    cluster.tick(41)
    for number in range(4, 7):
        cluster.take(node_down(f"n{number}", 7200), 7230)
    cluster.tick(7241)
    first, second = cluster.verdicts
    assert first.incident != second.incident
    assert [one.host for one in second.victims] == ["n4", "n5", "n6"]


def test_two_incidents_of_one_node_are_one_node(cluster: Cluster) -> None:
    for number in range(3):
        one = node_down("n0", number, rack="r41")
        cluster.take(msgspec.structs.replace(one, incident=f"i{number}"), 30)
    cluster.take(node_down("n1", 1), 30)
    cluster.tick(60)
    assert cluster.verdicts == []


def test_a_rack_whose_nodes_are_back_is_told_and_what_waited_is_withdrawn(rules: Rules) -> None:
    budget = replace(rules.policy.budget, rack_absolute=0.0)
    cluster = Cluster(replace(rules, policy=replace(rules.policy, budget=budget)))
    for number in range(4):
        cluster.take(node_down(f"n{number}", 0), 30)
    cluster.tick(41)
    assert cluster.state.parts["rack:r41"].held is not None
    for number in range(4):
        back = node_down(f"n{number}", 0, status=Status.RECOVERED, revision=2)
        cluster.take(back, 3_000 + number)
    said, last = cluster.verdicts
    assert (last.incident, last.revision, last.status) == (said.incident, 2, Status.RECOVERED)
    assert last.reason == "The nodes of rack r41 work again but for n2, n3."
    assert cluster.state.parts["rack:r41"].held is None
    assert all(one.command.domain_id != "rack:r41" for one in cluster.state.outbox.values())


def test_cards_of_a_hot_rack_are_not_isolated_one_by_one(cluster: Cluster) -> None:
    for number in range(4):
        hot = Domain(kind=DomainKind.GPU, host=f"n{number}", pci="0000:3b:00", rack="r41")
        told = node_down(
            f"n{number}", number, cause=Cause.GPU_THERMAL, domain=hot, status=Status.LOCALIZED
        )
        cluster.take(told, number + 1)
    cluster.tick(60)
    later = Domain(kind=DomainKind.GPU, host="n7", pci="0000:3b:00", rack="r41")
    cluster.take(
        node_down("n7", 90, cause=Cause.GPU_THERMAL, domain=later, status=Status.LOCALIZED), 91
    )
    cluster.tick(120)
    assert [one.cause for one in cluster.verdicts] == [Cause.FACILITY]
    assert cluster.isolated() == []


def test_a_rack_is_commanded_before_its_nodes_that_waited_beside_it(cluster: Cluster) -> None:
    for number in range(4):
        cluster.take(node_down(f"n{number}", 0, status=Status.LOCALIZED), 30)
    cluster.tick(41)
    assert cluster.isolated() == ["rack:r41"]


def test_a_rack_rule_in_shadow_is_only_shown(rules: Rules) -> None:
    young = {**rules.policy.rules, "rack": {"maturity": Maturity.SHADOW}}
    cluster = Cluster(replace(rules, policy=replace(rules.policy, rules=young)))
    for number in range(4):
        cluster.take(node_down(f"n{number}", 0), 30)
    cluster.tick(41)
    (verdict,) = cluster.verdicts
    assert (verdict.rule, verdict.muted) == ("rack", "shadow")
    assert [one.dry_run for one in cluster.commands.values()] == [True]
