"""The facts that one good NVML reading can hold: when, in which words, and what they weigh."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evidence.decisions import Cause, Recovery
from rules.host_state import GpuHealth
from rules.thresholds import Thresholds

__all__ = ["ECC", "FLAGS", "ODD_FLAGS", "OVER", "STATUS", "words_of_growth"]

#: NVML field 230: what the driver asks for. Source: nvml.h, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION.
_RESET, _REBOOT, _DRAIN_P2P, _DRAIN_RESET = 1, 2, 3, 4


def words_of_growth(health: GpuHealth) -> str:
    """Uncorrectable errors since first sight, in words."""
    since = "" if health.first_at is None else f" since {health.first_at:%Y-%m-%d %H:%M} UTC"
    if not health.growth:
        return f"no uncorrectable ECC error{since}"
    errors = "error" if health.growth == 1 else "errors"
    return f"{health.growth} uncorrectable ECC {errors}{since}"


@dataclass(frozen=True, slots=True)
class _Flag:
    """A fact that a reading can hold: when, in which words, and what it weighs."""

    holds: Callable[[GpuHealth, Thresholds], bool]
    words: Callable[[GpuHealth], str]
    said: dict[str, Any]


ECC = "ecc-uncorrectable"
OVER = "ecc-growth"
#: Facts about how a GPU answers, which a good answer ends.
STATUS = frozenset(
    {"gpu-lost", "reset-required", "driver-reset-required", "unresponsive", "nvml-error"}
)
#: The card keeps such a flag for good: one that the next reading takes back was misread.
_LASTS = {"at_once": False}
_MEMORY = {"cause": Cause.GPU_MEMORY, "recovery": Recovery.DRAIN_RESET}
_SLOW = {"recovery": Recovery.DIAGNOSE}
_DEGRADED = {"cause": Cause.GPU_DEGRADED} | _SLOW


def _odd(name: str, said: dict[str, Any]) -> _Flag:
    """A fact about what `rules.degraded` has seen for long enough."""
    return _Flag(
        lambda health, _: name in health.odd and health.odd[name].told,
        lambda health: health.odd[name].words,
        said,
    )


FLAGS: dict[str, _Flag] = {
    "remap-failure": _Flag(
        lambda health, _: health.failure is True,
        lambda _: "a row could not be remapped: no spare was left (remap failure)",
        {"rank": 83, "weight": 0.95, "cause": Cause.GPU_MEMORY, "recovery": Recovery.REPLACE}
        | _LASTS,
    ),
    "sram-threshold": _Flag(
        lambda health, _: health.sram is True,
        lambda _: "SRAM errors passed the vendor's threshold for replacement",
        {"rank": 80, "weight": 0.9, "cause": Cause.GPU_MEMORY, "recovery": Recovery.REPLACE}
        | _LASTS,
    ),
    OVER: _Flag(
        lambda health, limits: health.growth > limits.ecc_uncorrectable_growth,
        lambda health: f"{words_of_growth(health)}, above the limit",
        {"rank": 78, "weight": 0.9, "crossing": True} | _MEMORY,
    ),
    ECC: _Flag(
        lambda health, _: health.growth > 0,
        words_of_growth,
        {"rank": 55, "weight": 0.6} | _MEMORY,
    ),
    "remap-pending": _Flag(
        lambda health, _: bool(health.pending or health.retired_pending),
        lambda _: "a row remap waits for the next reset",
        {"rank": 44, "weight": 0.3} | _MEMORY,
    ),
    "driver-reset-required": _Flag(
        lambda health, _: health.recovery_action in (_RESET, _REBOOT),
        lambda health: (
            "the driver asks for a "
            + ("GPU reset" if health.recovery_action == _RESET else "node reboot")
            + " (NVML field 230)"
        ),
        {
            "rank": 47,
            "weight": 0.9,
            "cause": Cause.GPU_LOST,
            "recovery": Recovery.RESET_GPU,
            # It names the action, not the culprit: what does name it may still be on its way.
            "at_once": False,
        },
    ),
    "drain-wanted": _Flag(
        lambda health, _: health.recovery_action in (_DRAIN_P2P, _DRAIN_RESET),
        lambda health: (
            "the driver asks to drain "
            + ("peer traffic" if health.recovery_action == _DRAIN_P2P else "and reset the GPU")
            + " (NVML field 230)"
        ),
        {"rank": 43, "weight": 0.3, "recovery": Recovery.DRAIN_RESET},
    ),
    "over-temperature": _Flag(
        lambda health, _: health.hot_told,
        lambda health: f"too hot since {health.hot_since:%H:%M:%S} UTC",
        {
            "rank": 40,
            "weight": 0.9,
            "crossing": True,
            "cause": Cause.GPU_THERMAL,
            "recovery": Recovery.DIAGNOSE,
        },
    ),
}
#: What holds only of a card that `rules.degraded` looked at: hardly any.
ODD_FLAGS: dict[str, _Flag] = {
    "unrepairable-memory": _odd(
        "unrepairable-memory",
        {"rank": 79, "weight": 0.6, "cause": Cause.GPU_MEMORY, "recovery": Recovery.REPLACE},
    ),
    "repair-pending": _odd("repair-pending", {"rank": 43, "weight": 0.3} | _MEMORY),
    "nvlinks-down": _odd(
        "nvlinks-down",
        {"rank": 39, "weight": 0.4, "cause": Cause.NVLINK, "recovery": Recovery.CHECK_LINK},
    ),
    "fabric-unhealthy": _odd(
        "fabric-unhealthy",
        {"rank": 38, "weight": 0.3, "cause": Cause.NVLINK, "recovery": Recovery.CHECK_LINK},
    ),
    "pcie-narrow": _odd("pcie-narrow", {"rank": 35, "weight": 0.3, "cause": Cause.PCIE} | _SLOW),
    "power-brake": _odd("power-brake", {"rank": 34, "weight": 0.3} | _DEGRADED),
    "slow-clock": _odd("slow-clock", {"rank": 33, "weight": 0.3} | _DEGRADED),
}
