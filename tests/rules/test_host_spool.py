"""A node that was cut off ships what it had kept: its faults are judged by when they happened."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from evidence.decisions import Command, Domain, DomainKind, Request, RequestAction, Status
from evidence.records import ContextKind, GpuStatus, KernelKind, Tick
from ringfence.drive import Driver
from rules import isolation
from rules.policy import Mode
from rules.severity import is_acted_upon
from rules.stage import Arrived
from rules.tables import Rules
from tests.rules.conftest import at

LOST = {1: {"status": GpuStatus.LOST, "error": 15}}
WORN = {1: {"remap_failure": True}}
HOT = {1: {"temperature_c": 93}}
CASES = HealthCheck.function_scoped_fixture
HOUR = 3600.0
#: The node was cut off for three hours; what it says of them arrives within some seconds.
THEN, FAULT, RESET = -3 * HOUR, -2 * HOUR, -HOUR
TOPIC = {"KernelRecord": "kernel", "GpuFrame": "gpu", "ContextRecord": "context"}


def frames(
    records: Any, since: float, until: float, differs: dict[int, dict[str, Any]], step: float = 60.0
) -> list[Struct]:
    count = int((until - since) / step)
    return [records.frame((since + n * step, differs)) for n in range(count + 1)]


def telemetry(records: Any, bad: dict[int, dict[str, Any]], *, reset: bool) -> list[Struct]:
    """What NVML read: well, then bad, and well again where the card was reset."""
    read = frames(records, THEN, FAULT - 60, {})
    if not reset:
        return read + frames(records, FAULT, 0, bad)
    return read + frames(records, FAULT, RESET, bad) + frames(records, RESET + 60, 0, {})


def lines(records: Any) -> list[Struct]:
    return [records.kernel(FAULT, 1, code=79), records.kernel(FAULT + 0.01, 1, code=45)]


@pytest.fixture
def commands(rules: Rules) -> Callable[..., list[tuple[str, str]]]:
    """What is commanded after batches of records, a batch every ``apart`` seconds of arrival."""
    governed = replace(rules, policy=replace(rules.policy, mode=Mode.ENFORCE))

    def command(node: Any, *batches: Iterable[Struct], apart: float = 1.0) -> list[Any]:
        when = 1.0
        for batch in batches:
            for record in batch:
                node.take(record, when)
                when += 0.001
            when += apart
        node.run_on()
        state, found = isolation.rebuild(), []
        said_in_order = [Arrived("verdicts", one, one.decided_at) for one in node.verdicts]
        last = max((one.at for one in said_in_order), default=at(0)) + timedelta(seconds=60)
        for arrived in (*said_in_order, Arrived("verdicts", Tick(id="end", at=last), last)):
            state, said = isolation.step(state, arrived, governed)
            found += [one for one in said if isinstance(one, Command)]
        return list(dict.fromkeys((one.domain_id, str(one.cause)) for one in found))

    return command


@pytest.mark.parametrize("bad", [LOST, WORN], ids=["lost", "worn out"])
@pytest.mark.parametrize("apart", [0.0, 1.0, 30.0])
def test_a_fault_that_a_reset_ended_since_commands_nothing_whatever_comes_first(
    bad: dict[int, Any],
    apart: float,
    commands: Any,
    new_node: Callable[[], Any],
    records: Any,
) -> None:
    kernel, gpu = lines(records), telemetry(records, bad, reset=True)
    for batches in ((kernel, gpu), (gpu, kernel)):
        node = new_node()
        node.take(records.inventory(THEN), 0)
        assert commands(node, *batches, apart=apart) == []
        assert {str(one.status) for one in node.latest()} == {"recovered"}


@pytest.mark.parametrize(
    ("bad", "cause"), [(LOST, "gpu-lost"), (WORN, "gpu-memory")], ids=["lost", "worn out"]
)
@pytest.mark.parametrize("apart", [0.0, 1.0, 30.0])
def test_a_fault_that_still_stands_is_isolated_however_old_it_is(
    bad: dict[int, Any],
    cause: str,
    apart: float,
    commands: Any,
    new_node: Callable[[], Any],
    records: Any,
) -> None:
    kernel = lines(records) if bad is LOST else records.chain(FAULT, 1)
    gpu = telemetry(records, bad, reset=False)
    told = []
    for batches in ((kernel, gpu), (gpu, kernel)):
        node = new_node()
        node.take(records.inventory(THEN), 0)
        told.append(commands(node, *batches, apart=apart))
    assert told == [[("gpu:gpu-r07-n3/0000:43:00", cause)]] * 2


def test_an_old_line_of_a_node_whose_nvml_nobody_reads_is_said_and_marked_stale(
    commands: Any, node: Any, records: Any
) -> None:
    assert commands(node, lines(records)) == []
    (verdict,) = node.latest()
    assert (verdict.status, verdict.muted, verdict.late > 0) == ("suspected", "stale", True)
    assert "NVML snapshots of today" in verdict.missing


def test_a_stale_verdict_is_not_acted_upon_where_suspected_ones_are(
    rules: Rules, node: Any, records: Any
) -> None:
    for record in lines(records):
        node.take(record, 1)
    node.run_on()
    (verdict,) = node.latest()
    eager = replace(rules.policy, act_on=frozenset({Status.LOCALIZED, Status.SUSPECTED}))
    assert not is_acted_upon(eager, verdict)


def test_a_card_that_reads_well_today_is_said_to_have_recovered_however_slowly_that_is_read(
    node: Any, records: Any
) -> None:
    """Its line was judged long before NVML's readings of the present arrived."""
    node.take(records.frame((THEN, {})))
    for record in records.chain(FAULT, 1):
        node.take(record, 1)
    node.run_on()
    assert node.told() == ["suspected gpu-memory gpu1"]
    for number, frame in enumerate(frames(records, THEN + 60, 60, {})):
        node.take(frame, 60 + number)
    node.run_on()
    assert node.told() == ["recovered gpu-memory gpu1"]
    assert not any(one.status == "localized" for one in node.verdicts)


def test_a_card_that_was_replaced_since_is_not_blamed_for_its_predecessor(
    commands: Any, new_node: Callable[[], Any], records: Any
) -> None:
    other = {1: {"uuid": "GPU-77777777-0000-4000-8000-000000000001", "temperature_c": 40}}
    gpu = frames(records, THEN, FAULT - 60, {}) + frames(records, FAULT, RESET, LOST)
    gpu += frames(records, RESET + 60, 0, other)
    for batches in ((lines(records), gpu), (gpu, lines(records))):
        node = new_node()
        assert commands(node, *batches) == []
        assert not any(one.status == "localized" for one in node.verdicts)


def test_what_a_plan_explains_that_ended_since_commands_nothing(
    commands: Any, new_node: Callable[[], Any], records: Any
) -> None:
    plan = [records.context(FAULT - 10, ContextKind.MAINTENANCE, until_s=RESET)]
    gpu = telemetry(records, LOST, reset=True)
    for batches in ((plan, lines(records), gpu), (gpu, lines(records), plan)):
        assert commands(new_node(), *batches) == []


def test_a_plan_that_is_over_explains_no_card_that_is_lost_today(
    commands: Any, new_node: Callable[[], Any], records: Any
) -> None:
    plan = [records.context(FAULT - 10, ContextKind.MAINTENANCE, until_s=RESET)]
    gpu = telemetry(records, LOST, reset=False)
    for batches in ((plan, lines(records), gpu), (plan, gpu, lines(records))):
        assert commands(new_node(), *batches) == [("gpu:gpu-r07-n3/0000:43:00", "gpu-lost")]


def test_heat_that_is_over_commands_nothing_and_heat_that_lasts_does(
    commands: Any, new_node: Callable[[], Any], records: Any
) -> None:
    over = frames(records, THEN, FAULT, {}) + frames(records, FAULT + 60, RESET, HOT)
    over += frames(records, RESET + 60, 0, {})
    assert commands(new_node(), over) == []
    lasts = frames(records, THEN, FAULT, {}) + frames(records, FAULT + 60, 0, HOT)
    assert [cause for _, cause in commands(new_node(), lasts)] == ["gpu-thermal"]


def test_slowness_of_today_does_not_bear_out_a_memory_fault_that_was_reset(
    commands: Any, node: Any, records: Any
) -> None:
    narrow = {
        1: {
            "pcie_width": 4,
            "pcie_width_max": 16,
            "pcie_generation": 5,
            "pcie_generation_max": 5,
            "utilization_pct": 99,
        }
    }
    chain = records.chain(FAULT, 1)
    assert commands(node, chain, frames(records, FAULT + 60, 0, narrow)) == []


def test_a_node_whose_clock_is_hours_behind_and_says_so_is_acted_upon_at_once(
    node: Any, records: Any
) -> None:
    node.take(records.inventory(-2 * HOUR, clock_skew_ms=-7_200_000), 0)
    node.take(records.frame((-2 * HOUR + 1, {})), 1)
    node.take(records.kernel(-2 * HOUR + 5, 1, code=79), 5)
    assert node.told() == ["localized gpu-lost gpu1"]
    assert node.latest()[0].late == 0


def test_a_clock_that_was_set_right_again_hides_nothing(node: Any, records: Any) -> None:
    node.take(records.inventory(-2 * HOUR, clock_skew_ms=-7_200_000), 0)
    node.take(records.frame((100, {})), 100)
    assert node.state.behind_s == 0
    node.take(records.kernel(-HOUR, 1, code=79), 101)
    node.run_on()
    assert node.told() == ["recovered gpu-lost gpu1"]


def test_a_release_by_hand_since_the_fault_stands(
    rules: Rules, node: Any, records: Any, commands: Any
) -> None:
    governed = replace(rules, policy=replace(rules.policy, mode=Mode.ENFORCE))
    assert commands(node, lines(records), telemetry(records, LOST, reset=False))
    verdict = node.latest()[0]
    domain = Domain(kind=DomainKind.GPU, host=verdict.host, pci=verdict.domain.pci)
    begin = verdict.at
    release = Request(
        id="r", at=begin, action=RequestAction.RELEASE, domain=domain, by="ana", reason="reset"
    )
    state, _ = isolation.step(
        isolation.rebuild(), Arrived("requests", release, verdict.decided_at), governed
    )
    for one in node.verdicts:
        state, said = isolation.step(state, Arrived("verdicts", one, one.decided_at), governed)
        assert not any(isinstance(out, Command) for out in said)


# --- Order of arrival between topics


@settings(max_examples=25, deadline=None, suppress_health_check=[CASES])
@given(
    st.lists(st.sampled_from(["kernel", "gpu", "context"]), min_size=12, max_size=60),
    st.booleans(),
    st.booleans(),
)
def test_no_mix_of_the_topics_changes_what_a_catch_up_commands(
    commands: Any,
    new_node: Callable[[], Any],
    records: Any,
    turns: list[str],
    reset: bool,
    planned: bool,
) -> None:
    """Each topic keeps its order; which of them is read when does not matter."""
    quiet = {"kind": KernelKind.OTHER, "code": None, "pci": None, "message": "usb 1-1: new device"}
    topics: dict[str, list[Struct]] = {
        "kernel": [*lines(records), *(records.kernel(n * 600.0, **quiet) for n in range(-10, 0))],
        "gpu": telemetry(records, LOST, reset=reset),
        "context": [records.context(FAULT - 9, ContextKind.GPU_RESET, gpu=1)] if planned else [],
    }
    mixed: list[Struct] = []
    for turn in turns:
        mixed += topics[turn][:5]
        del topics[turn][:5]
    rest = [record for left in topics.values() for record in left]
    node = new_node()
    node.take(records.inventory(THEN), 0)
    told = commands(node, mixed, rest, apart=3.0)
    assert [domain for domain, _ in told] == ([] if reset else ["gpu:gpu-r07-n3/0000:43:00"])


def test_a_host_that_catches_up_does_not_hold_another_host(rules: Rules, records: Any) -> None:
    """Each host has its own time: what one waits for or lacks, no other waits for."""
    driver = Driver(replace(rules, policy=replace(rules.policy, mode=Mode.ENFORCE)), live=True)
    late = [*lines(records), *telemetry(records, LOST, reset=True)]
    for record in late:
        topic = TOPIC[type(record).__name__]
        driver.add(topic, "gpu-r07-n3", record, records.kernel(900).observed_at)
    quick = records.kernel(10, 3, code=79, host="gpu-r08-n1")
    driver.add("kernel", "gpu-r08-n1", quick, records.kernel(10).observed_at)
    outcome = driver.advance(records.kernel(11).observed_at)
    assert [one.domain.host for one in outcome.commands] == ["gpu-r08-n1"]
    assert [one.domain.host for one in driver.run().commands] == ["gpu-r08-n1"]
