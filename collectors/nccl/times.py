"""Reads the time a training log line gives itself, in the five ways such lines write it.

Most are local time without a zone and some have no year: both are filled in from arguments, and
the result is never later than ``now``.
"""

import re
from datetime import UTC, datetime, timedelta, tzinfo

__all__ = ["line_time"]

#: A collector in front of the line writes its time near the start; later dates are only mentioned.
_HEAD_CHARS = 160
#: A time without a year this far ahead of us is last year's.
_AHEAD = timedelta(days=1)

# `[2026-04-02 09:13:51] gpu7:811:902 [3] ...`, `2026-04-02T09:13:51.118204771Z stdout F ...`
# `2026/04/02 09:13:51 gpu7:811:902 [3] NCCL ...`, `time      : 2026-04-02_09:13:51`
_DATED = re.compile(
    r"(?<!\d)(\d{4})[-/](\d\d)[-/](\d\d)[ T_](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
    r"(Z|[+-]\d\d:?\d\d)?(?!\d)",
)

# `[rank5]:[E402 09:13:51.118204771 ProcessGroupNCCL.cpp:632] ...` (month of one or two digits)
# `E0402 09:13:51.118000 4711 torch/distributed/elastic/multiprocessing/api.py:826] ...`
_YEARLESS = re.compile(
    r"(?<![A-Za-z0-9])[IWEF](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))? ",
)


def line_time(text: str, *, tz: tzinfo, now: datetime) -> datetime | None:
    """The line's own time as aware UTC, or None when it has none (older NCCL prints none).

    A time with a zone wins over one without, the program's own over a launcher's. ``tz`` is the
    zone of times that have none; ``now`` gives the year where it is missing and bounds the result.
    """
    head = text[:_HEAD_CHARS]
    dated = _DATED.search(head)
    if dated is not None and dated[8]:
        return _bounded(_dated(dated, tz), now)
    yearless = _YEARLESS.search(head)
    if yearless is not None:
        return _bounded(_yearless(yearless, tz, now), now)
    return None if dated is None else _bounded(_dated(dated, tz), now)


def _dated(found: re.Match[str], tz: tzinfo) -> datetime | None:
    zone = found[8]
    if zone == "Z":
        tz = UTC
    try:
        if zone and zone != "Z":
            tz = datetime.strptime(zone.replace(":", ""), "%z").tzinfo or UTC
        year, month, day, hour, minute, second = map(int, found.groups()[:6])
        return datetime(
            year, month, day, hour, minute, second, _microseconds(found[7]), tz
        ).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _yearless(found: re.Match[str], tz: tzinfo, now: datetime) -> datetime | None:
    month, day, hour, minute, second = map(int, found.groups()[:5])
    this_year = now.astimezone(tz).year
    for year in range(this_year, this_year - 5, -1):  # 29 February comes every fourth year
        try:
            at = datetime(
                year, month, day, hour, minute, second, _microseconds(found[6]), tz
            ).astimezone(UTC)
        except (ValueError, OverflowError):
            continue
        if at - now <= _AHEAD:
            return at
    return None


def _microseconds(fraction: str | None) -> int:
    return int((fraction or "0").ljust(6, "0")[:6])


def _bounded(at: datetime | None, now: datetime) -> datetime | None:
    return None if at is None else min(at, now)
