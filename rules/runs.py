"""Where one run of a job ends and the next begins, while the number of its attempt stays.

A job that is requeued keeps its id, and its logs mostly tell no attempt: what was said of one run
must then neither explain nor silence a fault of the next.
"""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from evidence.decisions import Says, Suspicion
from evidence.records import NcclKind, NcclRecord
from rules.clues import Fault, fault_of, opens
from rules.ended import killed_itself
from rules.incident import Incident
from rules.ranks import Roster
from rules.times import begun_at, said_at

__all__ = ["ENDED", "begun_after", "counted", "is_late", "shows_restart"]

#: What is stopped is dead after this: Slurm's KillWait and torchrun's own patience are 30 s each.
ENDED = timedelta(seconds=60)
#: Lines of the run before that come this late are known by their own time, as far as the clocks of
#: two hosts agree.
_LATE, _SKEW = timedelta(seconds=300), timedelta(seconds=5)

#: Answers that rest on a process's own end or words: no other process's later end explains them.
_EXPLAINED = frozenset(
    {
        "address-in-use",
        "exception",
        "external-stop",
        "host-out-of-memory",
        "launch-failure",
        "node-failure",
        "nvlink-error",
        "out-of-memory",
        "own-error",
        "process-death",
    }
)
#: Lines about the network that only a living process prints.
_NETWORK = frozenset({NcclKind.IB_COMPLETION, NcclKind.IB_ASYNC, NcclKind.IB_CONNECT})
_FLUSHED = 5  # the queue pair was in error already

#: Equal answers of a job that fails again and again: so many are told, then each doubling.
_TOLD_EACH = 3
_ANSWERS_COUNTED = 64


def shows_restart(roster: Roster, told_to: datetime | None, record: NcclRecord) -> bool:
    """Whether a line that teaches ranks shows new processes: communicators or workers begin anew.

    ``told_to`` is the time of the last line of what was told of the run, None before that.
    """
    if record.kind is NcclKind.COMM_INIT:
        if roster.restarted(record):
            return True
        return told_to is not None and said_at(record) > told_to and roster.rejoined(record)
    if record.kind is not NcclKind.RANK_MAP or not record.ranks:
        return False
    # Without its own time it may be an old line that was shipped late.
    return told_to is not None and record.at is not None and record.at > told_to


def is_late(record: NcclRecord, began: datetime | None) -> bool:
    """Whether a line is one of the run before, by its own time."""
    if began is None or record.at is None:
        return False
    return began - _LATE <= record.at < began - _SKEW


def begun_after(
    incident: Incident, kinds: Collection[str], told_to: datetime, settle: timedelta
) -> datetime | None:
    """From when on the lines are of another run than what was told of; None: no line shows one.

    ``kinds`` are what was told. The tail of a failure shows none: others' complaints, exits of
    processes that were heard before or that an agent ended, and what comes within the settle time.
    """
    calm = said_at(incident.records[0]) > told_to
    silent = not incident.roster.has_cards  # else NCCL's lines would have told of new processes
    stops = [said_at(record) for record in incident.of(NcclKind.EXTERNAL_STOP)]
    for record in incident.records:
        at = said_at(record)
        begun = begun_at(record) if record.kind is NcclKind.TIMEOUT else None
        if begun is not None and begun > told_to + ENDED:
            return told_to + ENDED
        if at <= told_to + settle or not silent or not (calm or not _EXPLAINED.isdisjoint(kinds)):
            continue
        # The run before ended with what was told, or with a stop from outside since then.
        end = max([told_to, *(stop for stop in stops if stop < at - settle)])
        if _of_itself(incident, record):
            heard = _heard(incident, end + settle)
            if record.pid is not None and (record.host, record.pid) not in heard:
                return end + settle
            if record.pid is None and at > end + ENDED:
                return end + ENDED
        elif (calm or "external-stop" in kinds) and at > end + ENDED and _new_trouble(record):
            return end + ENDED
    return None


def _heard(incident: Incident, until: datetime) -> set[tuple[str | None, int | None]]:
    return {(record.host, record.pid) for record in incident.records if said_at(record) <= until}


def _of_itself(incident: Incident, record: NcclRecord) -> bool:
    """Whether a process ended by itself, or tells a fault of its own."""
    if not incident.causal(record):
        return False
    return killed_itself(incident, record) or fault_of(record) not in (None, Fault.SERVICE)


def _new_trouble(record: NcclRecord) -> bool:
    return record.kind in _NETWORK and opens(record) and record.status != _FLUSHED


def counted(loop: Mapping[str, int], answer: Suspicion) -> tuple[dict[str, int], bool]:
    """Count an answer among those of the runs before it, and whether it is still to be told.

    An accusation counts by its part; whatever accuses nobody counts by its kind.
    """
    accused = answer.domain.id if answer.says is Says.ACCUSES else ""
    key = f"{answer.kind} {answer.status} {accused}"
    times = loop.get(key, 0) + 1
    kept = dict(loop)
    if key in kept or len(kept) < _ANSWERS_COUNTED:
        kept[key] = times
    return kept, times <= _TOLD_EACH or times & (times - 1) == 0
