"""NVML's own events: one fact with the kernel's line of the same Xid, or in place of it."""

from typing import Any

import pytest

from evidence.decisions import Says, Witness
from evidence.records import GpuEventKind, GpuProcess, Mig, MigInstance

KIND = GpuEventKind


EVENTS = (
    (
        "an Xid of NVML stands in for the line that nobody read",
        lambda r: [r.event(10, 2, data=79)],
        ("localized gpu-lost gpu2",),
    ),
    (
        "an application's is the application",
        lambda r: [r.event(10, 2, data=31)],
        ("software software gpu2",),
    ),
    (
        "two events of one memory fault are two units of the driver",
        lambda r: [
            r.event(10, 2, KIND.ECC_DOUBLE_BIT, 1),
            r.event(10.1, 2, KIND.DRAM_RETIREMENT),
        ],
        ("localized gpu-memory gpu2",),
    ),
    (
        "the event and the Xid of one double bit error are one",
        lambda r: [r.event(10, 2, KIND.ECC_DOUBLE_BIT, 1), r.event(10.001, 2, data=48)],
        ("suspected gpu-memory gpu2",),
    ),
    (
        "64 without its text may be the harmless one",
        lambda r: [r.event(10, 2, data=64)],
        ("suspected gpu-memory gpu2",),
    ),
    (
        "a link's Xid without its registers and a missing rank accuse nobody for sure",
        lambda r: [
            r.event(10, 2, data=149),
            r.suspicion(700, 2, stalled_s=20, weight=0.7),
        ],
        ("suspected nvlink gpu2",),
    ),
    (
        "a wish for another action is what the next reading tells better",
        lambda r: [r.event(10, 2, data=154), r.event(11, 2, KIND.RECOVERY_ACTION, 1)],
        (),
    ),
    (
        "a GPU that NVML calls unavailable is suspected",
        lambda r: [r.event(10, 2, KIND.UNAVAILABLE)],
        ("suspected gpu-lost gpu2",),
    ),
    (
        "an Xid that NVML cannot name is told",
        lambda r: [r.event(10, 2, data=999)],
        ("insufficient unknown gpu2",),
    ),
    (
        "and is the kernel's line where there is one",
        lambda r: [r.event(10, 2, data=999), r.kernel(10.2, 2, code=62)],
        ("suspected gpu-firmware gpu2",),
    ),
    (
        "a code that no table knows is told, by NVML too",
        lambda r: [r.event(10, 2, data=191)],
        ("insufficient unknown gpu2",),
    ),
    (
        "an event of a card that is known by its UUID alone finds its slot",
        lambda r: [r.event(10, 2, data=79, pci=None, index=None)],
        ("localized gpu-lost gpu2",),
    ),
    (
        "an event of a card that nobody can name accuses nobody",
        lambda r: [r.event(10, 2, data=79, pci=None, index=None, uuid=None)],
        (),
    ),
    (
        "poison that NVML saw arrive beside a neighbour's broken memory is suffered",
        lambda r: [*r.chain(10, 1), r.event(10.2, 6, KIND.POISON)],
        ("localized gpu-memory gpu1", "victim gpu-memory gpu6"),
    ),
    (
        "a change of MIG mode is no fault",
        lambda r: [r.event(10, 2, KIND.MIG_CHANGE)],
        (),
    ),
)


@pytest.mark.parametrize(("sentence", "make", "told"), EVENTS, ids=[one[0] for one in EVENTS])
def test_events(sentence: str, make: Any, told: tuple[str, ...], node: Any, records: Any) -> None:
    node.take(records.inventory(0))
    node.feed(make(records))
    node.run_on()
    assert node.told() == list(told), sentence


@pytest.mark.parametrize("order", ["line first", "event first"])
def test_an_event_and_the_line_of_it_are_one_fact_in_the_lines_words(
    order: str, node: Any, records: Any
) -> None:
    line, event = records.kernel(10, 2, code=62), records.event(10.3, 2, data=62)
    both = [line, event] if order == "line first" else [event, line]
    for place, record in enumerate(both):
        node.take(record, 10.4 + place / 10)
    node.run_on()
    (told,) = node.verdicts
    assert [ref.source for ref in told.evidence] == ["kernel"]
    assert "told by NVML" not in told.reason
    assert told.testimony[0].weight == 0.7


def test_a_line_that_comes_long_after_its_event_takes_its_place_without_a_second_verdict(
    node: Any, records: Any
) -> None:
    node.take(records.event(10.3, 2, data=62))
    node.run_on()
    node.take(records.kernel(10, 2, code=62), 40)
    node.run_on()
    (told,) = node.verdicts
    assert "told by NVML" in told.reason
    (incident,) = node.state.incidents
    assert [fact.ref.source for fact in incident.facts] == ["kernel"]


def test_a_hard_line_is_acted_upon_at_once_and_its_event_adds_nothing(
    node: Any, records: Any
) -> None:
    node.take(records.inventory(0))
    (said,) = node.take(records.kernel(10, 2, code=79))
    assert said.hard
    node.take(records.event(10.2, 2, data=79))
    node.run_on()
    assert node.verdicts == [said]


def test_the_witness_says_that_nvml_stood_in_for_the_kernel_log(node: Any, records: Any) -> None:
    node.take(records.event(10, 2, data=62))
    node.run_on()
    (told,) = node.verdicts
    kernel = told.testimony[0]
    assert (kernel.witness, kernel.says) == (Witness.KERNEL, Says.ACCUSES)
    assert kernel.words.endswith("told by NVML")
    assert told.evidence[0].source == "gpu"


def test_two_cards_in_one_frame_of_events_are_two_incidents(node: Any, records: Any) -> None:
    node.take(records.inventory(0))
    node.take(records.event(10, 2, data=62))
    node.take(records.event(10, 5, data=62))
    node.run_on()
    assert node.told() == ["suspected gpu-firmware gpu2", "suspected gpu-firmware gpu5"]
    assert len({verdict.incident for verdict in node.latest()}) == 2


def test_a_frame_of_events_alone_does_not_say_that_nvml_answers_again(
    node: Any, records: Any
) -> None:
    node.take(records.inventory(0))
    node.take(records.service(5, 9))
    node.take(records.event(10, 2, data=31))
    assert node.state.nvml_error == 9


# --- MIG ------------------------------------------------------------------------------------------


def test_an_event_that_names_an_instance_accuses_no_more(node: Any, records: Any) -> None:
    node.take(records.event(10, 2, data=31, gi=3, ci=0))
    node.run_on()
    (told,) = node.verdicts
    assert (told.domain.kind, told.domain.mig) == ("mig", Mig(3, 0))


def _instances(records: Any, seconds: float) -> Any:
    processes = (GpuProcess(pid=4000, gi=3, ci=0), GpuProcess(pid=4001, gi=5, ci=0))
    seldom = {"pcie_width": 16, "pcie_width_max": 16}
    mig = {"mig_enabled": True, "mig": (MigInstance(gi=3), MigInstance(gi=5))}
    return records.frame((seconds, {2: mig | {"processes": processes}, -1: seldom}))


def test_the_process_that_a_line_names_tells_its_instance(node: Any, records: Any) -> None:
    """The open driver never prints an instance: the pid and NVML's list of processes do."""
    node.feed(records.quiet())
    node.take(_instances(records, 5))
    node.take(records.kernel(10, 2, code=94, pid=4001, reset=False, drain_reset=False))
    node.run_on()
    (told,) = node.latest()
    assert (told.domain.kind, told.domain.mig) == ("mig", Mig(5, 0))


def test_two_instances_of_one_fault_are_the_whole_card(node: Any, records: Any) -> None:
    node.feed(records.quiet())
    node.take(_instances(records, 5))
    node.take(records.kernel(10, 2, code=31, pid=4000))
    node.take(records.kernel(10.1, 2, code=31, pid=4001))
    node.run_on()
    assert node.told() == ["software software gpu2"]


def test_a_contained_error_to_be_drained_is_its_instances(node: Any, records: Any) -> None:
    node.feed(records.quiet())
    for second, fields in ((10, {"drain_reset": True, "reset": False}), (10.02, {})):
        node.take(records.kernel(second, 2, code=94, mig=Mig(3), **fields))
    node.take(records.frame((11, {2: {"recovery_action": 4}})))
    node.run_on()
    (told,) = node.latest()
    assert (told.status, told.domain.kind, told.domain.mig) == ("localized", "mig", Mig(3))


def test_one_that_the_driver_wants_reset_now_is_the_cards(node: Any, records: Any) -> None:
    node.feed(records.quiet())
    node.take(records.kernel(10, 2, code=94, mig=Mig(3), reset=True, drain_reset=False))
    node.run_on()
    assert node.told() == ["localized gpu-memory gpu2"]


@pytest.mark.parametrize("code", [79, 48, 119])
def test_a_fault_of_the_card_is_never_an_instance(code: int, node: Any, records: Any) -> None:
    node.feed(records.quiet())
    node.take(_instances(records, 5))
    node.take(records.kernel(10, 2, code=code, pid=4000))
    node.run_on()
    assert [verdict.domain.kind for verdict in node.latest()] == ["gpu"]


@pytest.mark.parametrize("mode", [True, False])
def test_a_process_of_an_instance_that_is_gone_names_it_no_more(
    node: Any, records: Any, mode: bool
) -> None:
    node.feed(records.quiet())
    node.take(_instances(records, 5))
    left = {"mig": (MigInstance(gi=3, ci=0),)} if mode else {"mig": ()}
    node.take(records.frame((8, {2: {"mig_enabled": mode, "pcie_width": 16, **left}})))
    node.take(records.kernel(10, 2, code=94, pid=4001, drain_reset=True))
    node.run_on()
    assert {str(one.domain.kind) for one in node.latest()} == {"gpu"}
