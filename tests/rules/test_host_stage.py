"""How the host stage behaves in time: settling, redelivery, revisions, replay, bounds."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from evidence.decisions import Cause, Domain, DomainKind, Recovery, Says, Status, Witness
from evidence.records import ContextKind, GpuStatus, KernelKind, Tick
from rules import host
from rules.stage import Arrived
from rules.telling import EVIDENCE_MAX

LOST = {"status": GpuStatus.LOST, "error": 15}


def test_what_is_not_hard_waits_until_it_has_settled(node: Any, records: Any) -> None:
    assert node.take(records.kernel(1, code=119)) == []
    assert node.tick(2.9) == []
    assert [v.status for v in node.tick(3)] == [Status.SUSPECTED]
    assert host.due(node.state) is None


def test_a_record_late_enough_settles_what_waits_like_a_tick(node: Any, records: Any) -> None:
    node.take(records.kernel(1, code=119))
    noise = records.kernel(3.5, kind=KernelKind.OTHER, code=None, pci=None)
    assert [v.cause for v in node.take(noise)] == [Cause.GPU_FIRMWARE]


def test_a_hard_fact_is_judged_at_once_with_what_waits_about_the_same_gpu(
    node: Any, records: Any
) -> None:
    node.take(records.kernel(1, 4, code=45))
    node.take(records.kernel(1, 6, code=119))
    said = node.take(records.kernel(1.2, 4, code=79))
    assert [(v.status, v.hard, v.domain.pci) for v in said] == [
        (Status.LOCALIZED, True, records.kernel(0, 4).pci)
    ]
    assert [ref.text[-4:] for ref in said[0].evidence] == ["45, ", "79, "]
    assert host.due(node.state) is not None, "the other GPU's line still waits"


def test_due_is_when_the_oldest_fact_has_settled(node: Any, records: Any) -> None:
    assert host.due(host.HostState()) is None
    first = records.kernel(1, code=119)
    node.take(first)
    node.take(records.kernel(2, code=31))
    assert host.due(node.state) == first.observed_at + timedelta(seconds=2)


def test_the_three_witnesses_of_one_dying_gpu(node: Any, records: Any) -> None:
    """The demo's incident: chain, ECC growth and a pending remap, a timeout ten minutes later."""
    victims = tuple(
        Domain(kind=DomainKind.GPU, host=f"gpu-r07-n{n}", pci="0000:43:00", rank=8 * n)
        for n in (4, 5, 6)
    )
    node.take(records.inventory(0))
    node.take(records.frame((1, {})))
    node.feed(records.chain(10, 2))
    sick = {"ecc_volatile_uncorrected": 1, "ecc_aggregate_uncorrected": 4, "remap_pending": True}
    node.take(records.frame((11, {2: sick})))
    node.run_on()
    (first,) = node.latest()
    assert (first.status, first.revision) == (Status.LOCALIZED, node.verdicts[-1].revision)
    node.take(records.suspicion(612, 2, stalled_s=11, victims=victims))
    node.run_on()
    (last,) = node.latest()
    assert (last.status, last.cause, last.recovery) == (
        Status.LOCALIZED,
        Cause.GPU_MEMORY,
        Recovery.DRAIN_RESET,
    )
    assert [one.says for one in last.testimony] == [Says.ACCUSES] * 3
    assert last.incident == first.incident
    assert last.revision > first.revision
    assert last.victims == victims
    assert last.missing == ()
    assert last.job == "train-7"
    assert (last.domain.uuid, last.domain.index, last.rack, last.pool) == (
        "GPU-5e0d9c1a-0000-4000-8000-000000000002",
        2,
        "r07",
        "training",
    )
    assert last.confidence > first.confidence - 0.001


def test_a_clean_reading_after_the_event_clears_and_one_before_it_does_not(
    node: Any, records: Any
) -> None:
    node.take(records.frame((1, {})))
    node.take(records.kernel(5, code=119))
    (blind,) = node.tick(7)
    node.take(records.frame((6.5, {})), 7.2)
    assert node.verdicts[-1] is blind, "half a second after the event is too early"
    (cleared,) = node.take(records.frame((8, {})), 8.1)
    says = [
        {one.witness: one.says for one in v.testimony}[Witness.HEALTH] for v in (blind, cleared)
    ]
    assert says == [Says.BLIND, Says.CLEARS]
    assert cleared.revision == blind.revision + 1


def test_a_witness_that_clears_holds_back_two_that_agree(node: Any, records: Any) -> None:
    node.take(records.frame((1, {})))
    node.take(records.kernel(5, code=119))
    node.take(records.frame((20, {})))
    node.take(records.suspicion(610, stalled_s=8))
    node.run_on()
    assert node.told() == ["suspected gpu-firmware gpu0"]


def test_a_confirmed_chain_is_not_acquitted_by_clean_counters(node: Any, records: Any) -> None:
    node.take(records.frame((1, {})))
    node.feed(records.chain())
    node.take(records.frame((30, {})))
    node.run_on()
    assert node.told() == ["localized gpu-memory gpu0"]
    assert {one.witness: one.says for one in node.verdicts[-1].testimony}[
        Witness.HEALTH
    ] is Says.CLEARS


def test_a_lost_kernel_line_makes_the_kernel_blind(node: Any, records: Any) -> None:
    node.take(records.kernel(1, kind=KernelKind.OVERRUN, code=None, pci=None))
    node.take(records.suspicion(610, stalled_s=8))
    node.run_on()
    assert node.told() == ["insufficient unknown gpu0"]


def test_nothing_worth_writing_gives_the_same_state_back(node: Any, records: Any) -> None:
    node.take(records.inventory(0))
    node.take(records.frame((1, {})))
    node.take(records.kernel(1, kind=KernelKind.OTHER, code=None, pci=None))
    before = node.state
    for n in range(2, 50):
        node.take(records.frame((n, {})))
        node.take(records.kernel(n, kind=KernelKind.OTHER, code=None, pci=None))
    node.tick(50)
    node.take(records.inventory(51))
    assert node.state is before
    node.take(records.frame((92, {})))
    assert node.state is not before, "once in 60 to 90 s it is kept that NVML was read"


def test_a_redelivered_record_changes_nothing(node: Any, records: Any) -> None:
    stream = [
        Arrived("gpu", records.frame((1, {})), records.frame((1, {})).observed_at, 0),
        *(Arrived("kernel", r, r.observed_at, n) for n, r in enumerate(records.chain())),
    ]
    late = stream[-1].at + timedelta(seconds=5)
    stream.append(Arrived("kernel", Tick(id="tick", at=late), late, 5))
    for arrived in stream:
        node.arrive(arrived)
    state, count = node.state, len(node.verdicts)
    for arrived in stream:
        node.arrive(arrived)
    assert node.state is state
    assert len(node.verdicts) == count == 1


def test_a_record_sent_twice_under_two_offsets_counts_once(node: Any, records: Any) -> None:
    first = records.kernel(1, code=48)
    for offset in (0, 1):
        node.arrive(Arrived("kernel", first, first.observed_at, offset))
    node.run_on()
    node.arrive(Arrived("kernel", first, first.observed_at + timedelta(seconds=9), 2))
    node.run_on()
    assert len(node.verdicts) == 1
    assert len(node.verdicts[0].evidence) == 1


def test_the_incident_keeps_its_id_when_an_older_root_arrives_later(
    node: Any, records: Any
) -> None:
    late = records.kernel(1, code=48)
    node.take(records.kernel(1.1, code=94), 1.2)
    node.run_on()
    node.take(late, 30)
    node.take(records.kernel(1.05, code=63), 30)
    node.run_on()
    first, last = node.verdicts[0], node.verdicts[-1]
    assert (first.status, last.status) == (Status.SUSPECTED, Status.LOCALIZED)
    assert first.incident == last.incident
    assert [v.revision for v in node.verdicts] == [1, 2]
    assert last.id != first.id


def test_what_comes_long_after_its_time_is_counted_late(node: Any, records: Any) -> None:
    late = records.kernel(1, code=48)
    node.take(records.kernel(20, code=94))
    node.run_on()
    node.take(late, 40)
    node.run_on()
    assert [v.late for v in node.verdicts] == [0, 1]


def test_an_event_time_in_the_future_is_clamped_and_none_is_the_arrival(
    node: Any, records: Any
) -> None:
    node.take(replace(records.kernel(1, code=79), at=records.kernel(9000).at), 1)
    node.take(replace(records.kernel(2, 1, code=79), at=None), 2)
    node.run_on()
    assert [v.at for v in node.verdicts] == [records.kernel(1).at, records.kernel(2).at]


def test_a_change_of_words_alone_is_not_told_again(node: Any, records: Any) -> None:
    node.feed(records.chain())
    node.run_on()
    node.take(records.kernel(20, code=94))
    node.run_on()
    assert len(node.verdicts) == 1


def test_a_uuid_learned_later_is_told(node: Any, records: Any) -> None:
    node.feed(records.chain())
    node.run_on()
    (named,) = node.take(records.inventory(30))
    assert (named.revision, named.domain.index) == (2, 0)
    assert named.domain.id == node.verdicts[0].domain.id


def test_the_kernels_banner_teaches_the_uuid(node: Any, records: Any) -> None:
    node.take(records.kernel(1, kind=KernelKind.NVRM, code=None, uuid="GPU-77", message="GPU at"))
    node.take(records.kernel(2, code=79))
    assert node.verdicts[0].domain.uuid == "GPU-77"


def test_a_suspicion_that_knows_only_index_or_uuid_finds_its_card(node: Any, records: Any) -> None:
    node.take(records.inventory(0))
    node.take(records.kernel(1, 3, code=48))
    domain = Domain(kind=DomainKind.GPU, host="gpu-r07-n3", index=3, rank=11)
    node.take(records.suspicion(600, stalled_s=2, domain=domain))
    node.run_on()
    assert node.told() == ["localized gpu-memory gpu3"]


def test_a_taken_back_suspicion_takes_its_weight_back(node: Any, records: Any) -> None:
    node.take(records.kernel(1, code=48))
    node.take(records.suspicion(600, stalled_s=2))
    node.run_on()
    node.take(records.suspicion(660, stalled_s=2, says=Says.CLEARS, reason="it was a slow disk"))
    node.run_on()
    assert [v.status for v in node.verdicts] == [
        Status.SUSPECTED,
        Status.LOCALIZED,
        Status.SUSPECTED,
    ]


def test_an_explained_fault_says_who_announced_it_and_names_the_record(
    node: Any, records: Any
) -> None:
    context = records.context(1, ContextKind.GPU_RESET, gpu=4, until_s=60, reason="ticket 12")
    node.take(context)
    (said,) = node.take(records.frame((2, {4: LOST})))
    assert (said.status, said.hard, said.explained_by) == (Status.SUSPECTED, False, context.id)
    assert "announced by ada" in said.reason
    assert "ticket 12" in said.reason
    assert context.id in {ref.id for ref in said.evidence}


def test_when_the_context_ends_and_the_fault_stays_it_is_told_anew(node: Any, records: Any) -> None:
    node.take(records.context(1, ContextKind.GPU_RESET, gpu=4, until_s=60))
    node.take(records.frame((2, {4: LOST})))
    node.take(records.frame((119, {4: LOST})))
    node.tick(121)
    assert [(v.status, v.explained_by is None) for v in node.verdicts] == [
        (Status.SUSPECTED, False),
        (Status.LOCALIZED, True),
    ]
    assert len({v.incident for v in node.verdicts}) == 1


def test_an_ended_context_closes_the_open_one(node: Any, records: Any) -> None:
    node.take(records.context(1, ContextKind.MAINTENANCE))
    node.take(records.context(100, ContextKind.MAINTENANCE, at_s=1, ended=True))
    node.take(records.kernel(170, code=79))
    assert [v.status for v in node.verdicts] == [Status.LOCALIZED]


def test_a_context_without_an_end_does_not_explain_for_ever(node: Any, records: Any) -> None:
    node.take(records.context(1, ContextKind.REBOOT))
    node.take(records.kernel(800, 1, code=79))
    node.take(records.kernel(1000, 2, code=79))
    assert node.told() == ["localized gpu-lost gpu2", "suspected gpu-lost gpu1"]


def test_gpus_lost_one_after_the_other_within_a_second_become_the_node(
    node: Any, records: Any
) -> None:
    node.take(records.inventory(0))
    for gpu in range(8):
        node.take(records.kernel(1 + gpu / 10, gpu, code=79))
    assert node.told() == ["localized gpu-lost gpu0"], "a second one is worth waiting for the rest"
    node.tick(4)
    told = node.told()
    assert told == ["suspected node node", "victim gpu-lost gpu0"], "the others are only named"
    node.run_on()
    told = node.told()
    assert told == ["localized node node", "victim gpu-lost gpu0"], "nobody reads NVML there"
    node_id = next(v.incident for v in node.latest() if v.domain.kind is DomainKind.NODE)
    assert {v.victim_of for v in node.latest()} == {None, node_id}
    (whole,) = (v for v in node.latest() if v.incident == node_id)
    assert len(whole.victims) == 8, "the first one, which was acted upon, is named with the rest"


def test_a_reset_that_the_driver_wants_of_one_card_after_the_other_waits_for_the_rest(
    node: Any, records: Any
) -> None:
    node.take(records.inventory(0))
    node.take(records.kernel(1, 0, code=79))
    for gpu in range(1, 8):
        node.take(records.kernel(1.05 + gpu / 10, gpu, code=95, reset=True))
    assert node.told() == ["localized gpu-lost gpu0"]
    node.tick(4)
    assert "localized" not in {str(one.status) for one in node.verdicts[1:]}


def test_a_node_that_stays_lost_is_localized_after_its_wait(node: Any, records: Any) -> None:
    for n in range(32):
        node.take(records.frame((1 + 30 * n, {-1: LOST} if n else {})))
    assert node.told() == ["localized node node"]


def test_evidence_is_listed_up_to_a_bound_and_the_rest_counted(node: Any, records: Any) -> None:
    for n in range(100):
        node.take(records.kernel(1 + n / 1000, code=(13, 43, 31, 69, 45)[n % 5]))
    node.run_on()
    (said,) = node.verdicts
    assert len(said.evidence) == EVIDENCE_MAX
    assert "(68 more records" in said.reason


def test_the_state_stays_small_in_a_storm_of_days(node: Any, records: Any) -> None:
    for n in range(3000):
        node.take(records.kernel(n * 97, n % 8, code=(13, 48, 63, 74, 119, 31)[n % 6]))
    assert len(node.state.incidents) <= 32
    assert len(msgspec.json.encode(node.state)) < 200_000


def test_what_was_quiet_for_a_day_is_forgotten(node: Any, records: Any) -> None:
    node.take(records.kernel(1, code=48))
    node.run_on()
    node.take(records.kernel(90_000, 1, code=48))
    node.run_on()
    assert [incident.subject for incident in node.state.incidents] == [records.kernel(0, 1).pci]


def test_the_state_survives_json(node: Any, records: Any) -> None:
    node.take(records.inventory(0))
    node.take(records.context(1, ContextKind.ALLOCATION, job="j", owner="ada"))
    node.take(records.frame((1, {1: {"temperature_c": 99}}), (2, {4: LOST})))
    node.take(records.suspicion(3))
    node.take(records.kernel(3, 2, code=31))
    node.tick(9)
    node.take(records.kernel(10, 3, code=94, mig=None))
    again = msgspec.json.decode(msgspec.json.encode(node.state), type=host.HostState)
    assert again == node.state
    frame = records.frame((11, {1: {"temperature_c": 99}, 4: LOST}))
    arrived = Arrived("gpu", frame, frame.observed_at)
    assert host.step(again, arrived, node.rules) == host.step(node.state, arrived, node.rules)


def test_other_records_and_ticks_of_an_empty_host_are_nothing(node: Any, records: Any) -> None:
    before = node.state
    node.tick(1)
    for kind in (KernelKind.HUNG_TASK, KernelKind.PEERMEM, KernelKind.UNREADABLE):
        node.take(records.kernel(2, kind=kind, code=None, pci=None))
    node.run_on()
    assert node.verdicts == []
    assert before == host.HostState()


# --- Replay and order -----------------------------------------------------------------------------


def scene(records: Any) -> list[Any]:
    """A node with three incidents at once, none of them hard."""
    return [
        *records.chain(10, 2),
        records.kernel(10.02, 5, code=94),
        records.kernel(10.5, 6, code=13),
        records.kernel(10.51, 6, code=43),
        records.kernel(10.2, 7, code=74, link=3),
        records.kernel(9.9, 1, code=45, caused_by=62),
        records.frame((10.4, {2: {"ecc_aggregate_uncorrected": 4}})),
    ]


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(order=st.permutations(range(11)))
def test_any_order_of_arrival_within_the_settling_time_gives_the_same_verdicts(
    new_node: Callable[[], Any], order: list[int]
) -> None:
    def verdicts(order: list[int]) -> list[Any]:
        node = new_node()
        records = type(RECORDS)()
        node.take(records.inventory(0))
        node.take(records.frame((1, {})))
        made = scene(records)
        for place, number in enumerate(order):
            node.take(made[number], 11 + place / 11)
        node.run_on()
        return [(v.incident, v.status, v.cause, v.domain, v.reason) for v in node.latest()]

    assert sorted(map(str, verdicts(order))) == sorted(map(str, verdicts(list(range(11)))))


@pytest.fixture(autouse=True)
def _keep_records(records: Any) -> None:
    global RECORDS  # noqa: PLW0603 (hypothesis needs a fresh builder for each example)
    RECORDS = records


RECORDS: Any = None


def test_replaying_the_evidence_of_a_verdict_gives_the_same_verdict(
    node: Any, new_node: Callable[[], Any], records: Any
) -> None:
    node.take(records.inventory(0))
    node.take(records.frame((1, {})))
    for record in scene(records):
        node.take(record, 11)
    node.take(records.frame((13, {2: {"ecc_aggregate_uncorrected": 4}})))
    node.tick(14)
    node.take(records.suspicion(612, 2, stalled_s=11))
    node.tick(615)
    node.tick(616)
    for told in node.latest():
        ids = {ref.id for ref in told.evidence}
        again = new_node()
        for arrived in node.taken:
            kept = isinstance(arrived.record, Tick) or arrived.topic == "inventory"
            if kept or arrived.record.id in ids:
                again.arrive(arrived)
        (same,) = [v for v in again.latest() if v.incident == told.incident]
        assert replace(same, victim_of=None) == replace(told, victim_of=None)
