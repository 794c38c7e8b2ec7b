"""Witnesses that agree, disagree or are blind; contexts; repeats across jobs.

Each case: its sentence, the records, the last word on each incident (none: silence).
"""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from evidence.decisions import Cause, Domain, DomainKind, Status, Witness
from evidence.records import ContextKind, GpuStatus, KernelKind
from tests.rules.conftest import PCI

LOST = {"status": GpuStatus.LOST, "error": 15}
STUCK = {"status": GpuStatus.TIMEOUT}


def repeats(r: Any, hit: Callable[[int], int], users: int = 3, owner: str = "") -> list[Any]:
    """An application error a day under different users, on the GPU that ``hit`` names."""
    out: list[Any] = []
    for day in range(users):
        start = 86_400.0 * day
        allocated = r.context(
            start,
            ContextKind.ALLOCATION,
            until_s=start + 9000,
            job=f"job-{day}",
            image="torch:2.9",
            owner=owner or f"user-{day}",
        )
        out += [allocated, r.kernel(start + 5000, hit(day), code=31)]
    return out


WITNESSES = (
    (
        "119 and a stalled NVML agree",
        lambda r: [
            r.frame((1, {})),
            r.kernel(5, 1, code=119),
            r.frame((6, {1: STUCK}), (40, {1: STUCK})),
        ],
        ("localized gpu-firmware gpu1",),
    ),
    (
        "a stall of the collective on a GPU with an uncorrectable error agrees with it",
        lambda r: [r.kernel(5, 1, code=48), r.suspicion(610, 1, stalled_s=8)],
        ("localized gpu-memory gpu1",),
    ),
    (
        "a collective alone with everybody blind is insufficient",
        lambda r: [r.suspicion(610, 1, stalled_s=8)],
        ("insufficient unknown gpu1",),
    ),
    (
        "a collective against a clean GPU is barely suspected",
        lambda r: [*r.quiet(), r.suspicion(610, 1, stalled_s=8), r.frame((611, {}))],
        ("suspected unknown gpu1",),
    ),
    (
        "a collective that speaks of its own device is suspected though others are blind",
        lambda r: [
            r.suspicion(610, 1, stalled_s=8, kind="own-error", weight=0.9, cause=Cause.GPU_MEMORY)
        ],
        ("suspected gpu-memory gpu1",),
    ),
    (
        "a stalled rank whose GPU only shows an application fault crashed by itself",
        lambda r: [
            r.kernel(5, 1, code=13),
            r.kernel(5.1, 1, code=43),
            r.suspicion(610, 1, stalled_s=8),
        ],
        ("software software gpu1",),
    ),
    (
        "a stall twenty minutes after a fault is another matter",
        lambda r: [r.kernel(5, 1, code=48), r.suspicion(1900, 1, stalled_s=1300)],
        ("suspected gpu-memory gpu1", "suspected unknown gpu1"),
    ),
    (
        "software is told as software",
        lambda r: [r.suspicion(10, None, status=Status.SOFTWARE, cause=Cause.SOFTWARE)],
        ("software software job",),
    ),
    (
        "a job nobody can be named in is insufficient",
        lambda r: [r.suspicion(10, None, status=Status.INSUFFICIENT)],
        ("insufficient unknown job",),
    ),
    (
        "a victim without a sign of its own is silent",
        lambda r: [r.suspicion(10, 3, status=Status.VICTIM)],
    ),
    (
        "a victim's channel clean-up is suffered, not software",
        lambda r: [r.kernel(9, 3, code=45), r.suspicion(10, 3, status=Status.VICTIM)],
        ("victim unknown gpu3",),
    ),
    (
        "an accusation of the node joins the one GPU that is broken",
        lambda r: [
            r.kernel(5, 1, code=48),
            r.suspicion(610, stalled_s=8, domain=Domain(kind=DomainKind.NODE, host="gpu-r07-n3")),
        ],
        ("localized gpu-memory gpu1",),
    ),
    (
        "a service that the job could not reach is the node's, whatever card is broken",
        lambda r: [
            r.kernel(5, 1, code=48),
            r.suspicion(
                9,
                domain=Domain(kind=DomainKind.NODE, host="gpu-r07-n3"),
                kind="fabric-manager",
                cause=Cause.NODE,
            ),
        ],
        ("suspected gpu-memory gpu1", "suspected node node"),
    ),
    (
        "a link that a job accuses is not the broken card beside it",
        lambda r: [
            r.kernel(5, 1, code=48),
            r.suspicion(
                9,
                domain=Domain(kind=DomainKind.LINK, switch="0xb8", port=3),
                cause=Cause.IB_LINK,
            ),
        ],
        ("suspected gpu-memory gpu1", "suspected ib-link link"),
    ),
    (
        "a rank without a card is told what is missing",
        lambda r: [
            r.suspicion(10, domain=Domain(kind=DomainKind.GPU, host="gpu-r07-n3", rank=5)),
        ],
        ("insufficient unknown gpuNone",),
    ),
    (
        "a killed process explains a stall on its host",
        lambda r: [
            r.kernel(5, kind=KernelKind.OOM, code=None, pci=None, message="Killed process 42"),
            r.suspicion(610, stalled_s=8, domain=Domain(kind=DomainKind.NODE, host="gpu-r07-n3")),
        ],
        ("software software node",),
    ),
    (
        "a killed process alone is nobody's fault",
        lambda r: [r.kernel(5, kind=KernelKind.OOM, code=None, pci=None, message="Killed")],
    ),
    (
        "a link that the fabric finds slow is suspected",
        lambda r: [
            r.suspicion(
                5,
                kind="ib-degraded",
                domain=Domain(kind=DomainKind.LINK, switch="0xb8", port=3),
                witness=Witness.FABRIC,
                cause=Cause.IB_LINK,
            )
        ],
        ("suspected ib-link link",),
    ),
    (
        "an uncorrectable error of host memory is the node's",
        lambda r: [r.kernel(5, kind=KernelKind.MCE, code=None, pci=None, severity="uncorrectable")],
        ("suspected node node",),
    ),
    (
        "a corrected one is noise",
        lambda r: [r.kernel(5, kind=KernelKind.MCE, code=None, pci=None, severity="correctable")],
    ),
)

CONTEXT = (
    (
        "an announced reset explains a lost GPU",
        lambda r: [
            r.context(1, ContextKind.GPU_RESET, gpu=4, until_s=60),
            r.frame((2, {4: LOST})),
        ],
        ("suspected gpu-lost gpu4",),
    ),
    (
        "a reset of one GPU does not explain another",
        lambda r: [
            r.context(1, ContextKind.GPU_RESET, gpu=4, until_s=60),
            r.frame((2, {5: LOST})),
        ],
        ("localized gpu-lost gpu5",),
    ),
    (
        "a reset that is over and left the GPU lost explains nothing",
        lambda r: [
            r.context(1, ContextKind.GPU_RESET, gpu=4, until_s=60),
            r.frame((2, {4: LOST})),
            r.frame((130, {4: LOST})),
        ],
        ("localized gpu-lost gpu4",),
    ),
    (
        "a reset that is over and left the GPU well is told as over",
        lambda r: [
            r.context(1, ContextKind.GPU_RESET, gpu=4, until_s=60),
            r.frame((2, {4: LOST})),
            r.frame((40, {})),
        ],
        ("recovered gpu-lost gpu4",),
    ),
    (
        "a reset announced just after its effect counts",
        lambda r: [
            r.kernel(1, code=119),
            r.context(2, ContextKind.GPU_RESET, gpu=0, at_s=0, until_s=60),
        ],
        ("suspected gpu-firmware gpu0",),
    ),
    (
        "a fault before the announcement is not explained by it",
        lambda r: [*r.chain(10), r.context(30, ContextKind.GPU_RESET, gpu=0, until_s=60)],
        ("localized gpu-memory gpu0",),
    ),
    (
        "a planned drain does not explain broken memory",
        lambda r: [r.context(1, ContextKind.DRAIN, until_s=900), *r.chain(10)],
        ("localized gpu-memory gpu0",),
    ),
    (
        "maintenance explains the whole node",
        lambda r: [
            r.context(1, ContextKind.MAINTENANCE, until_s=900),
            r.frame((2, {-1: LOST})),
            r.service(5, 9),
        ],
        ("suspected node node", "suspected node node"),
    ),
)

REPEATS = (
    (
        "application errors that follow one GPU across users become hardware",
        lambda r: repeats(r, lambda _: 6),
        ("software software gpu6", "software software gpu6", "suspected gpu-compute gpu6"),
    ),
    (
        "those of one user stay the application",
        lambda r: repeats(r, lambda _: 6, owner="ada"),
        ("software software gpu6",) * 3,
    ),
    (
        "those that move from GPU to GPU do too",
        lambda r: repeats(r, lambda day: day),
        ("software software gpu0", "software software gpu1", "software software gpu2"),
    ),
)


def unit(r: Any, tpcs: tuple[int, ...]) -> list[Any]:
    """An exception a day under different users, each on the GPC 4 and the TPC that is named."""
    found: list[Any] = []
    for number, one in enumerate(repeats(r, lambda _: 6, users=len(tpcs))):
        line = {"code": 13, "unit": f"GPC 4, TPC {tpcs[number // 2]}, SM {number}"}
        found.append(replace(one, **line) if number % 2 else one)
    return found


UNITS = (
    (
        "exceptions of three users on one unit of a GPU are that unit",
        lambda r: unit(r, (1, 1, 1)),
        ("software software gpu6", "software software gpu6", "localized gpu-compute gpu6"),
    ),
    (
        "on several units of it they are suspected",
        lambda r: unit(r, (1, 5, 1)),
        ("software software gpu6", "software software gpu6", "suspected gpu-compute gpu6"),
    ),
)

STUCK_BESIDE = dict.fromkeys(range(8), STUCK)
ALIKE = (
    (
        "beside a card that failed before, NVML's standing still is no second witness",
        lambda r: [
            r.frame((1, {})),
            r.kernel(5, 1, code=119),
            r.frame((6, STUCK_BESIDE), (40, STUCK_BESIDE)),
            r.kernel(70, 2, code=119),
            r.kernel(90, 6, code=119),
            r.frame((95, STUCK_BESIDE)),
        ],
        (
            "localized gpu-firmware gpu1",
            *(f"suspected gpu-firmware gpu{gpu}" for gpu in (0, 2, 3, 4, 5, 6, 7)),
        ),
    ),
    (
        "errors of all cards that are counted anew at once are nobody's",
        lambda r: [
            r.frame((1, {})),
            r.frame((10, {-1: {"ecc_aggregate_uncorrected": 210}})),
            r.frame((20, {-1: {"ecc_aggregate_uncorrected": 210}})),
        ],
        tuple(f"suspected gpu-memory gpu{gpu}" for gpu in range(8)),
    ),
    (
        "the dead end of the link of a card that is reset on purpose is nobody's fault",
        lambda r: [
            *r.quiet(),
            r.context(10, ContextKind.GPU_RESET, gpu=1, until_s=100),
            r.sxid(20, 20034, "fatal"),
            r.kernel(20.1, 0, code=74, link=3),
            r.kernel(20.1, 2, code=74, link=3),
            r.frame((40, {})),
        ],
        ("suspected nvswitch node", "victim nvlink gpu0", "victim nvlink gpu2"),
    ),
)


def single(r: Any) -> list[Any]:
    """Exceptions on one unit in three people's jobs that had this one card each."""
    found = unit(r, (0, 0, 0))
    return [replace(one, pci=PCI[6]) if hasattr(one, "owner") else one for one in found]


CASES: tuple[tuple[Any, ...], ...] = (
    *WITNESSES,
    *ALIKE,
    (
        "exceptions on one unit of jobs that had no other card beside it are suspected",
        single,
        ("software software gpu6", "software software gpu6", "suspected gpu-compute gpu6"),
    ),
    *UNITS,
    *CONTEXT,
    *REPEATS,
)


@pytest.mark.parametrize("case", CASES, ids=[case[0].replace(" ", "-") for case in CASES])
def test_a_case_is_judged_as_it_should(case: tuple[Any, ...], node: Any, records: Any) -> None:
    _, build, *expected = case
    for record in sorted(build(records), key=lambda one: one.observed_at):
        node.take(record)
    node.run_on()
    assert node.told() == sorted(expected[0] if expected else ())
