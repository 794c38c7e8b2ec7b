"""Settings of drills: where they may hit, how often and when."""

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

__all__ = ["DrillConfig"]

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
# `08:30-17:00`
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-4]):([0-5]\d)")


@dataclass(frozen=True, slots=True)
class DrillConfig:
    """What allows drills; without ``pools`` nothing does.

    ``most_an_hour`` drills over all pools; ``hours`` (UTC, empty: at any time) and ``days`` say
    when. ``owners`` own jobs that may be hit. ``blind`` lets a drill run where no scheduler has
    ever told which jobs run where. ``objective_s`` is until the job trains again. ``folder`` has
    the drills by name, ``state_dir`` what is to be undone.
    """

    state_dir: Path
    folder: Path = Path("/etc/ringfence/drills")
    pools: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    most_an_hour: int = 1
    hours: str = ""
    days: tuple[str, ...] = _DAYS
    blind: bool = False
    objective_s: float = 90.0

    def __post_init__(self) -> None:
        if self.hours and not _HOURS.fullmatch(self.hours):
            raise ValueError(f"hours {self.hours!r} is not like 08:30-17:00 (UTC)")
        unknown = sorted(set(self.days) - set(_DAYS))
        if unknown:
            raise ValueError(f"days: {unknown[0]!r} is none of {', '.join(_DAYS)}")
        if self.most_an_hour < 1 or self.objective_s <= 0:
            raise ValueError("most_an_hour must be 1 at least, objective_s more than 0 seconds")

    def allows(self, now: datetime) -> bool:
        """Whether now is within the days and hours; the end of the hours may be past midnight."""
        if _DAYS[now.weekday()] not in self.days:
            return False
        if not self.hours:
            return True
        begin, _, end = self.hours.partition("-")
        clock = f"{now:%H:%M}"
        if begin <= end:
            return begin <= clock < end
        return clock >= begin or clock < end
