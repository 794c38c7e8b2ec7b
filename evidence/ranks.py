"""Sets of ranks as short text: ``0-7``, ``0-56/8``, ``0-3,9``.

The process groups of a large job are ranges with a step, so that thousands of ranks stay a word.
"""

import re
from collections.abc import Iterable, Iterator

__all__ = ["from_ranges", "to_ranges"]

#: Most ranks that a text may stand for, against one that was made to fill the memory.
_RANKS_MAX = 1 << 20

_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?:/(\d{1,9}))?)?")


def to_ranges(ranks: Iterable[int]) -> str:
    """Write ranks as ranges in rising order; ``a-b/s`` is every s-th from a to b."""
    return ",".join(_written(*run) for run in _runs(sorted(set(ranks))))


def from_ranges(text: str) -> tuple[int, ...]:
    """Read what `to_ranges` wrote; raises ValueError for anything else."""
    ranks: list[int] = []
    for part in text.split(",") if text else ():
        found = _RANGE.fullmatch(part)
        if found is None:
            raise ValueError(f"{part[:40]!r} is no range of ranks")
        first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        if step < 1 or last < first or len(ranks) + (last - first) // step >= _RANKS_MAX:
            raise ValueError(f"{part[:40]!r} is no range of ranks")
        ranks.extend(range(first, last + 1, step))
    return tuple(ranks)


def _runs(ranks: list[int]) -> Iterator[tuple[int, int, int]]:
    """First, last and step of each run; two ranks alone make one only when they are neighbours."""
    at = 0
    while at < len(ranks):
        end = at
        step = ranks[at + 1] - ranks[at] if at + 1 < len(ranks) else 1
        while end + 1 < len(ranks) and ranks[end + 1] - ranks[end] == step:
            end += 1
        if step > 1 and end - at < 2:  # noqa: PLR2004 (a step shows only in three)
            end = at
        yield ranks[at], ranks[end], step
        at = end + 1


def _written(first: int, last: int, step: int) -> str:
    if first == last:
        return str(first)
    return f"{first}-{last}" if step == 1 else f"{first}-{last}/{step}"
