"""How old news is: what is heard long after it happened may be over since.

An agent reads a kernel ring late, or ships from its spool what it could not send in time. Either
way a fault is judged by when it happened. From ``old_news_s`` on, a fact alone says what was: the
verdict is said and marked `STALE`, and no command follows until a reading of NVML that is younger
than that still shows the fault.
"""

from datetime import datetime, timedelta

from msgspec.structs import replace

from rules.host_state import Fact, HostState
from rules.thresholds import Thresholds

__all__ = ["CLOCK_WAS_SET", "STALE", "aged", "with_clock"]

#: What a verdict is marked with (``muted``) that is no reason to act any more.
STALE = "stale"
#: What is older than the last of its kind by more than this is no late one: the clock was set back,
#: since an agent ships what it read in the order in which it read it.
CLOCK_WAS_SET = timedelta(hours=1)
_JITTER_S = 1.0


def aged(fact: Fact, read_at: datetime, behind_s: float, limits: Thresholds) -> Fact:
    """The fact, marked when it was read at ``read_at``, or arrived, long after its event.

    ``behind_s`` is how far the host's clock is behind, so that a wrong clock makes nothing old.
    Nothing that came minutes late is judged before it settled: what ended it may be right behind.
    """
    arrived_late = fact.arrived - fact.at - timedelta(seconds=behind_s)
    late = max(read_at - fact.at, arrived_late).total_seconds()
    if late <= limits.incident_window_s:
        return fact
    return replace(fact, old=late > limits.old_news_s, belated=True, at_once=False)


def with_clock(state: HostState, at: datetime, arrived: datetime) -> HostState:
    """The state with what a frame of ``at`` tells of the host's clock; mostly the same object.

    A clock that was set back is behind until the host tells how far, or is heard to be right.
    """
    last = state.frames_at
    if last is not None and last - at > CLOCK_WAS_SET:
        return replace(state, frames_at=None, behind_s=(arrived - at).total_seconds())
    if state.behind_s:
        behind_s = max(0.0, (arrived - at).total_seconds())
        if state.behind_s - behind_s > _JITTER_S:
            return replace(state, behind_s=behind_s)
    return state
