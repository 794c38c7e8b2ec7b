"""Decides what happens to each command and writes its ack: run, skip, refuse, or from memory.

The order matters: what cannot be believed leaves no trace, and what was carried out is answered
from memory even when its time has passed.
"""

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from threading import Event

from msgspec.structs import replace

from evidence.decisions import Ack, AckStatus, Action, Command
from evidence.identity import digest
from schedulers.adapter import Adapter, BatchAdapter, Outcome
from schedulers.budget import Limits, over, weight
from schedulers.journal import Entry, Journal

__all__ = ["Clerk", "Delivery"]

_LOG = logging.getLogger(__name__)
_DETAIL = 2000  # characters of an ack's detail
_DRY = "dry run: this scheduler carries nothing out"


@dataclass(frozen=True, slots=True)
class Delivery:
    """One command as it came; ``flaw`` says why it is not to be believed (its signature)."""

    command: Command
    flaw: str | None = None


@dataclass(slots=True)
class _Try:
    """One command that is being carried out; ``last`` is its last attempt."""

    index: int
    command: Command
    attempt: int
    last: int
    nodes: int
    began: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class Clerk:
    """Carries commands out through one adapter, at most ``attempts`` tries each.

    ``retry_wait_s`` is the wait before the second try; it doubles with each. What failed is carried
    out anew when it is sent again ``redo_failed_s`` after that: the isolation stage asks for it so.
    ``topic`` identifies the topic of the commands: generations are remembered of it. ``floor``
    tells a domain's generation in the published desired state.
    """

    name: str
    adapter: Adapter
    journal: Journal
    clock: Callable[[], datetime]
    stop: Event
    attempts: int = 3
    retry_wait_s: float = 2.0
    redo_failed_s: float = 20.0
    limits: Limits = field(default_factory=Limits)
    topic: str = ""
    floor: Callable[[str], int | None] = lambda _domain: None

    def handle(self, command: Command) -> Ack | None:
        """The ack of one command, after acting where that is called for; None when stopped."""
        return self.handle_all([Delivery(command)])[0]

    def handle_all(self, deliveries: Sequence[Delivery]) -> list[Ack | None]:
        """The acks of several commands, carried out in their order as far as they meet.

        None where ``stop`` was set before it was done: that one must not be committed.
        """
        acks: list[Ack | None] = [None] * len(deliveries)
        begin = 0
        while begin < len(deliveries) and not self.stop.is_set():
            with self.journal.together():
                begin, tries = self._gather(deliveries, begin, acks)
            if tries and not self._carry_out(tries, acks):
                break
        return acks

    def _gather(
        self, deliveries: Sequence[Delivery], begin: int, acks: list[Ack | None]
    ) -> tuple[int, list[_Try]]:
        """Answer what needs no act, begin what does, up to the first that has to wait for those."""
        tries: list[_Try] = []
        places: set[str | None] = set()
        for index in range(begin, len(deliveries)):
            command = deliveries[index].command
            place = command.domain.host
            if tries and (place is None or None in places or place in places):
                return index, tries
            decided = self._decided(index, deliveries[index])
            if isinstance(decided, Ack):
                acks[index] = decided
            else:
                tries.append(decided)
                places.add(place)
        return len(deliveries), tries

    def _decided(self, index: int, delivery: Delivery) -> Ack | _Try:
        """The ack of a command that is not to be carried out (again), else its next try, begun."""
        command, content = delivery.command, _content(delivery.command)
        if delivery.flaw is not None:
            return self._ack(command, AckStatus.REFUSED, delivery.flaw)
        known = self.journal.find(command.id)
        answer = self._new(command) if known is None else self._known(command, known, content)
        if answer is not None:
            return answer
        nodes = weight(command.domain, self.adapter, self.limits)
        if why := over(command, nodes, self.journal, self.limits, self.clock()):
            return self._ack(command, AckStatus.REFUSED, why)
        return self._begun(index, command, known, content, nodes)

    def _known(self, command: Command, known: Entry, content: str) -> Ack | None:
        """The answer to a command that was begun before; None where it is carried out again."""
        if known.content not in (None, content):
            what = f"replayed: {command.id} was carried out before with another content"
            return self._ack(command, AckStatus.REFUSED, what)
        if known.status is not None and not self._asked_anew(command, known):
            _LOG.info("command %s was %s before, answered again", command.id, known.status)
            return self._remembered(command, known)
        if why := self._over_by_now(command):
            # It may have acted: `expired` would be a lie, and acting now is forbidden.
            what = f"interrupted in try {known.attempt}, outcome unknown; {why}"
            return self._finished(command, Outcome(AckStatus.FAILED, what))
        return None

    def _new(self, command: Command) -> Ack | None:
        """The answer to a command that was never begun; None where it is to be carried out."""
        if (left := self._left(command)) is not None:
            return self._ack(command, *left)
        if late := _late(command, self.clock()):
            return self._ack(command, AckStatus.EXPIRED, late)
        return None

    def _left(self, command: Command) -> tuple[AckStatus, str] | None:
        """Why a command that is not known here is not to be carried out, whatever the time."""
        if (old := self._old(command)) is not None:
            return AckStatus.REFUSED, old
        self.journal.saw(command.domain_id, self.topic, command.generation)
        if command.dry_run:
            return AckStatus.SKIPPED, "dry run"
        if command.held is not None:
            return AckStatus.SKIPPED, f"held: {command.held}"
        if self.limits.dry_run:
            return AckStatus.SKIPPED, _DRY
        return None

    def _over_by_now(self, command: Command) -> str | None:
        """Why a command that was begun may not be carried out any more, or None."""
        dry = _DRY if self.limits.dry_run else None
        return _late(command, self.clock()) or self._old(command) or dry

    def _old(self, command: Command) -> str | None:
        """Why a command is of the past: its domain has come back to service since, or been out."""
        seen = self.journal.newest(command.domain_id, self.topic), self.floor(command.domain_id)
        newest = max((one for one in seen if one is not None), default=command.generation)
        if command.generation >= newest:
            return None
        return (
            f"out of generation: it is of generation {command.generation}, "
            f"and {newest} was seen of {command.domain_id}"
        )

    def _asked_anew(self, command: Command, known: Entry) -> bool:
        """Whether a failed command was sent again late enough to be a new request, and in time."""
        if known.status is not AckStatus.FAILED or known.finished_at is None:
            return False
        since = (self.clock() - known.finished_at).total_seconds()
        return since >= self.redo_failed_s and self._over_by_now(command) is None

    def _begun(
        self, index: int, command: Command, known: Entry | None, content: str, nodes: int
    ) -> _Try:
        before = known.attempt if known else 0
        if known is not None:
            _LOG.warning(
                "command %s was %s in try %d and is carried out again",
                command.id,
                known.status or "interrupted",
                before,
            )
        if known is not None and known.status is not None:
            last = before + self.attempts
        else:
            # An interrupted try was cut short by us, not by the scheduler: it gets another.
            last = max(self.attempts, before + 1)
        self.journal.begin(command, before + 1, self.clock(), content=content, nodes=nodes)
        return _Try(index, command, before + 1, last, nodes)

    def _carry_out(self, tries: list[_Try], acks: list[Ack | None]) -> bool:
        """Try until done, hopeless or out of tries; False when stopped in the middle."""
        wait_s = self.retry_wait_s
        while True:
            outcomes = self._apply([self._capped(one.command) for one in tries])
            again: list[_Try] = []
            failed: dict[int, Outcome] = {}
            with self.journal.together():
                for one, outcome in zip(tries, outcomes, strict=True):
                    self._log(one, outcome)
                    if _worth_another(one, outcome):
                        again.append(one)
                        failed[one.index] = outcome
                    else:
                        acks[one.index] = self._finished(one.command, outcome, one.began)
            if not again:
                return True
            if self.stop.wait(wait_s):
                return False
            wait_s *= 2
            tries = self._begun_again(again, failed, acks)
            if not tries:
                return True

    def _begun_again(
        self, again: list[_Try], failed: dict[int, Outcome], acks: list[Ack | None]
    ) -> list[_Try]:
        """Begin the next try of each; what is too late by now is finished instead."""
        begun = []
        with self.journal.together():
            for one in again:
                command, outcome = one.command, failed[one.index]
                if late := _late(command, self.clock()):
                    detail = f"{outcome.detail}; not tried again: {late}"
                    given_up = Outcome(AckStatus.FAILED, detail, outcome.exit_code)
                    acks[one.index] = self._finished(command, given_up, one.began)
                    continue
                one.attempt += 1
                self.journal.begin(command, one.attempt, self.clock(), nodes=one.nodes)
                begun.append(one)
        return begun

    def _apply(self, commands: list[Command]) -> list[Outcome]:
        """The outcomes of commands that do not meet; an adapter that raises has failed."""
        if len(commands) > 1 and isinstance(self.adapter, BatchAdapter):
            try:
                outcomes = list(self.adapter.apply_all(commands))
                if len(outcomes) == len(commands):
                    return outcomes
                raise ValueError(f"{len(outcomes)} outcomes for {len(commands)} commands")  # noqa: TRY301
            except Exception as error:  # noqa: BLE001 (a faulty adapter must answer too)
                return [self._raised(commands, error)] * len(commands)
        return [self._apply_one(command) for command in commands]

    def _apply_one(self, command: Command) -> Outcome:
        try:
            return self.adapter.apply(command)
        except Exception as error:  # noqa: BLE001 (a faulty adapter must answer too)
            return self._raised([command], error)

    def _raised(self, commands: list[Command], error: Exception) -> Outcome:
        _LOG.error(
            "the adapter of %s raised on command %s", self.name, commands[0].id, exc_info=error
        )
        return Outcome(AckStatus.FAILED, f"adapter error: {type(error).__name__}: {error}")

    def _capped(self, command: Command) -> Command:
        level = self.limits.capped(command.level)
        return command if level is command.level else replace(command, level=level)

    def _log(self, one: _Try, outcome: Outcome) -> None:
        _LOG.info(
            "command %s (%s %s), try %d: %s %s",
            one.command.id,
            one.command.action,
            one.command.domain_id,
            one.attempt,
            outcome.status,
            outcome.detail,
        )

    def _finished(self, command: Command, outcome: Outcome, began: float | None = None) -> Ack:
        """Write how it went, and its ack."""
        level = self.limits.capped(command.level)
        if level is not command.level and command.action is Action.ISOLATE:
            told = f"{command.level} carried out as {level}, the most that is allowed here"
            detail = f"{told}: {outcome.detail}" if outcome.detail else told
            outcome = dataclasses.replace(outcome, detail=detail)
        took_ms = 0 if began is None else int((time.monotonic() - began) * 1000)
        self.journal.finish(command.id, outcome, self.clock(), took_ms)
        entry = self.journal.find(command.id)
        assert entry is not None
        return self._remembered(command, entry)

    def _remembered(self, command: Command, entry: Entry) -> Ack:
        assert entry.status is not None
        return Ack(
            id=digest("ack", self.name, command.id, entry.status, entry.attempt),
            command=command.id,
            domain_id=command.domain_id,
            at=entry.finished_at or entry.begun_at,
            scheduler=self.name,
            status=entry.status,
            detail=entry.detail[:_DETAIL],
            exit_code=entry.exit_code,
            attempt=entry.attempt,
            took_ms=entry.took_ms,
            took=entry.took,
        )

    def _ack(self, command: Command, status: AckStatus, detail: str) -> Ack:
        _LOG.info("command %s (%s): %s, %s", command.id, command.domain_id, status, detail)
        return Ack(
            id=digest("ack", self.name, command.id, status, 0),
            command=command.id,
            domain_id=command.domain_id,
            at=self.clock(),
            scheduler=self.name,
            status=status,
            detail=detail[:_DETAIL],
            attempt=0,
        )


def _worth_another(one: _Try, outcome: Outcome) -> bool:
    return outcome.status is AckStatus.FAILED and outcome.retry and one.attempt < one.last


def _content(command: Command) -> str:
    """What a command asks for; what a second sending may change (times, a hold let go) is out."""
    domain = command.domain
    return digest(
        command.action,
        command.domain_id,
        domain.kind,
        domain.host,
        domain.rack,
        domain.switch,
        domain.port,
        command.level,
        command.generation,
        command.incident,
        command.dry_run,
    )


def _late(command: Command, now: datetime) -> str | None:
    """Why it is too late to carry a command out, or None; a release is never late."""
    if command.action is Action.ISOLATE and command.act_by is not None and now > command.act_by:
        return f"act_by {command.act_by.isoformat()} had passed at {now.isoformat()}"
    return None
