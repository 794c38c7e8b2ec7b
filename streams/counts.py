"""What one stage has done since its worker started: plain numbers, written by the runner.

Cheap enough for the hot path, and known to no metrics library: whoever shows them reads them when
it is asked to, from the loop the worker runs in. All of them only grow, unless said otherwise.
"""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from msgspec import Struct

from evidence.decisions import Command, Suspicion, Verdict

__all__ = ["BATCH_SIZES", "STEP_SECONDS", "Histogram", "StageCounts", "labels"]

#: Upper bounds of the buckets of `StageCounts.steps`, in seconds.
STEP_SECONDS = (0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
#: Upper bounds of the buckets of `StageCounts.batches`, in messages.
BATCH_SIZES = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)
#: Upper bounds of the buckets of `StageCounts.settles`, in seconds.
SETTLE_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


@dataclass(slots=True)
class Histogram:
    """How often a value was at most each bound, not added up; the last count is of all above."""

    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(slots=True)
class StageCounts:
    """The numbers of one stage (`Runner.counts`).

    ``taken`` messages were read, ``ticks`` and ``redelivered`` ones (passed over: their state had
    seen them) among them; ``failed`` became dead letters; ``dropped`` outputs had nobody to be sent
    to; ``too_large`` messages were refused by the broker. ``steps`` has the seconds of each message
    that was stepped (a tick that steps many keys is one), ``batches`` the messages settled together
    and ``settles`` the seconds that took. ``writes`` states went to the changelog. ``queued``
    (goes up and down) messages are stepped and not settled. ``outputs`` counts what steps returned
    under `labels`: a command that is sent again until its ack is counted each time.
    ``positions`` (goes back too) has the last offset taken of each (short topic name, partition).
    ``restores`` recoveries of the table were made; the last one found ``restored_keys`` keys and
    took ``restored_s`` seconds, reading the changelog not among them.
    """

    taken: int = 0
    ticks: int = 0
    redelivered: int = 0
    failed: int = 0
    dropped: int = 0
    too_large: int = 0
    writes: int = 0
    queued: int = 0
    steps: Histogram = field(default_factory=lambda: Histogram(STEP_SECONDS))
    batches: Histogram = field(default_factory=lambda: Histogram(BATCH_SIZES))
    settles: Histogram = field(default_factory=lambda: Histogram(SETTLE_SECONDS))
    outputs: Counter[tuple[str, ...]] = field(default_factory=Counter)
    positions: dict[tuple[str, int], int] = field(default_factory=dict)
    restores: int = 0
    restored_keys: int = 0
    restored_s: float = 0.0


def labels(output: Struct) -> tuple[str, ...]:
    """What an output is counted under.

    ``("verdict", cause, status)``, ``("command", action, level, domain kind, as)`` where ``as`` is
    ``held``, ``dry-run`` or ``act``, ``("suspicion", witness, kind)``; others the name of their
    struct alone, such as ``("desiredstate",)``.
    """
    match output:
        case Verdict():
            return "verdict", output.cause.value, output.status.value
        case Command():
            how = "held" if output.held else "dry-run" if output.dry_run else "act"
            kind = output.domain.kind.value
            return "command", output.action.value, output.level.value, kind, how
        case Suspicion():
            return "suspicion", output.witness.value, output.kind
        case _:
            return (type(output).__name__.lower(),)
