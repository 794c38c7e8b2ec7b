from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evidence.decisions import (
    Ack,
    AckStatus,
    Action,
    Cause,
    Command,
    DesiredState,
    Domain,
    DomainKind,
    EvidenceRef,
    Hold,
    Level,
    Recovery,
    Request,
    RequestAction,
    Status,
    Verdict,
)
from evidence.identity import digest
from evidence.records import Mig, Tick
from rules.isolation import IsolationState, Output, due, rebuild, step
from rules.policy import CardCosts, IsolateAs, Mode, Policy, Pool, load
from rules.stage import Arrived

T0 = datetime(2027, 3, 14, 3, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Governed:
    policy: Policy


def rules(**changes: object) -> Governed:
    return Governed(replace(load(), **{"mode": Mode.ENFORCE, **changes}))  # type: ignore[arg-type]


def roomy(**changes: object) -> Governed:
    """Rules whose budget does not matter."""
    return rules(budget=replace(load().budget, node_absolute=100.0), **changes)


def card(host: str = "gpu17", pci: str | None = "0000:4f:00", **names: object) -> Domain:
    return Domain(kind=DomainKind.GPU, host=host, pci=pci, **names)  # type: ignore[arg-type]


def node(host: str = "gpu17") -> Domain:
    return Domain(kind=DomainKind.NODE, host=host)


def verdict(domain: Domain | None = None, incident: str = "inc-1", **fields: object) -> Verdict:
    told: dict[str, object] = {
        "id": f"v-{incident}-{fields.get('revision', 0)}",
        "incident": incident,
        "revision": 0,
        "at": T0,
        "decided_at": T0,
        "status": Status.LOCALIZED,
        "cause": Cause.GPU_MEMORY,
        "domain": domain or card(),
        "confidence": 0.97,
        "reason": "Three witnesses agree.",
        "recovery": Recovery.DRAIN_RESET,
        "evidence": (EvidenceRef(id="e1", source="kernel"),),
    }
    return Verdict(**{**told, **fields})  # type: ignore[arg-type]


def request(action: RequestAction, domain: Domain | None = None, **fields: object) -> Request:
    told: dict[str, object] = {"id": f"r-{action}", "at": T0, "by": "ana", "reason": "tested"}
    return Request(action=action, domain=domain or card(), **{**told, **fields})  # type: ignore[arg-type]


def ack(command: Command, status: AckStatus = AckStatus.DONE) -> Ack:
    return Ack(
        id="a-" + command.id,
        command=command.id,
        domain_id=command.domain_id,
        at=T0,
        scheduler="slurm",
        status=status,
    )


def tick(second: float) -> tuple[Tick, float]:
    return Tick(id=f"t{second}", at=T0 + timedelta(seconds=second)), second


class Stage:
    """The stage with its state, driven by (record, second) pairs."""

    def __init__(self, governed: Governed, state: IsolationState | None = None) -> None:
        self.rules = governed
        self.state = rebuild() if state is None else state

    def take(self, record: msgspec.Struct, second: float = 0.0) -> list[Output]:
        arrived = Arrived("any", record, T0 + timedelta(seconds=second))
        before = msgspec.json.encode(self.state)
        after, outputs = step(self.state, arrived, self.rules)
        assert msgspec.json.encode(self.state) == before, "a step must not change its argument"
        self.state = msgspec.json.decode(msgspec.json.encode(after), type=IsolationState)
        assert self.state == after, "a state must survive the table"
        return outputs

    def commands(self, record: msgspec.Struct, second: float = 0.0) -> list[Command]:
        return [out for out in self.take(record, second) if isinstance(out, Command)]

    def states(self, record: msgspec.Struct, second: float = 0.0) -> list[DesiredState]:
        return [out for out in self.take(record, second) if isinstance(out, DesiredState)]


# --- Acting -------------------------------------------------------------------------------------


def test_a_localized_verdict_gives_one_command_and_one_desired_state() -> None:
    outputs = Stage(rules()).take(verdict(), 5)
    now = T0 + timedelta(seconds=5)
    assert outputs[0] == Command(
        id=digest("gpu:gpu17/0000:4f:00", "isolate", "inc-1", 0),
        action=Action.ISOLATE,
        domain=card(),
        domain_id="gpu:gpu17/0000:4f:00",
        level=Level.DRAIN,
        cause=Cause.GPU_MEMORY,
        reason="Three witnesses agree.",
        incident="inc-1",
        generation=0,
        issued_at=now,
        verdict="v-inc-1-0",
        confidence=0.97,
        recovery=Recovery.DRAIN_RESET,
        act_by=now + timedelta(seconds=1800),
        evidence=("e1",),
    )
    hold = Hold(
        id="inc-1",
        cause=Cause.GPU_MEMORY,
        by="ringfence",
        at=T0,
        reason="Three witnesses agree.",
        level=Level.DRAIN,
    )
    (state,) = outputs[1:]
    assert isinstance(state, DesiredState)
    assert (state.domain_id, state.isolated, state.level, state.holds, state.generation) == (
        "gpu:gpu17/0000:4f:00",
        True,
        Level.DRAIN,
        (hold,),
        0,
    )


@pytest.mark.parametrize(
    "silent",
    [
        {"status": Status.SUSPECTED},
        {"status": Status.INSUFFICIENT},
        {"status": Status.SOFTWARE},
        {"status": Status.VICTIM},
        {"status": Status.RECOVERED},
        {"cause": Cause.SOFTWARE},
        {"cause": Cause.UNKNOWN},
        {"cause": Cause.FACILITY},
        {"explained_by": "maintenance-1"},
        {"victim_of": "v-0"},
        {"domain": Domain(kind=DomainKind.JOB, job="7")},
        {"domain": Domain(kind=DomainKind.GPU, rank=3)},
        {"domain": Domain(kind=DomainKind.GPU, host="gpu17", rank=3)},
        {"domain": Domain(kind=DomainKind.MIG, host="gpu17", pci="0000:4f:00")},
    ],
)
def test_what_is_not_sure_not_hardware_or_not_a_part_gives_nothing(
    silent: dict[str, object],
) -> None:
    stage = Stage(rules())
    before = stage.state
    assert stage.take(verdict(**silent)) == []
    assert stage.state == before


@pytest.mark.parametrize(
    ("domain", "cause", "level"),
    [
        (card(), Cause.GPU_LOST, Level.DRAIN),
        (card(), Cause.GPU_DEGRADED, Level.CORDON),
        (node(), Cause.NODE, Level.DRAIN),
        (Domain(kind=DomainKind.SWITCH, switch="0x7fe1"), Cause.IB_SWITCH, Level.CORDON),
        (Domain(kind=DomainKind.LINK, switch="0x7fe1", port=9), Cause.IB_LINK, Level.CORDON),
        (
            Domain(kind=DomainKind.NVLINK, host="n1", pci="0000:4f:00", link=4),
            Cause.NVLINK,
            Level.DRAIN,
        ),
        (
            Domain(kind=DomainKind.MIG, host="n1", pci="0000:4f:00", mig=Mig(3)),
            Cause.GPU_MEMORY,
            Level.DRAIN,
        ),
    ],
)
def test_each_cause_has_its_level(domain: Domain, cause: Cause, level: Level) -> None:
    (command,) = Stage(rules()).commands(verdict(domain, cause=cause))
    assert (command.level, command.domain_id, command.held) == (level, domain.id, None)


def test_the_same_verdict_and_its_later_revisions_give_no_second_command() -> None:
    stage = Stage(roomy())
    assert len(stage.commands(verdict())) == 1
    assert stage.take(verdict()) == []
    assert stage.take(verdict(revision=1, at=T0 + timedelta(seconds=3)), 3) == []
    assert stage.take(verdict(node(), revision=2, at=T0 + timedelta(seconds=4)), 4) == []


def test_a_second_incident_of_an_isolated_part_adds_a_hold_and_no_command() -> None:
    stage = Stage(rules())
    stage.take(verdict())
    (state,) = stage.take(verdict(incident="inc-2"), 60)
    assert isinstance(state, DesiredState)
    assert [hold.id for hold in state.holds] == ["inc-1", "inc-2"]


def test_a_worse_incident_of_an_isolated_part_raises_its_level() -> None:
    stage = Stage(rules())
    stage.take(verdict(cause=Cause.GPU_DEGRADED))
    (command,) = stage.commands(verdict(incident="inc-2", cause=Cause.GPU_LOST), 60)
    assert (command.level, command.held, command.incident) == (Level.DRAIN, None, "inc-2")


# --- Modes and pools ----------------------------------------------------------------------------


def test_shadow_marks_commands_and_publishes_no_desired_state() -> None:
    stage = Stage(rules(mode=Mode.SHADOW))
    (command,) = stage.take(verdict())
    assert isinstance(command, Command)
    assert (command.dry_run, command.level) == (True, Level.DRAIN)


def test_shadow_also_shows_what_the_budget_would_hold() -> None:
    stage = Stage(rules(mode=Mode.SHADOW))
    stage.take(verdict())
    (command,) = stage.commands(verdict(card("gpu18"), "inc-2"))
    assert command.dry_run
    assert command.held is not None


def test_after_shadow_ends_a_new_incident_of_the_same_part_is_acted_upon() -> None:
    stage = Stage(rules(mode=Mode.SHADOW))
    stage.take(verdict())
    stage.rules = rules()
    (command,) = stage.commands(verdict(incident="inc-2"), 600)
    assert not command.dry_run


def test_cordon_mode_never_goes_beyond_cordon() -> None:
    (command,) = Stage(rules(mode=Mode.CORDON)).commands(verdict())
    assert (command.level, command.dry_run) == (Level.CORDON, False)


def test_an_inference_pool_evicts_at_once_and_a_training_pool_drains() -> None:
    stage = Stage(roomy())
    (serving,) = stage.commands(verdict(pool="inference"))
    (training,) = stage.commands(verdict(card("gpu18"), "inc-2", pool="training"))
    assert (serving.level, training.level) == (Level.EVICT, Level.DRAIN)


def test_a_pool_has_its_own_mode_and_upper_limit() -> None:
    pools = {
        "default": Pool(),
        "pilot": Pool(mode=Mode.ENFORCE, at_most=Level.CORDON),
    }
    stage = Stage(rules(mode=Mode.SHADOW, pools=pools))
    (pilot,) = stage.commands(verdict(pool="pilot"))
    (other,) = stage.commands(verdict(card("gpu18"), "inc-2"))
    assert (pilot.dry_run, pilot.level) == (False, Level.CORDON)
    assert other.dry_run


def test_a_cloud_pool_isolates_the_node_for_its_card_once() -> None:
    pools = {"default": Pool(), "cloud": Pool(isolate_as=IsolateAs.NODE)}
    stage = Stage(roomy(pools=pools))
    (command,) = stage.commands(verdict(pool="cloud"))
    assert command.domain == node()
    (state,) = stage.take(verdict(card(pci="0000:5d:00"), "inc-2", pool="cloud"), 1)
    assert isinstance(state, DesiredState)


# --- Cascades -----------------------------------------------------------------------------------


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


# --- Budgets ------------------------------------------------------------------------------------


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


# --- The outbox ---------------------------------------------------------------------------------


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


# --- Releases -----------------------------------------------------------------------------------


def test_a_release_begins_the_next_generation_and_withdraws_the_pending_isolate() -> None:
    stage = Stage(rules())
    (out,) = stage.commands(verdict())
    outputs = stage.take(request(RequestAction.RELEASE), 10)
    back, state = outputs
    assert isinstance(back, Command)
    assert isinstance(state, DesiredState)
    assert back.id == digest("gpu:gpu17/0000:4f:00", "release", "inc-1", 1)
    assert (back.generation, back.by, back.reason) == (1, "ana", "tested")
    assert (state.isolated, state.generation) == (False, 1)
    assert set(stage.state.outbox) == {back.id} != {out.id}


def test_what_a_person_released_is_not_isolated_again_for_the_same_evidence() -> None:
    stage = Stage(roomy())
    stage.take(verdict())
    stage.take(request(RequestAction.RELEASE), 10)
    assert stage.take(verdict(revision=7, at=T0 + timedelta(seconds=90)), 90) == []


def test_an_incident_that_a_release_ended_counts_again_for_what_happened_after_it() -> None:
    stage = Stage(roomy())
    stage.take(verdict())
    stage.take(request(RequestAction.RELEASE), 10)
    after = T0 + timedelta(seconds=90)
    seen = EvidenceRef(id="e2", source="gpu", at=after)
    (again,) = stage.commands(verdict(revision=7, at=after, evidence=(seen,)), 91)
    assert (again.action, again.generation, again.incident) == (Action.ISOLATE, 1, "inc-1")
    assert stage.take(verdict(revision=8, at=after, evidence=(seen,)), 92) == []


def test_evidence_older_than_the_last_release_never_counts() -> None:
    stage = Stage(roomy())
    stage.take(verdict())
    stage.take(request(RequestAction.RELEASE), 100)
    assert stage.take(verdict(incident="older", at=T0 + timedelta(seconds=99)), 101) == []
    newer = verdict(incident="newer", at=T0 + timedelta(seconds=102))
    assert len(stage.commands(newer, 103)) == 1


def test_failing_again_within_the_cool_down_escalates_up_to_the_pools_limit() -> None:
    pools = {"default": Pool(at_most=Level.EVICT), "mild": Pool(at_most=Level.DRAIN)}
    stage = Stage(roomy(pools=pools))
    later = {"at": T0 + timedelta(seconds=200)}
    stage.take(verdict())
    stage.take(verdict(card("gpu18"), "inc-2"))
    stage.take(request(RequestAction.RELEASE), 100)
    stage.take(request(RequestAction.RELEASE, card("gpu18"), id="r-2"), 100)
    (again,) = stage.commands(verdict(incident="inc-3", **later), 200)
    (capped,) = stage.commands(verdict(card("gpu18"), "inc-4", pool="mild", **later), 200)
    assert (again.level, again.generation) == (Level.EVICT, 1)
    assert capped.level is Level.DRAIN


def test_after_the_cool_down_the_cause_decides_again() -> None:
    stage = Stage(roomy(pools={"default": Pool(at_most=Level.EVICT)}))
    stage.take(verdict())
    stage.take(request(RequestAction.RELEASE), 100)
    day = 86400.0 + 101
    later = verdict(incident="inc-2", at=T0 + timedelta(seconds=day))
    assert stage.commands(later, day)[0].level is Level.DRAIN


def test_nothing_returns_by_itself_unless_the_policy_says_so() -> None:
    well = verdict(incident="inc-9", status=Status.RECOVERED)
    stage = Stage(rules())
    stage.take(verdict())
    assert stage.take(well, 50) == []
    stage.rules = rules(automatic_release=True)
    (back,) = stage.commands(well, 60)
    assert back.action is Action.RELEASE


def test_an_automatic_release_keeps_what_a_person_took_out() -> None:
    stage = Stage(rules(automatic_release=True))
    stage.take(verdict())
    stage.take(request(RequestAction.ISOLATE), 1)
    (state,) = stage.take(verdict(incident="inc-9", status=Status.RECOVERED), 60)
    assert isinstance(state, DesiredState)
    assert [hold.by for hold in state.holds] == ["ana"]


def test_a_hold_is_lifted_only_by_who_set_it() -> None:
    stage = Stage(rules())
    stage.take(verdict())
    stage.take(request(RequestAction.HOLD, by="bo"), 1)
    (state,) = stage.take(request(RequestAction.RELEASE), 2)
    assert isinstance(state, DesiredState)
    assert (state.isolated, [hold.by for hold in state.holds]) == (True, ["bo"])
    (back,) = stage.commands(request(RequestAction.RELEASE, id="r-2", by="bo"), 3)
    assert back.action is Action.RELEASE


def test_a_hold_on_a_part_in_service_takes_it_out() -> None:
    (command,) = Stage(rules()).commands(request(RequestAction.HOLD))
    assert (command.action, command.level) == (Action.ISOLATE, Level.CORDON)


def test_a_part_that_nobody_isolated_can_be_released_too() -> None:
    (back,) = Stage(rules()).commands(request(RequestAction.RELEASE, node("gpu44")))
    assert (back.action, back.domain_id, back.generation) == (Action.RELEASE, "node:gpu44", 1)


def test_the_same_request_counts_once() -> None:
    stage = Stage(rules())
    assert len(stage.commands(request(RequestAction.RELEASE))) == 1
    assert stage.take(request(RequestAction.RELEASE), 5) == []


def test_a_request_about_no_part_gives_nothing() -> None:
    assert (
        Stage(rules()).take(request(RequestAction.ISOLATE, Domain(kind=DomainKind.JOB, job="1")))
        == []
    )


# --- Names --------------------------------------------------------------------------------------


def test_a_card_known_by_place_and_later_by_uuid_is_one_card() -> None:
    stage = Stage(roomy())
    stage.take(verdict())
    (state,) = stage.take(verdict(card(uuid="GPU-77", serial="165"), revision=1), 5)
    assert isinstance(state, DesiredState)
    assert state.aliases == ("serial:165", "uuid:GPU-77")
    assert stage.commands(verdict(card(pci=None, uuid="GPU-77"), "inc-2"), 6) == []
    (back,) = stage.commands(request(RequestAction.RELEASE, card(pci=None, uuid="GPU-77")), 7)
    assert back.domain_id == "gpu:gpu17/0000:4f:00"


def test_a_card_known_by_uuid_first_keeps_its_first_name() -> None:
    stage = Stage(roomy())
    (command,) = stage.commands(verdict(card(pci=None, uuid="GPU-77")))
    stage.take(verdict(card(uuid="GPU-77"), revision=1), 5)
    (back,) = stage.commands(request(RequestAction.RELEASE), 7)
    assert back.domain_id == command.domain_id == "gpu:gpu17/GPU-77"


def test_another_card_in_the_same_place_closes_the_isolation_of_the_first() -> None:
    stage = Stage(roomy())
    stage.take(verdict(card(uuid="GPU-old")))
    outputs = stage.take(
        verdict(card(uuid="GPU-new"), "inc-2", at=T0 + timedelta(days=3)), 3 * 86400
    )
    back, closed, out, state = outputs
    assert isinstance(back, Command)
    assert isinstance(out, Command)
    assert isinstance(closed, DesiredState)
    assert isinstance(state, DesiredState)
    assert (back.action, back.reason) == (Action.RELEASE, "the card GPU-old left this place")
    assert (closed.isolated, closed.generation) == (False, 1)
    assert (out.action, out.domain.uuid, out.generation) == (Action.ISOLATE, "GPU-new", 1)
    assert state.isolated


def test_a_healthy_card_in_the_same_place_closes_it_too() -> None:
    stage = Stage(roomy())
    stage.take(verdict(card(uuid="GPU-old")))
    well = verdict(card(uuid="GPU-new"), "inc-2", status=Status.RECOVERED)
    assert [out.action for out in stage.commands(well, 900)] == [Action.RELEASE]


def test_a_card_that_moved_frees_its_old_place_and_is_known_in_the_new_one() -> None:
    stage = Stage(roomy())
    stage.take(verdict(card(uuid="GPU-77")))
    there = card("gpu18", "0000:9b:00", uuid="GPU-77")
    back, out = stage.commands(verdict(there, "inc-2", at=T0 + timedelta(days=1)), 86400)
    assert back.reason == "the card moved to gpu:gpu18/0000:9b:00"
    assert (out.action, out.domain_id) == (Action.ISOLATE, "gpu:gpu18/0000:9b:00")
    assert stage.state.names["uuid:GPU-77"] == "gpu:gpu18/0000:9b:00"


# --- State --------------------------------------------------------------------------------------


def test_a_stage_without_its_state_holds_every_verdict_and_serves_people() -> None:
    stage = Stage(roomy(), IsolationState())
    (command,) = stage.take(verdict())
    assert isinstance(command, Command)
    assert command.held is not None
    assert "not restored" in command.held
    assert len(stage.commands(request(RequestAction.RELEASE))) == 1


def test_the_stage_is_rebuilt_from_the_state_topic() -> None:
    stage = Stage(roomy())
    (isolated,) = stage.states(verdict(card(uuid="GPU-77")))
    stage.take(verdict(card("gpu18"), "inc-2"), 1)
    (released,) = stage.states(request(RequestAction.RELEASE, card("gpu18")), 50)
    again = Stage(roomy(), rebuild([isolated, released]))
    assert again.take(verdict(card(uuid="GPU-77"), revision=3), 60) == []
    old = verdict(card("gpu18"), "inc-5", at=T0 + timedelta(seconds=49))
    assert again.take(old, 61) == []
    (back,) = again.commands(request(RequestAction.RELEASE, card(pci=None, uuid="GPU-77")), 62)
    assert (back.domain_id, back.generation) == ("gpu:gpu17/0000:4f:00", 1)


def test_a_redelivered_record_changes_nothing() -> None:
    state, governed = rebuild(), roomy()
    first = Arrived("verdicts", verdict(), T0, offset=41)
    state, outputs = step(state, first, governed)
    assert len(outputs) == 2
    assert step(state, first, governed) == (state, [])
    older = Arrived("verdicts", verdict(card("gpu18"), "inc-0"), T0, offset=40)
    assert step(state, older, governed) == (state, [])
    other = Arrived("requests", request(RequestAction.RELEASE), T0, offset=0)
    state, outputs = step(state, other, governed)
    assert len(outputs) == 2
    assert state.offsets == {"verdicts": 41, "requests": 0}


def test_nothing_to_write_is_the_same_object() -> None:
    state = rebuild()
    for record in (verdict(status=Status.SUSPECTED), tick(9)[0]):
        assert step(state, Arrived("any", record, T0, offset=3), roomy())[0] is state


def test_two_runs_over_the_same_records_give_the_same_bytes() -> None:
    def run() -> list[bytes]:
        stage = Stage(rules())
        outputs = stage.take(verdict()) + stage.take(verdict(card("gpu18"), "inc-2"), 1)
        outputs += stage.take(*tick(4)) + stage.take(request(RequestAction.RELEASE), 5)
        return [msgspec.json.encode(out) for out in outputs]

    assert run() == run()


HOSTS = [f"gpu{number}" for number in range(5)]
VERDICTS = [
    verdict(card(host, pci), f"{host}-{pci}-{again}", at=T0 + timedelta(seconds=again))
    for host in HOSTS
    for pci in ("0000:1b:00", "0000:4f:00")
    for again in (0, 1)
]


@given(st.lists(st.sampled_from(VERDICTS), max_size=30), st.integers(1, 3))
def test_whatever_arrives_the_budget_holds_and_no_part_is_taken_out_twice(
    arriving: list[Verdict], nodes: int
) -> None:
    stage = Stage(rules(budget=replace(load().budget, node_absolute=float(nodes))))
    real: list[Command] = []
    for second, one in enumerate(arriving):
        real += [command for command in stage.commands(one, second) if command.held is None]
    assert len({command.domain.host for command in real}) <= nodes
    assert len({command.domain_id for command in real}) == len(real)
    assert len({command.id for command in real}) == len(real)


@given(st.permutations(VERDICTS[:8]))
def test_without_a_budget_the_order_of_verdicts_does_not_change_who_is_taken_out(
    arriving: list[Verdict],
) -> None:
    stage = Stage(roomy())
    out = {command.domain_id for one in arriving for command in stage.commands(one)}
    assert out == {one.domain.id for one in arriving}
