"""What the host stage concludes from NVML snapshots.

Each case: its sentence, the records, the last word on each incident (none: silence).
"""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from evidence.records import GpuStatus
from rules.readings import to_be_noted

LOST = {"status": GpuStatus.LOST, "error": 15}
RESET = {"status": GpuStatus.RESET_REQUIRED, "error": 16}
STUCK = {"status": GpuStatus.TIMEOUT}


HEALTH = (
    (
        "a GPU that NVML lost is lost",
        lambda r: [r.frame((1, {})), r.frame((2, {4: LOST}))],
        ("localized gpu-lost gpu4",),
    ),
    (
        "lost at first sight counts too",
        lambda r: [r.frame((1, {4: LOST}))],
        ("localized gpu-lost gpu4",),
    ),
    (
        "a lost GPU that is read again has recovered",
        lambda r: [r.frame((1, {4: LOST})), r.frame((60, {}))],
        ("recovered gpu-lost gpu4",),
    ),
    (
        "all GPUs lost together is the node",
        lambda r: [r.frame((1, {})), r.frame((2, {-1: LOST}))],
        ("suspected node node",),
    ),
    (
        "reset required is somebody's work at first",
        lambda r: [r.frame((1, {})), r.frame((2, {1: RESET}))],
        ("suspected gpu-lost gpu1",),
    ),
    (
        "reset required for fifteen minutes is out of order",
        lambda r: [r.frame((1, {}))] + [r.frame((2 + 60 * n, {1: RESET})) for n in range(17)],
        ("localized gpu-lost gpu1",),
    ),
    (
        "a short stall of NVML is nothing",
        lambda r: [r.frame((1, {})), r.frame((2, {1: STUCK}), (12, {1: STUCK})), r.frame((20, {}))],
    ),
    (
        "a long stall is suspected",
        lambda r: [r.frame((1, {})), r.frame((2, {1: STUCK}), (40, {1: STUCK}))],
        ("suspected gpu-firmware gpu1",),
    ),
    (
        "a remap failure is hard",
        lambda r: [r.frame((1, {})), r.frame((2, {1: {"remap_failure": True}}))],
        ("localized gpu-memory gpu1",),
    ),
    (
        "a remap that waits is an early warning, even with its Xid 63",
        lambda r: [
            r.frame((1, {})),
            r.kernel(2, 1, code=63),
            r.frame((3, {1: {"remap_pending": True}})),
        ],
        ("suspected gpu-memory gpu1",),
    ),
    (
        "the SRAM threshold is hard",
        lambda r: [r.frame((1, {1: {"sram_threshold_exceeded": True}}))],
        ("localized gpu-memory gpu1",),
    ),
    (
        "old ECC counts at first sight are nothing",
        lambda r: [r.frame((1, {1: {"ecc_aggregate_uncorrected": 5000}}))],
    ),
    (
        "a hundred more are not more than a hundred",
        lambda r: [
            r.frame((1, {1: {"ecc_aggregate_uncorrected": 7}})),
            r.frame((2, {1: {"ecc_aggregate_uncorrected": 107}})),
        ],
        ("suspected gpu-memory gpu1",),
    ),
    (
        "a hundred and one are",
        lambda r: [
            r.frame((1, {1: {"ecc_aggregate_uncorrected": 7}})),
            r.frame((2, {1: {"ecc_aggregate_uncorrected": 108}})),
        ],
        ("localized gpu-memory gpu1",),
    ),
    (
        "a volatile count that begins again is a driver load",
        lambda r: [
            r.frame((1, {1: {"ecc_volatile_uncorrected": 90}})),
            r.frame((2, {1: {"ecc_volatile_uncorrected": 0}})),
        ],
    ),
    (
        "another card in the slot begins its own history",
        lambda r: [
            r.frame((1, {1: {"ecc_aggregate_uncorrected": 7}})),
            r.frame((2, {1: {"ecc_aggregate_uncorrected": 900, "uuid": "GPU-of-another-card"}})),
        ],
    ),
    (
        "ten minutes above 85 C is the cooling of that card",
        lambda r: [r.frame((1 + 30 * n, {1: {"temperature_c": 86}})) for n in range(22)],
        ("localized gpu-thermal gpu1",),
    ),
    (
        "85 C is not above it",
        lambda r: [r.frame((1 + 30 * n, {1: {"temperature_c": 85}})) for n in range(22)],
    ),
    (
        "nine minutes are not ten",
        lambda r: [r.frame((1 + 30 * n, {1: {"temperature_c": 95}})) for n in range(19)],
    ),
    (
        "heat with a gap in between is two short ones",
        lambda r: [
            r.frame((1 + 30 * n, {1: {"temperature_c": 95}})) for n in range(30) if not 8 < n < 16
        ],
    ),
    (
        "degrees left to the card's own limit are the truth where told",
        lambda r: [
            r.frame((1 + 30 * n, {1: {"temperature_c": 90, "temperature_margin_c": 4}}))
            for n in range(22)
        ],
    ),
    (
        "and none left is too hot",
        lambda r: [r.frame((1 + 30 * n, {1: {"temperature_margin_c": 0}})) for n in range(22)],
        ("localized gpu-thermal gpu1",),
    ),
    (
        "a hot node is not eight hot cards",
        lambda r: [r.frame((1 + 30 * n, {-1: {"temperature_c": 92}})) for n in range(22)],
        tuple(f"suspected facility gpu{n}" for n in range(8)),
    ),
    (
        "NVML down on the node is a service, suspected",
        lambda r: [r.frame((1, {})), r.service(2, 18)],
        ("suspected node node",),
    ),
    (
        "NVML that answers again was nothing lasting",
        lambda r: [r.frame((1, {})), r.service(2, 9), r.frame((200, {}))],
        ("recovered node node",),
    ),
    (
        "the driver's own wish for a reset through NVML is a GPU out of order",
        lambda r: [r.frame((1, {})), r.frame((2, {1: {"recovery_action": 1}}))],
        ("localized gpu-lost gpu1",),
    ),
    (
        "three boots in a day are a matter of the node",
        lambda r: [r.frame((1 + 3600 * n, {}), boot_id=f"boot-{n}") for n in range(4)],
        ("suspected node node",),
    ),
    (
        "two boots in a day are not",
        lambda r: [r.frame((1 + 3600 * n, {}), boot_id=f"boot-{n}") for n in range(3)],
    ),
)

CASES: tuple[tuple[Any, ...], ...] = (*HEALTH,)


@pytest.mark.parametrize("case", CASES, ids=[case[0].replace(" ", "-") for case in CASES])
def test_a_case_is_judged_as_it_should(case: tuple[Any, ...], node: Any, records: Any) -> None:
    _, build, *expected = case
    for record in sorted(build(records), key=lambda one: one.observed_at):
        node.take(record)
    node.run_on()
    assert node.told() == sorted(expected[0] if expected else ())


def test_hosts_that_were_read_together_are_not_noted_together() -> None:
    at = datetime(2026, 3, 2, 8, tzinfo=UTC)

    def first_second(host: str) -> int:
        return next(
            second
            for second in range(1000)
            if to_be_noted(at, at + timedelta(seconds=second), host, 60.0)
        )

    hosts = Counter(first_second(f"gpu-r{rack:02d}-n{node}") for rack in range(50)
                    for node in range(20))  # fmt: skip
    assert 60 <= min(hosts) <= max(hosts) <= 91
    assert max(hosts.values()) < 100, "of 1,000 hosts no tenth is noted within one second"
