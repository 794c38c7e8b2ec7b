"""Cards that work but worse than they could: suspected at most, and only when it lasts."""

from typing import Any

import pytest

from evidence.decisions import Status

GPUS = range(8)
FULL = {
    "utilization_pct": 97,
    "clock_sm_mhz": 1965,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "pcie_generation": 5,
    "pcie_generation_max": 5,
    "nvlinks_active": 18,
    "fabric_health": 0xAA,
    "clocks_event_reasons": 0,
}
IDLE = {"utilization_pct": 0, "clock_sm_mhz": 345, "pcie_generation": 1}


def _for_minutes(r: Any, minutes: float, odd: dict[int, dict[str, Any]], start: float = 10) -> Any:
    """Readings every 30 s of a busy node; ``odd`` is what differs, by GPU."""
    differs = {gpu: FULL | odd.get(gpu, {}) for gpu in GPUS}
    return [r.frame((start + 30 * n, differs)) for n in range(int(2 * minutes) + 1)]


NARROW = {"pcie_width": 8}
DOWN = {"nvlinks_active": 17, "nvlinks_down": (11,)}

CASES = (
    ("a busy node that is well says nothing", lambda r: _for_minutes(r, 30, {}), ()),
    (
        "a narrow PCIe link under load for long is suspected",
        lambda r: _for_minutes(r, 15, {3: NARROW}),
        ("suspected pcie gpu3",),
    ),
    (
        "a slow generation under load for long too",
        lambda r: _for_minutes(r, 15, {3: {"pcie_generation": 3}}),
        ("suspected pcie gpu3",),
    ),
    ("for a few minutes it is nothing", lambda r: _for_minutes(r, 5, {3: NARROW}), ()),
    (
        "an idle card that saves power says nothing",
        lambda r: _for_minutes(r, 30, {3: NARROW | IDLE}),
        (),
    ),
    (
        "a node built with narrow slots accuses no card",
        lambda r: _for_minutes(r, 30, dict.fromkeys(GPUS, NARROW)),
        (),
    ),
    (
        "a link that went down while others are up is suspected",
        lambda r: [*_for_minutes(r, 2, {}), *_for_minutes(r, 15, {3: DOWN}, 200)],
        ("suspected nvlink gpu3",),
    ),
    (
        "links that were never up are how the node is built",
        lambda r: _for_minutes(r, 30, {3: DOWN}),
        (),
    ),
    (
        "a fabric whose bandwidth is degraded is suspected",
        lambda r: _for_minutes(r, 15, {3: {"fabric_health": 0xA9}}),
        ("suspected nvlink gpu3",),
    ),
    (
        "the power brake under load is suspected",
        lambda r: _for_minutes(r, 15, {3: {"clocks_event_reasons": 0x88}}),
        ("suspected gpu-degraded gpu3",),
    ),
    (
        "a clock far below its neighbours' is suspected",
        lambda r: _for_minutes(r, 15, {3: {"clock_sm_mhz": 1200}}),
        ("suspected gpu-degraded gpu3",),
    ),
    (
        "a clock of an idle card is not compared",
        lambda r: _for_minutes(r, 15, {3: {"clock_sm_mhz": 345, "utilization_pct": 0}}),
        (),
    ),
    (
        "low clocks of all cards accuse none",
        lambda r: _for_minutes(r, 15, {gpu: {"clock_sm_mhz": 900} for gpu in GPUS}),
        (),
    ),
    (
        "a repair that waits for a reset is told at once",
        lambda r: _for_minutes(r, 2, {3: {"channel_repair_pending": True}}),
        ("suspected gpu-memory gpu3",),
    ),
    (
        "memory that cannot be repaired is suspected at once",
        lambda r: _for_minutes(r, 2, {3: {"unrepairable_memory": True}}),
        ("suspected gpu-memory gpu3",),
    ),
    (
        "a card that is fast again has recovered",
        lambda r: [*_for_minutes(r, 15, {3: NARROW}), *_for_minutes(r, 5, {}, 1000)],
        ("recovered pcie gpu3",),
    ),
    (
        "a short dip in between does not make it well",
        lambda r: [
            *_for_minutes(r, 8, {3: NARROW}),
            *_for_minutes(r, 1, {3: NARROW | {"utilization_pct": 3}}, 520),
            *_for_minutes(r, 8, {3: NARROW}, 600),
        ],
        ("suspected pcie gpu3",),
    ),
)


@pytest.mark.parametrize(("sentence", "make", "told"), CASES, ids=[one[0] for one in CASES])
def test_degraded_cards(
    sentence: str, make: Any, told: tuple[str, ...], node: Any, records: Any
) -> None:
    node.take(records.inventory(0))
    node.feed(make(records))
    node.run_on()
    assert node.told() == sorted(told), sentence


def test_a_slow_card_does_not_bear_out_what_another_witness_says(node: Any, records: Any) -> None:
    node.take(records.inventory(0))
    node.feed(_for_minutes(records, 15, {3: NARROW}))
    node.take(records.kernel(905, 3, code=48))
    node.run_on()
    assert node.told() == ["suspected gpu-memory gpu3"], "a narrow link is no memory error"


def test_a_slow_card_and_a_missing_rank_stay_suspected(node: Any, records: Any) -> None:
    node.take(records.inventory(0))
    node.feed(_for_minutes(records, 2, {}))
    node.feed(_for_minutes(records, 15, {3: DOWN}, 200))
    node.take(records.suspicion(1700, 3, stalled_s=1090, weight=0.8))
    node.run_on()
    assert {verdict.status for verdict in node.latest()} == {Status.SUSPECTED}


def test_what_is_slow_is_told_once_and_writes_no_state_after(node: Any, records: Any) -> None:
    node.take(records.inventory(0))
    node.feed(_for_minutes(records, 15, {3: NARROW}))
    node.run_on()
    told, health = len(node.verdicts), node.state.health[records.kernel(0, 3).pci]
    node.feed(_for_minutes(records, 30, {3: NARROW}, 1000))
    node.run_on()
    assert len(node.verdicts) == told == 1
    after = node.state.health[records.kernel(0, 3).pci]
    assert (after.odd, after.standing) == (health.odd, health.standing)


def test_the_reason_names_what_is_slow_and_how_much_it_weighs(node: Any, records: Any) -> None:
    node.take(records.inventory(0))
    node.feed(_for_minutes(records, 15, {3: NARROW}))
    node.run_on()
    (told,) = node.latest()
    assert "PCIe width 8 of 16 under load" in told.reason
    assert "NVML accuses (0.30)" in told.reason
