"""Whether a card is too hot for too long, from its readings and from the time itself.

A reading holds until the next one is due, which is as far away as the last two were apart: with
sparse readings the limit is passed between two of them, and a tick tells it. A card of which
nothing more is heard is not hot by evidence, and is not told.
"""

from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from evidence.decisions import EvidenceRef, Witness
from evidence.records import GpuSnapshot
from rules.age import aged
from rules.health_flags import FLAGS
from rules.host_state import Fact, FactKind, GpuHealth, HostState
from rules.readings import hot
from rules.tables import Rules
from rules.thresholds import Thresholds

__all__ = ["heated", "next_heat", "overheated"]

_NAME = "over-temperature"


def heated(
    gpu: GpuSnapshot, health: GpuHealth, at: datetime, arrived: datetime, limits: Thresholds
) -> GpuHealth:
    """The health after one more reading: since when it is hot, and when a tick would tell it."""
    if not hot(gpu, limits):
        return replace(health, hot_since=None, hot_told=False, hot_at=None, hot_due=None)
    last = health.hot_at or health.seen_at
    since = health.hot_since or at
    if last is not None and at - last > timedelta(seconds=limits.temperature_gap_s):
        since, last = at, None  # nobody looked in between
    limit = since + timedelta(seconds=limits.temperature_for_s)
    if at >= limit:
        return replace(health, hot_since=since, hot_told=True, hot_at=None, hot_due=None)
    between = last is not None and health.hot_since is not None and limit < at + (at - last)
    return replace(
        health,
        hot_since=since,
        hot_told=False,
        hot_at=at,
        hot_due=arrived + (limit - at) if between else None,
    )


def next_heat(state: HostState) -> datetime | None:
    """When a tick would find a card hot for too long; None where only a reading can."""
    times = [health.hot_due for health in state.health.values() if health.hot_due is not None]
    return min(times, default=None)


def overheated(state: HostState, now: datetime, rules: Rules) -> tuple[HostState, list[Fact]]:
    """The cards whose time is over by ``now`` without a reading that says otherwise."""
    facts = []
    known = state.health
    for pci, health in state.health.items():
        if health.hot_due is None or health.hot_due > now or health.hot_at is None:
            continue
        told = replace(health, hot_told=True, hot_at=None, hot_due=None)
        fact = _fact(state, pci, told, health, now, rules)
        facts.append(fact)
        known = known | {pci: replace(told, standing=(*health.standing, fact))}
    return (replace(state, health=known), facts) if facts else (state, facts)


def _fact(
    state: HostState, pci: str, told: GpuHealth, before: GpuHealth, now: datetime, rules: Rules
) -> Fact:
    limits = rules.thresholds
    flag = FLAGS[_NAME]
    said: dict[str, Any] = dict(flag.said)
    if _NAME in rules.policy.hard_facts:
        said |= {"hard": _NAME}
    assert before.hot_since is not None
    at = min(before.hot_since + timedelta(seconds=limits.temperature_for_s), now)
    words = flag.words(told)
    seen = before.seen or before.first
    fact = Fact(
        ref=EvidenceRef(
            id=seen.id if seen is not None else f"heat:{state.host}/{pci}",
            source="gpu",
            at=before.hot_at,
            host=state.host,
            text=f"GPU {pci}: {words}",
        ),
        name=_NAME,
        kind=FactKind.HEALTH,
        witness=Witness.HEALTH,
        subject=pci,
        topic="gpu",
        at=at,
        arrived=now,
        due=now + timedelta(seconds=limits.settle_s),
        words=words,
        **said,
    )
    return aged(fact, at, state.behind_s, limits)
