"""Decides what happens to one command and writes its ack: run, skip, expire, or answer from memory.

The order matters: what was carried out is answered from memory even when its time has passed.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from threading import Event

from evidence.decisions import Ack, AckStatus, Action, Command
from evidence.identity import digest
from schedulers.adapter import Adapter, Outcome
from schedulers.journal import Entry, Journal

__all__ = ["Clerk"]

_LOG = logging.getLogger(__name__)
_DETAIL = 2000  # characters of an ack's detail


@dataclass(slots=True)
class Clerk:
    """Carries commands out through one adapter, at most ``attempts`` tries each.

    ``retry_wait_s`` is the wait before the second try; it doubles with each. What failed is carried
    out anew when it is sent again ``redo_failed_s`` after that: the isolation stage asks for it so.
    """

    name: str
    adapter: Adapter
    journal: Journal
    clock: Callable[[], datetime]
    stop: Event
    attempts: int = 3
    retry_wait_s: float = 2.0
    redo_failed_s: float = 20.0

    def handle(self, command: Command) -> Ack | None:
        """The ack of one command, after acting where that is called for.

        None when ``stop`` was set in the middle: nothing may be committed then.
        """
        known = self.journal.find(command.id)
        if known is not None and known.status is not None and not self._asked_anew(command, known):
            _LOG.info("command %s was %s before, answered again", command.id, known.status)
            return self._remembered(command, known)
        if known is None and (reason := _left_alone(command)):
            return self._ack(command, AckStatus.SKIPPED, reason)
        late = _late(command, self.clock())
        if late and known is None:
            return self._ack(command, AckStatus.EXPIRED, late)
        if late and known is not None:
            # It may have acted: `expired` would be a lie, and acting now is forbidden.
            outcome = Outcome(
                AckStatus.FAILED, f"interrupted in try {known.attempt}, outcome unknown; {late}"
            )
            self.journal.finish(command.id, outcome, self.clock(), 0)
        else:
            if known is not None:
                _LOG.warning(
                    "command %s was %s in try %d and is carried out again",
                    command.id,
                    known.status or "interrupted",
                    known.attempt,
                )
            if not self._carry_out(command, known):
                return None
        done = self.journal.find(command.id)
        assert done is not None
        return self._remembered(command, done)

    def _asked_anew(self, command: Command, known: Entry) -> bool:
        """Whether a failed command was sent again late enough to be a new request, and in time."""
        if known.status is not AckStatus.FAILED or known.finished_at is None:
            return False
        now = self.clock()
        since = (now - known.finished_at).total_seconds()
        return since >= self.redo_failed_s and _late(command, now) is None

    def _carry_out(self, command: Command, known: Entry | None) -> bool:
        """Try until done, hopeless or out of tries; False when stopped in the middle."""
        began = time.monotonic()
        before = known.attempt if known else 0
        if known is not None and known.status is not None:
            last = before + self.attempts
        else:
            # An interrupted try was cut short by us, not by the scheduler: it gets another.
            last = max(self.attempts, before + 1)
        for attempt in range(before + 1, last + 1):
            self.journal.begin(command.id, attempt, self.clock())
            outcome = self._apply(command)
            _LOG.info(
                "command %s (%s %s), try %d: %s %s",
                command.id,
                command.action,
                command.domain_id,
                attempt,
                outcome.status,
                outcome.detail,
            )
            if outcome.status is AckStatus.DONE or not outcome.retry or attempt == last:
                break
            if self.stop.wait(self.retry_wait_s * 2 ** (attempt - 1)):
                return False
            if late := _late(command, self.clock()):
                outcome = Outcome(
                    AckStatus.FAILED,
                    f"{outcome.detail}; not tried again: {late}",
                    outcome.exit_code,
                )
                break
        took_ms = int((time.monotonic() - began) * 1000)
        self.journal.finish(command.id, outcome, self.clock(), took_ms)
        return True

    def _apply(self, command: Command) -> Outcome:
        try:
            return self.adapter.apply(command)
        except Exception as error:  # noqa: BLE001 (the one broad except: a faulty adapter must answer too)
            _LOG.exception("the adapter of %s raised on command %s", self.name, command.id)
            return Outcome(AckStatus.FAILED, f"adapter error: {type(error).__name__}: {error}")

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


def _left_alone(command: Command) -> str | None:
    """Why a command is not to be carried out at all, or None."""
    if command.dry_run:
        return "dry run"
    if command.held is not None:
        return f"held: {command.held}"
    return None


def _late(command: Command, now: datetime) -> str | None:
    """Why it is too late to carry a command out, or None; a release is never late."""
    if command.action is Action.ISOLATE and command.act_by is not None and now > command.act_by:
        return f"act_by {command.act_by.isoformat()} had passed at {now.isoformat()}"
    return None
