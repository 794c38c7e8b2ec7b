"""Several GPUs of a node at once: the node's fault, one card's, a switch's, or the agent's own.

Each case: its sentence, the records, the last word on each incident (none: silence).
"""

from typing import Any

import pytest

from evidence.decisions import DomainKind
from evidence.records import GpuStatus, KernelKind
from rules.causality import may_be_above

ALL = range(8)
LOST = {"status": GpuStatus.LOST, "error": 15}
UNKNOWN = {"status": GpuStatus.ERROR, "error": 999}
STUCK = {"status": GpuStatus.TIMEOUT}
ASKED = {"code": 154, "recovery_action": "GPU Reset Required"}


def _every_minute(make: Any, minutes: int = 25) -> list[Any]:
    return [make(10 + 60 * n) for n in range(minutes)]


def _victims(cause: str, but: int | None = None) -> tuple[str, ...]:
    return tuple(f"victim {cause} gpu{n}" for n in ALL if n != but)


TOGETHER = (
    (
        "a lost GPU whose seven neighbours lose their links within the second is one card",
        lambda r: [
            r.kernel(10, 3, code=79),
            *(r.kernel(10.1 + n / 100, n, code=74, link=3) for n in ALL if n != 3),
        ],
        ("localized gpu-lost gpu3", *_victims("nvlink", but=3)),
    ),
    (
        "the driver asking all GPUs for a reset at once is the node",
        lambda r: [r.kernel(10 + n / 100, n, **ASKED) for n in ALL],
        ("suspected node node",),
    ),
    (
        "a GPU lost, after which the driver asks all for a reset, is one card",
        lambda r: [
            r.kernel(10, 3, code=79),
            *(r.kernel(10.2 + n / 100, n, **ASKED) for n in ALL),
        ],
        (
            "localized gpu-lost gpu3",
            *(s for n in ALL if n != 3 for s in (f"victim unknown gpu{n}",)),
        ),
    ),
    (
        "links of all GPUs failing with a fatal error of the switch is the switch",
        lambda r: [
            r.sxid(5, 20034, "fatal"),
            *(r.kernel(5.2 + n / 100, n, code=74, link=n) for n in ALL),
        ],
        ("localized nvswitch node", *_victims("nvlink")),
    ),
    (
        "links of all GPUs failing alone is the node",
        lambda r: [r.kernel(5 + n / 100, n, code=74, link=n) for n in ALL],
        ("suspected node node",),
    ),
    (
        "a GPU whose firmware stopped makes NVML hang on all, and is the one at fault",
        lambda r: [r.kernel(8, 3, code=119), *_every_minute(lambda t: r.frame((t, {-1: STUCK})))],
        (
            "localized gpu-firmware gpu3",
            *(f"suspected gpu-firmware gpu{n}" for n in ALL if n != 3),
        ),
    ),
    (
        "NVML lost of half the GPUs in one tick and the rest in the next is the node",
        lambda r: [r.frame((10, dict.fromkeys(range(4), LOST))), r.frame((11, {-1: LOST}))],
        ("suspected node node",),
    ),
    (
        "two of eight lost together stay two cards",
        lambda r: [r.kernel(10, 1, code=79), r.kernel(10.4, 2, code=79)],
        ("localized gpu-lost gpu1", "localized gpu-lost gpu2"),
    ),
    (
        "an unknown error of every GPU for long may be the agent's own and accuses no node",
        lambda r: _every_minute(lambda t: r.frame((t, {-1: UNKNOWN}))),
        ("suspected node node",),
    ),
    (
        "all GPUs lost for long is the node for sure",
        lambda r: _every_minute(lambda t: r.frame((t, {-1: LOST}))),
        ("localized node node",),
    ),
)


@pytest.mark.parametrize(("sentence", "make", "told"), TOGETHER, ids=[c[0] for c in TOGETHER])
def test_gpus_that_fail_together(
    sentence: str, make: Any, told: tuple[str, ...], node: Any, records: Any
) -> None:
    node.feed(records.quiet())
    node.feed(make(records))
    node.run_on()
    assert node.told() == sorted(told), sentence


def test_of_eight_cards_lost_within_a_second_at_most_one_is_acted_upon_alone(
    node: Any, records: Any
) -> None:
    node.feed(records.quiet())
    for gpu in ALL:
        node.take(records.kernel(10 + gpu / 10, gpu, code=79))
    node.run_on()
    alone = [v for v in node.verdicts if v.hard and v.domain.kind is DomainKind.GPU]
    assert [v.domain.pci for v in alone] == ["0000:1b:00"]


def test_banners_of_two_gpus_do_not_make_a_node_of_two(node: Any, records: Any) -> None:
    """The driver prints a banner only for a GPU that has an Xid, whatever else is in the node."""
    for gpu, code in ((4, 79), (1, 74)):
        node.take(
            records.kernel(
                10, gpu, kind=KernelKind.NVRM, code=None, uuid=f"GPU-0{gpu}", message="banner"
            )
        )
        node.take(records.kernel(10.1, gpu, code=code, link=6 if code == 74 else None))
    node.run_on()
    assert node.told() == ["localized gpu-lost gpu4", "victim nvlink gpu1"]


def test_four_of_four_named_gpus_lost_at_once_are_a_node_where_nobody_counted_them(
    node: Any, records: Any
) -> None:
    for gpu in range(4):
        node.take(records.kernel(10 + gpu / 10, gpu, code=79))
    node.tick(13)
    assert node.told() == ["suspected node node", "victim gpu-lost gpu0"]


#: NVML codes of a whole node, and whether they accuse it once they last.
_SERVICE = ((9, True), (10, True), (4, False), (12, False), (17, False), (18, False), (999, False))


@pytest.mark.parametrize(("code", "sure"), _SERVICE)
def test_what_may_be_the_agents_own_access_to_nvml_never_accuses_the_node(
    code: int, sure: bool, node: Any, records: Any
) -> None:
    node.feed(records.quiet())
    node.feed(_every_minute(lambda t: records.service(t, code)))
    node.run_on()
    assert node.told() == ["localized node node" if sure else "suspected node node"]
    assert ("the agent" in node.latest()[0].reason) is not sure


def test_a_node_on_which_no_gpu_was_ever_seen_is_not_taken_out_for_its_driver(
    node: Any, records: Any
) -> None:
    node.feed(_every_minute(lambda t: records.service(t, 9)))
    node.run_on()
    assert node.told() == ["suspected node node"]


@pytest.mark.parametrize(
    ("port", "gpu", "may"),
    [
        ("0000:1a:02", "0000:1b:00", True),
        ("0000:00:02", "0000:df:00", True),
        ("0000:e0:03", "0000:1b:00", False),
        ("0000:1b:00", "0000:1b:00", False),
        ("10000:1a:02", "0000:1b:00", False),
        ("0000:1a:02", "index-3", False),
    ],
)
def test_a_port_is_above_a_gpu_only_on_a_lower_bus_of_its_domain(
    port: str, gpu: str, may: bool
) -> None:
    assert may_be_above(port, gpu) is may


def test_an_error_of_a_port_that_cannot_be_above_it_is_not_the_lost_gpus_cause(
    node: Any, records: Any
) -> None:
    node.take(records.port(5, "fatal", "0000:e0:03"))
    node.take(records.kernel(10, 0, code=79))
    node.run_on()
    assert node.told() == ["localized gpu-lost gpu0", "suspected pcie node"]


def test_cards_that_left_the_bus_together_stay_lost_where_nobody_reads_nvml(
    node: Any, records: Any
) -> None:
    """Nothing but a restart brings them back, and the kernel says nothing of them any more."""
    node.take(records.inventory(0))
    for gpu in ALL:
        node.take(records.kernel(10 + gpu / 10, gpu, code=79))
    node.tick(600)
    assert "suspected node node" in node.told()
    node.run_on()
    assert "localized node node" in node.told()


def test_cards_that_left_the_bus_as_their_node_restarted_are_not_held_against_it(
    node: Any, records: Any
) -> None:
    node.take(records.inventory(0, boot_id="before"))
    for gpu in ALL:
        node.take(records.kernel(10 + gpu / 10, gpu, code=79))
    node.take(records.inventory(300, boot_id="after"))
    node.run_on()
    assert "suspected node node" in node.told()
