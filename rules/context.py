"""What was announced for a host: windows that explain faults, and who used which GPU.

A planned drain explains that work stops, never that hardware breaks: our own isolation drains.
"""

from datetime import datetime, timedelta

from msgspec.structs import replace

from evidence.decisions import EvidenceRef
from evidence.records import ContextKind, ContextRecord
from rules.catalog import Role
from rules.host_state import Allocation, Fact, FactKind, HostState, Window
from rules.stage import reckonable
from rules.thresholds import Thresholds

__all__ = ["allocation", "announced", "explains", "take_context"]

_WINDOWS_MAX = 16
_ALLOCATIONS_MAX = 32
#: Topics whose times are those of the host's own clock.
_OWN = frozenset({"kernel", "gpu"})
#: What stopping work looks like.
_STOPPED = frozenset({Role.APPLICATION, Role.CONSEQUENCE})
#: What a GPU that is reset does to the GPUs linked to it; a switch tells its link's dead end, too.
_NEIGHBOURS = frozenset({Role.LINK, Role.CONSEQUENCE})


def take_context(
    state: HostState, record: ContextRecord, arrived: datetime, limits: Thresholds
) -> HostState:
    """Remember a context; one that ``ended`` closes what was announced before it."""
    if record.kind is ContextKind.ALLOCATION:
        return _allocate(state, record)
    until = _until(record, arrived, limits)
    windows = state.windows
    if record.ended:
        windows = tuple(_closed(window, record, until) for window in windows)
        if any(_same(window, record) for window in windows):
            return replace(state, windows=windows)
    by = f" by {record.by}" if record.by else ""
    text = f"{record.kind} announced{by}" + (f": {record.reason}" if record.reason else "")
    window = Window(
        ref=EvidenceRef(
            id=record.id, source="context", at=record.at, host=record.host, text=text[:200]
        ),
        kind=record.kind,
        at=reckonable(record.at) - timedelta(seconds=limits.context_lead_s),
        until=until,
        pci=record.pci,
        by=record.by,
        reason=record.reason,
    )
    kept = [known for known in windows if known.ref.id != record.id]
    kept.append(window)
    return replace(state, windows=tuple(kept[-_WINDOWS_MAX:]))


def _until(record: ContextRecord, arrived: datetime, limits: Thresholds) -> datetime:
    grace = timedelta(seconds=limits.context_grace_s)
    if record.until is not None:
        return reckonable(record.until) + grace
    if record.ended:
        return min(reckonable(record.observed_at), arrived) + grace
    long = record.kind in (ContextKind.MAINTENANCE, ContextKind.DRAIN)
    return reckonable(record.at) + timedelta(
        seconds=limits.maintenance_open_s if long else limits.context_open_s
    )


def _same(window: Window, record: ContextRecord) -> bool:
    return window.kind is record.kind and window.pci == record.pci


def _closed(window: Window, record: ContextRecord, until: datetime) -> Window:
    if not _same(window, record) or window.until <= until:
        return window
    return replace(window, until=until)


def _allocate(state: HostState, record: ContextRecord) -> HostState:
    taken = Allocation(
        at=record.at,
        until=record.until or (record.observed_at if record.ended else None),
        pci=record.pci,
        job=record.job or record.id,
        attempt=record.attempt,
        image=record.image,
        owner=record.owner,
    )
    kept = [
        known
        for known in state.allocations
        if (known.job, known.attempt, known.pci) != (taken.job, taken.attempt, taken.pci)
    ]
    kept.append(taken)
    kept.sort(key=lambda one: one.at)
    return replace(state, allocations=tuple(kept[-_ALLOCATIONS_MAX:]))


def allocation(state: HostState, pci: str, at: datetime) -> Allocation | None:
    """Who had the GPU at a time: the latest allocation that covers it; None when nobody knows."""
    for known in reversed(state.allocations):
        if (
            known.pci in (None, pci)
            and known.at <= at
            and (known.until is None or at <= known.until)
        ):
            return known
    return None


def explains(window: Window, fact: Fact, limits: Thresholds, behind_s: float = 0.0) -> bool:
    """Whether an announced context explains one fact.

    A host's clock may be wrong by minutes: then the time of arrival tells. ``behind_s`` is how far
    it is behind where the host told that.
    """
    at = min(fact.at + timedelta(seconds=behind_s), fact.arrived) if fact.topic in _OWN else fact.at
    skewed = fact.arrived - at <= timedelta(seconds=limits.clock_skew_s)
    times = (at, fact.arrived) if skewed else (at,)
    if not any(window.at <= time <= window.until for time in times):
        return False
    if window.kind is ContextKind.DRAIN:
        return fact.role in _STOPPED
    if window.pci is None or window.pci == fact.subject:
        return True
    of_a_link = fact.role in _NEIGHBOURS or (fact.kind is FactKind.SWITCH and not fact.own)
    return window.kind is ContextKind.GPU_RESET and of_a_link


def announced(window: Window) -> str:
    """The context in words: who announced what."""
    words = str(window.kind).replace("-", " ").replace("gpu", "GPU")
    where = f" of GPU {window.pci}" if window.pci else ""
    return f"{words}{where} announced by {window.by or 'an operator'}"
