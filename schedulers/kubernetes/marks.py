"""What we write on a node and how we know it again: pure functions over a node's JSON.

A node's taints are one list that a patch replaces whole: what others put there is written back,
and the patch carries the version that was read, so that nobody's change is lost.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from evidence.decisions import Command, Domain, Level
from evidence.identity import digest
from schedulers.kubernetes.config import KubernetesConfig

__all__ = [
    "Change",
    "Mark",
    "as_time",
    "isolated",
    "marks_of",
    "released",
    "same_part",
    "undone",
    "whose_cordon",
]

Json = dict[str, Any]
OURS, THEIRS = "ours", "theirs"
# The value of a label or taint: `0f3c9a51d2e84b7790aa1c3e`
_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_REASON = 200


class Mark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of our commands that keeps a part out. ``forced``: the NoExecute taint is set too."""

    command: str
    level: Level
    domain: Domain
    at: datetime
    reason: str = ""
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """The patch that is to be sent (None: nothing is to be changed), the marks after it, in words.

    ``by_hand``: somebody took this very command's isolation back, and it is left so.
    """

    body: Json | None
    marks: Mapping[str, Mark]
    words: str
    by_hand: bool = False


def mark(command: Command, at: datetime, *, forced: bool = False) -> Mark:
    """What is remembered of a command."""
    return Mark(
        command=command.id,
        level=command.level,
        domain=command.domain,
        at=at,
        reason=command.reason[:_REASON],
        forced=forced,
    )


def marks_of(thing: Json, settings: KubernetesConfig) -> dict[str, Mark]:
    """Our marks on a node or a rule, by domain id; none where the annotation is unreadable."""
    text = thing.get("metadata", {}).get("annotations", {}).get(settings.mark)
    if not text:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Mark])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}


def written(marks: Mapping[str, Mark]) -> str:
    """The annotation's text."""
    return msgspec.json.encode(dict(sorted(marks.items()))).decode()


def same_part(one: Domain, other: Domain) -> bool:
    """Whether two domains are one part: by name, or by UUID or place where one has learned more."""
    if one.id == other.id:
        return True
    if one.kind is not other.kind or one.host != other.host:
        return False
    if one.mig != other.mig or one.link != other.link:
        return False
    if one.uuid is not None and other.uuid is not None:
        return one.uuid == other.uuid
    return one.pci is not None and one.pci == other.pci


def undone(node: Json, settings: KubernetesConfig) -> bool:
    """Whether somebody took our isolation of a node back: our taint is gone, or our cordon is."""
    if not marks_of(node, settings):
        return False
    tainted = any(_ours(taint, settings) for taint in _taints(node))
    uncordoned = not _cordoned(node) and whose_cordon(node, settings) == OURS
    return not tainted or uncordoned


def isolated(node: Json, command: Command, now: datetime, settings: KubernetesConfig) -> Change:
    """Cordon, taint and mark a node for a command, in one patch."""
    marks = marks_of(node, settings)
    gone = undone(node, settings)
    known = marks.get(command.domain.id)
    if known is not None and known.command == command.id:
        if gone:
            return Change(None, marks, "it was taken back by hand and is left so", by_hand=True)
        return Change(None, marks, "it was isolated by this command before")
    if gone:
        marks = {}  # taken back by hand: a new cordon must not bring them back
    marks = {
        name: one for name, one in marks.items() if not same_part(one.domain, command.domain)
    } | {command.domain.id: mark(command, now)}
    cordoned = _cordoned(node)
    whose = whose_cordon(node, settings) or (THEIRS if cordoned else OURS)
    if not cordoned:
        whose = OURS
    body = _patch(node, marks, settings)
    body["metadata"]["annotations"][settings.cordon] = whose
    body["spec"]["unschedulable"] = True
    words = "cordoned and tainted"
    if whose == THEIRS:
        words = "tainted; somebody else had cordoned it, which a release will leave"
    return Change(body, marks, words)


def forced(node: Json, command: Command, settings: KubernetesConfig) -> Change:
    """Add the NoExecute taint for a command whose mark is there."""
    marks = marks_of(node, settings)
    known = marks.get(command.domain.id)
    if known is None or known.forced or undone(node, settings):
        return Change(None, marks, "")
    marks[command.domain.id] = msgspec.structs.replace(known, forced=True)
    return Change(_patch(node, marks, settings), marks, "tainted NoExecute")


def released(node: Json, domain: Domain, settings: KubernetesConfig) -> Change:
    """Take back what a domain's mark did, as far as no other mark needs it."""
    marks = marks_of(node, settings)
    kept = {name: one for name, one in marks.items() if not same_part(one.domain, domain)}
    orphan = not marks and any(_ours(taint, settings) for taint in _taints(node))
    if kept == marks and not orphan:
        others = f"; it stays out for {', '.join(sorted(marks))}" if marks else ""
        return Change(None, marks, f"nothing of ours stood for {domain.id}{others}")
    body = _patch(node, kept, settings)
    if kept and undone(node, settings):
        del body["spec"]  # what a person took back for all of them is not put on again
        return Change(body, kept, "mark lifted; all had been taken back by hand")
    if kept:
        return Change(body, kept, f"mark lifted; it stays out for {', '.join(sorted(kept))}")
    body["metadata"]["annotations"][settings.cordon] = None
    whose = whose_cordon(node, settings)
    if not _cordoned(node):
        return Change(body, kept, "taint lifted; it had been uncordoned by hand")
    if whose == OURS:
        body["spec"]["unschedulable"] = None
        return Change(body, kept, "taint lifted and uncordoned")
    return Change(body, kept, "taint lifted; the cordon is somebody else's and stays")


def value(command: str) -> str:
    """A command's id as the value of a taint."""
    return command if _VALUE.fullmatch(command) else digest(command)


def as_time(text: object) -> datetime | None:
    """A time as Kubernetes writes it; None where there is none."""
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None


def whose_cordon(node: Json, settings: KubernetesConfig) -> str | None:
    """Whose the cordon of a node with marks is: ``OURS`` or ``THEIRS``; None where we have none."""
    found = node.get("metadata", {}).get("annotations", {}).get(settings.cordon)
    return found if found in (OURS, THEIRS) else None


def _patch(node: Json, marks: Mapping[str, Mark], settings: KubernetesConfig) -> Json:
    """The patch that leaves exactly these marks and their taints, and others' taints as read."""
    taints = [taint for taint in _taints(node) if not _ours(taint, settings)]
    if marks:
        named = value(min(marks.values(), key=lambda one: (one.at, one.command)).command)
        effects = ["NoSchedule"] + ["NoExecute"] * any(one.forced for one in marks.values())
        taints += [{"key": settings.taint, "value": named, "effect": one} for one in effects]
    return {
        "metadata": {
            "resourceVersion": node["metadata"]["resourceVersion"],
            "annotations": {settings.mark: written(marks) if marks else None},
        },
        "spec": {"taints": taints or None},
    }


def _taints(node: Json) -> list[Json]:
    return list(node.get("spec", {}).get("taints") or ())


def _ours(taint: Json, settings: KubernetesConfig) -> bool:
    return bool(taint.get("key") == settings.taint)


def _cordoned(node: Json) -> bool:
    return bool(node.get("spec", {}).get("unschedulable"))
