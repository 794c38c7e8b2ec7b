"""In which order the worker met records of several topics, as far as its verdicts tell.

Kafka orders a partition, not the topics of one stage: what a fetch brings half a second late is met
after what was appended after it. A hard fact is judged at once and gives its incident the id, so
that order can be seen in the verdicts and has to be kept.
"""

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

from evidence.decisions import Verdict
from warehouse.replay import Place, places

__all__ = ["met_later"]

#: A fetch is not later than that; what a verdict took up later still was known and not yet of it.
_LATEST = timedelta(seconds=5)
_AFTER = timedelta(microseconds=1)
#: A verdict that rests on so many records may have left some out.
_MANY = 32


def met_later(
    root: Path,
    verdicts: Iterable[Verdict],
    topics: Collection[str],
    since: datetime,
    until: datetime,
) -> dict[Place, datetime]:
    """The messages that were met after others which Kafka took later, and the earliest time for it.

    A record that only a later revision of an incident rests on was not met when the one before it
    was decided. ``verdicts`` are in the order in which they were said.
    """
    by_incident: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        by_incident.setdefault(verdict.incident, []).append(verdict)
    revised = [said for said in by_incident.values() if len(said) > 1]
    ids = {ref.id for said in revised for verdict in said for ref in verdict.evidence}
    found = places(root, topics, since, until, ids)
    met = {name: at for name, (_, at) in found.items()}
    held: dict[Place, datetime] = {}
    for said in revised:
        known: set[str] = set()
        for before, after in pairwise(said):
            known |= {ref.id for ref in before.evidence if ref.id in met}
            if not known or len(before.evidence) >= _MANY:
                continue
            last = max(met[name] for name in known)
            for ref in after.evidence:
                if ref.id in known or ref.id not in met:
                    continue
                if timedelta(0) <= last - met[ref.id] <= _LATEST:
                    met[ref.id] = last + _AFTER
                    place = found[ref.id][0]
                    held[place] = max(met[ref.id], held.get(place, met[ref.id]))
    return held
