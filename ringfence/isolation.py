"""What is out of service, what waits and why: read from Kafka's topics, without the stage itself.

`read` fetches, `overview` makes the picture of it and is pure. The isolation stage alone decides;
what it keeps in its own table (whether a held command was withdrawn) is told here by the verdicts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from evidence.decisions import (
    Ack,
    AckStatus,
    Action,
    Command,
    DesiredState,
    DomainKind,
    Hold,
    Request,
    RequestAction,
    Status,
    Verdict,
)
from evidence.transport import Kafka
from ringfence.reading_topics import read_topics
from rules.budget import spending
from rules.policy import Budget

__all__ = [
    "Alarm",
    "Answer",
    "Overview",
    "Part",
    "Topics",
    "differences",
    "overview",
    "read",
]

_NEEDED = ("isolation.state", "isolation.commands", "isolation.acks", "requests", "verdicts")
#: Verdicts about many hosts, which explain why much is out or held.
_ALARMS = ("common-cause", "silent-hosts", "rack", "hot-rack")
_ALARM_STANDS = timedelta(days=1)
_OVER = (Status.RECOVERED, Status.VICTIM, Status.SOFTWARE)


class Answer(Struct, frozen=True):
    """What one scheduler last said about a part's last command."""

    scheduler: str
    status: AckStatus
    at: datetime
    detail: str = ""


class Part(Struct, frozen=True, kw_only=True):
    """One part: ``status`` is isolated, held, shadow, releasing or in-service.

    ``pending`` is a command that no scheduler has answered for good; ``until`` when it ends.
    ``held`` is why a command waits for a person; ``note`` what the stage says besides (a release
    that it proposes, a refusal).
    """

    domain_id: str
    status: str
    by: str
    why: str
    since: datetime
    generation: int
    level: str | None = None
    until: datetime | None = None
    pending: str | None = None
    held: str | None = None
    note: str | None = None
    holds: tuple[Hold, ...] = ()
    answers: tuple[Answer, ...] = ()


class Alarm(Struct, frozen=True):
    """One verdict about many parts that still stands."""

    rule: str
    since: datetime
    reason: str
    incident: str


class Spending(Struct, frozen=True):
    """How much of one kind left service in the window, and may."""

    kind: str
    used: float
    limit: float


class Overview(Struct, frozen=True, kw_only=True):
    """The whole picture; ``differences`` are those that consumers on this machine wrote down."""

    schema: str = "isolation/1"
    parts: tuple[Part, ...] = ()
    alarms: tuple[Alarm, ...] = ()
    budget: tuple[Spending, ...] = ()
    window_s: float = 0.0
    differences: tuple[dict[str, Any], ...] = ()


@dataclass(slots=True)
class Topics:
    """What was read: the last of everything that the picture needs, in the order of the topics."""

    states: dict[str, DesiredState] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)
    acks: dict[str, dict[str, Ack]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    verdicts: dict[str, Verdict] = field(default_factory=dict)

    def take(self, record: object) -> None:
        """Add one record."""
        match record:
            case DesiredState():
                self.states[record.domain_id] = record
            case Command():
                self.commands.append(record)
            case Ack():
                self.acks.setdefault(record.command, {})[record.scheduler] = record
            case Request():
                self.requests.append(record)
            case Verdict():
                self.verdicts[record.incident] = record


def read(kafka: Kafka, *, within_s: float = 15.0) -> Topics:
    """What the picture needs. Raises ReadError where it cannot be read in time."""
    found = Topics()
    for record in read_topics(kafka, _NEEDED, within_s=within_s):
        found.take(record)
    return found


# --- The picture ----------------------------------------------------------------------------------


def overview(
    found: Topics,
    now: datetime,
    budget: Budget,
    *,
    differing: Iterable[Mapping[str, Any]] = (),
) -> Overview:
    """The picture at ``now``, parts that are back in service too; pure."""
    last: dict[str, Command] = {}
    for command in found.commands:
        known = last.get(command.domain_id)
        if known is None or _newer(command, known):
            last[command.domain_id] = command
    names = sorted(found.states.keys() | last.keys())
    parts = [_part(name, found, last.get(name), now) for name in names]
    return Overview(
        parts=tuple(sorted(parts, key=lambda one: (_ORDER.index(one.status), one.domain_id))),
        alarms=tuple(_alarms(found.verdicts.values(), now)),
        budget=tuple(_spent(found, now, budget)),
        window_s=budget.window_s,
        differences=tuple(dict(one) for one in differing),
    )


_ORDER = ("isolated", "releasing", "held", "shadow", "in-service")


def _newer(one: Command, other: Command) -> bool:
    """Whether a command replaces another one of its domain; what is sent again replaces nothing."""
    return one.id != other.id and (one.generation, one.issued_at) >= (
        other.generation,
        other.issued_at,
    )


def _part(domain_id: str, found: Topics, command: Command | None, now: datetime) -> Part:
    state = found.states.get(domain_id)
    answers = _answers(found, command)
    open_ = command is not None and _is_open(command, answers, now)
    held = command is not None and command.held is not None and _waits(command, found, state)
    out = state is not None and state.isolated
    status = "isolated" if out else "in-service"
    if not out and command is not None:
        if held:
            status = "held"
        elif command.dry_run and _stands(command, found):
            status = "shadow"
        elif command.action is Action.RELEASE and (open_ or _was_refused(answers)):
            status = "releasing"
    reason, by, since = _because(state if out else None, command, state)
    return Part(
        domain_id=domain_id,
        status=status,
        by=by,
        why=reason,
        since=since,
        generation=max(
            state.generation if state else 0, command.generation if command is not None else 0
        ),
        level=_level(state, command, status),
        until=command.act_by if command is not None and open_ else None,
        pending=command.id if command is not None and open_ and not held else None,
        held=command.held if command is not None and held else None,
        note=state.note if state is not None else None,
        holds=state.holds if state is not None else (),
        answers=answers,
    )


def _level(state: DesiredState | None, command: Command | None, status: str) -> str | None:
    if state is not None and state.isolated:
        return state.level
    return command.level if command is not None and status in ("held", "shadow") else None


def _because(
    out: DesiredState | None, command: Command | None, state: DesiredState | None
) -> tuple[str, str, datetime]:
    """Why, by whom and since when."""
    if out is not None and out.holds:
        first = min(out.holds, key=lambda hold: (hold.at, hold.id))
        return first.reason, ", ".join(dict.fromkeys(h.by for h in out.holds)), first.at
    if command is not None:
        return command.reason, command.by, command.issued_at
    assert state is not None
    return state.note or "", "", state.at


def _answers(found: Topics, command: Command | None) -> tuple[Answer, ...]:
    acks = found.acks.get(command.id, {}) if command is not None else {}
    return tuple(
        Answer(ack.scheduler, ack.status, ack.at, ack.detail) for _, ack in sorted(acks.items())
    )


def _is_open(command: Command, answers: Iterable[Answer], now: datetime) -> bool:
    """Whether a command is not carried out yet, and may be still."""
    if any(one.status is AckStatus.DONE for one in answers) or command.dry_run:
        return False
    return command.act_by is None or now < command.act_by


def _was_refused(answers: Iterable[Answer]) -> bool:
    return any(one.status in (AckStatus.REFUSED, AckStatus.FAILED) for one in answers)


def _waits(command: Command, found: Topics, state: DesiredState | None) -> bool:
    """Whether a held command waits still: its incident is not over, and its part not passed."""
    passed = state is not None and state.generation > command.generation
    return not passed and _stands(command, found)


def _stands(command: Command, found: Topics) -> bool:
    verdict = found.verdicts.get(command.incident)
    return verdict is None or (verdict.status not in _OVER and verdict.explained_by is None)


def _alarms(verdicts: Iterable[Verdict], now: datetime) -> list[Alarm]:
    standing = [
        one
        for one in verdicts
        if one.rule in _ALARMS
        and one.status is not Status.RECOVERED
        and now - one.decided_at < _ALARM_STANDS
    ]
    standing.sort(key=lambda one: (one.at, one.incident))
    return [Alarm(one.rule or "", one.at, one.reason, one.incident) for one in standing]


def _spent(found: Topics, now: datetime, budget: Budget) -> list[Spending]:
    """What left service in the window: what we took out and is not back, and what others did."""
    begin = now - timedelta(seconds=budget.window_s)
    used: dict[tuple[DomainKind, str], float] = {}
    for command in {one.id: one for one in found.commands}.values():
        if not _costs(command, found, begin):
            continue
        spent = spending(command.domain, command.domain_id, command.issued_at, command=command.id)
        took = {ack.took for ack in found.acks.get(command.id, {}).values()}
        card = spent.card and DomainKind.NODE not in took
        place = spent.kind, spent.unit
        used[place] = used.get(place, 0.0) + (budget.card if card else spent.cost)
    foreign: dict[str, Request] = {}
    for request in found.requests:
        if request.action is RequestAction.OUT and request.at > begin:
            foreign[request.domain.id] = request
        elif request.action is RequestAction.BACK:
            foreign.pop(request.domain.id, None)
    for request in foreign.values():
        spent = spending(request.domain, request.domain.id, request.at, command=request.id)
        used[spent.kind, spent.unit] = 1.0
    limits = {
        DomainKind.NODE: budget.nodes,
        DomainKind.LINK: budget.link_absolute,
        DomainKind.SWITCH: budget.switch_absolute,
        DomainKind.RACK: budget.rack_absolute,
    }
    return [
        Spending(str(kind), sum(min(1.0, cost) for (k, _), cost in used.items() if k is kind), most)
        for kind, most in limits.items()
    ]


def _costs(command: Command, found: Topics, begin: datetime) -> bool:
    """Whether an isolate counts still: carried out or under way, and its part not back."""
    if command.action is not Action.ISOLATE or command.held or command.dry_run:
        return False
    state = found.states.get(command.domain_id)
    over = state is not None and (
        state.generation > command.generation
        or (state.note or "").startswith(f"expired: command {command.id}")
    )
    return command.issued_at > begin and not over


def differences(folder: Path) -> list[dict[str, Any]]:
    """What consumers on this machine found not as desired, each with its ``scheduler``."""
    told = []
    for file in sorted(folder.glob("*.differences.json")):
        try:
            parts = msgspec.json.decode(file.read_bytes())["parts"]
        except (OSError, msgspec.MsgspecError, KeyError, TypeError):
            continue
        scheduler = file.name.removesuffix(".differences.json")
        told += [{"scheduler": scheduler, **one} for one in parts if isinstance(one, dict)]
    return told
