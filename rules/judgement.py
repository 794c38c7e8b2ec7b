"""One incident judged: context first, then by what kind of part it is.

A context that was announced makes of any accusation a suspicion; once it is over and the part is
still out of order, it explains nothing any more.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from evidence.decisions import Status
from rules.age import STALE
from rules.context import announced, explains
from rules.gathering import hardware, root_of
from rules.host_state import Fact, FactKind, Incident, Window
from rules.scene import Judgement, Scene
from rules.silence import judge_silent
from rules.verdict_gpu import judge_gpu
from rules.verdict_growth import GROWTH, judge_growth
from rules.verdict_link import judge_dark
from rules.verdict_node import (
    judge_boots,
    judge_node,
    judge_node_lost,
    judge_port,
    judge_service,
    judge_suspicion,
    judge_switch,
)
from rules.widening import NODE_DARK, NODE_LOST, NODE_SILENT, subject_gpus

__all__ = ["judge"]

_Judge = Callable[[Incident, Sequence[Fact], Scene], Judgement | None]
_BY_SUBJECT: Mapping[str, _Judge] = {
    NODE_LOST: judge_node_lost,
    NODE_DARK: judge_dark,
    NODE_SILENT: judge_silent,
    "node:service": judge_service,
    "node:boots": judge_boots,
}
_BY_WORD: Mapping[str, _Judge] = {
    "node": judge_node,
    "switch": judge_switch,
    "port": judge_port,
    "job": judge_suspicion,
    "rank": judge_suspicion,
    "link": judge_suspicion,
    GROWTH: judge_growth,
}
_ACCUSING = (Status.LOCALIZED, Status.SUSPECTED)
_EXPLAINED_CONFIDENCE = 0.2
_OLD_CONFIDENCE = 0.3
_TICK = timedelta(microseconds=1)


def judge(incident: Incident, scene: Scene) -> Judgement | None:
    """What is to be said about an incident now; None when it is not worth a word."""
    facts = [fact for fact in incident.facts if fact.kind is not FactKind.RECOVERED]
    if not facts:
        return None
    judge_part = _BY_SUBJECT.get(incident.subject) or _BY_WORD.get(
        incident.subject.partition(":")[0], judge_gpu
    )
    covering = {fact.order: _covering(incident, fact, scene) for fact in facts}
    plain = [fact for fact in facts if covering[fact.order] is None]
    accused = [fact for fact in facts if hardware(fact)]
    if any(hardware(fact) for fact in plain):
        told = judge_part(incident, plain, scene)
    elif accused:
        window = _latest(covering[fact.order] for fact in accused)
        told = _explained(incident, judge_part(incident, facts, scene), window, scene)
    else:
        told = judge_part(incident, facts, scene)
        if told is not None and not plain and told.status in _ACCUSING:
            window = _latest(covering.values())
            told = _explained(incident, told, window, scene)
    behind = accused or facts
    if told is not None and told.status is Status.LOCALIZED:
        over = all(f.belated for f in behind) and scene.well_since(
            incident.subject, told.root.at + timedelta(seconds=scene.limits.incident_window_s)
        )
        stale = all(f.old for f in behind) and not scene.still_stands(incident.subject, told.cause)
        if over or stale:
            told = _old_news(incident, told, scene)
    return _recovered(incident, accused, told, scene)


def _covering(incident: Incident, fact: Fact, scene: Scene) -> Window | None:
    for window in scene.state.windows:
        if explains(window, fact, scene.limits, scene.state.behind_s) and not (
            scene.now > window.until and scene.lasts(incident.subject, window.until)
        ):
            return window
    return None


def _latest(windows: Iterable[Window | None]) -> Window:
    found = [window for window in windows if window is not None]
    return max(found, key=lambda window: (window.until, window.ref.id))


def _explained(
    incident: Incident, told: Judgement | None, window: Window, scene: Scene
) -> Judgement | None:
    if told is None:
        return None
    over = scene.now > window.until
    if told.status not in _ACCUSING:
        return replace(told, explained_by=window.ref.id, refs=(*told.refs, window.ref))
    because = f" ({window.reason})" if window.reason else ""
    if over and scene.well_since(incident.subject, told.root.at):
        return replace(
            told,
            status=Status.RECOVERED,
            hard=False,
            confidence=0.7,
            reason=f"The {announced(window)}{because} is over and the GPU reads well;"
            f" it explained: {told.root.words}.",
            explained_by=window.ref.id,
            refs=(*told.refs, window.ref),
            recheck=None,
        )
    return replace(
        told,
        status=Status.SUSPECTED,
        hard=False,
        confidence=min(told.confidence, _EXPLAINED_CONFIDENCE),
        reason=f"A {announced(window)}{because} explains this: {told.root.words}.",
        explained_by=window.ref.id,
        refs=(*told.refs, window.ref),
        recheck=None if over else window.until + _TICK,
    )


def _old_news(incident: Incident, told: Judgement, scene: Scene) -> Judgement:
    """What was heard too late is no reason to act: a reset or another card may lie between."""
    when = f"{told.root.at:%Y-%m-%d %H:%M} UTC"
    lately = scene.read_lately(incident.subject)
    if lately and scene.well_since(incident.subject, told.root.at):
        return replace(
            told,
            status=Status.RECOVERED,
            hard=False,
            confidence=0.7,
            reason=f"The GPU reads well now; what came late told of {when}: {told.root.words}.",
            recheck=None,
        )
    return replace(
        told,
        status=Status.SUSPECTED,
        hard=False,
        confidence=min(told.confidence, _OLD_CONFIDENCE),
        reason=f"Heard long after it happened, at {when}, so it may be over: {told.reason}",
        missing=("NVML snapshots of today", *told.missing),
        muted=STALE,
    )


def _recovered(
    incident: Incident, accused: Sequence[Fact], told: Judgement | None, scene: Scene
) -> Judgement | None:
    """A fault that was told and is gone: the driver or NVML took it back after the last fact."""
    at = incident.recovered_at
    if told is None or at is None or incident.status is None or told.status not in _ACCUSING:
        return told
    parts = subject_gpus(scene.state) if incident.subject == NODE_LOST else {incident.subject}
    again = any(o.subject == incident.subject and o.first > at for o in scene.others(incident))
    bad = not again and any(scene.still_bad(part) for part in parts)
    if bad or any(fact.at > at for fact in accused):
        return told
    root = root_of(accused) if accused else told.root
    return replace(
        told,
        status=Status.RECOVERED,
        hard=False,
        confidence=0.7,
        reason=f"It works again since {at:%H:%M:%S} UTC; it was: {root.words}.",
        recheck=None,
    )
