"""What a day's statistics say of one GPU's error counts."""

from datetime import datetime

from evidence.records.wire import Wire

__all__ = ["GrowthRecord"]


class GrowthRecord(Wire, frozen=True, kw_only=True, omit_defaults=True, tag="growth/1"):
    """One GPU and counter (``corrected``, ``uncorrected``) judged over the days up to ``at``.

    ``verdict`` is hard, growing, suspect, insufficient or stable; ``shape`` step or ramp, from
    ``since`` on (not before ``since_first``, not after ``since_last``). Rates are episodes a day of
    use, ``ratio`` (``ratio_low`` to ``ratio_high``, 95 %) that of the recent and the older window,
    ``effect`` the rate now by the rate before. ``q`` is the false-discovery rate over ``tested``
    GPUs and counters. ``reaches`` is what is forecast, ``reaches_days`` when, with a 90 % interval,
    or ``refused`` why not. ``id`` is a function of GPU, counter, day and verdict.
    """

    id: str
    host: str
    at: datetime
    observed_at: datetime
    gpu: str
    counter: str
    verdict: str
    pci: str | None = None
    uuid: str | None = None
    serial: str | None = None
    model: str | None = None
    shape: str | None = None
    since: datetime | None = None
    since_first: datetime | None = None
    since_last: datetime | None = None
    episodes: int = 0
    recent_episodes: int = 0
    rate_recent: float | None = None
    rate_before: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    effect: float | None = None
    p: float | None = None
    q: float | None = None
    tested: int = 0
    dispersion: float | None = None
    lewis_robinson_p: float | None = None
    slope_p: float | None = None
    change_p: float | None = None
    coverage: float | None = None
    beside_peers: float | None = None
    alarm_at: datetime | None = None
    states: tuple[str, ...] = ()
    reaches: str | None = None
    reaches_days: float | None = None
    reaches_low_days: float | None = None
    reaches_high_days: float | None = None
    refused: str | None = None
    why: tuple[str, ...] = ()
