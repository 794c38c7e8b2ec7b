"""Looks at the scheduler now and then: tells what others did, and what is not as desired.

What somebody else took out, or took back, becomes a request; so does what a person returned to
service after we took it out. Nothing is carried out from here.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import msgspec
from kafka import KafkaProducer
from kafka.errors import KafkaError
from msgspec import Struct
from msgspec.structs import replace

from evidence.decisions import Domain, Request, RequestAction
from evidence.identity import digest
from evidence.records import ContextRecord
from evidence.topics import CLUSTER_KEY
from evidence.transport import Kafka
from evidence.wire import encode
from schedulers.adapter import Observing, SchedulerError, View
from schedulers.counts import Counts
from schedulers.desired import DesiredStates
from schedulers.journal import Journal
from schedulers.reconcile import Difference, Kind, compare, stands

__all__ = ["Watch"]

_LOG = logging.getLogger(__name__)
_SENT_WITHIN_S = 30.0
#: So many looks in a row must miss what we did before a person is said to have undone it.
_ABSENT_LOOKS = 2
#: More nodes than these at once, and more than half of ours, is a scheduler that lost its state.
_MANY = 2
_NEVER = object()  # no epoch
_CONTEXT, _OUT, _UNDONE = "context", "out", "undone"


class _Out(Struct, frozen=True):
    """A part that somebody else took out, as told; ``sent`` once the request is in Kafka."""

    domain: Domain
    by: str
    reason: str
    at: datetime
    sent: bool = False


@dataclass(slots=True)
class Watch:
    """One consumer's looks at its scheduler, ``every_s`` apart.

    ``told`` is the file that lists the differences for people and for ``isolation list``.
    """

    name: str
    adapter: Observing
    journal: Journal
    producer: KafkaProducer
    kafka: Kafka
    states: DesiredStates
    counts: Counts
    every_s: float
    told: Path
    monotonic: Callable[[], float] = time.monotonic
    _due: float = 0.0
    _blind: str = ""
    _sent: list[tuple[str, object]] = field(default_factory=list)
    #: commands whose effect was seen by this process, with the epoch in which it was last seen,
    #: and those missed since, by number of looks
    _stood: dict[str, object] = field(default_factory=dict)
    _absent: dict[str, int] = field(default_factory=dict)
    _written: tuple[Difference, ...] | None = None

    @property
    def wait_s(self) -> float:
        """Seconds until it is time to look."""
        return max(0.0, self._due - self.monotonic())

    def turn(self) -> None:
        """Look if it is time to. Errors of the scheduler and of Kafka are said and survived."""
        if self.monotonic() < self._due:
            return
        try:
            self.look()
        except KafkaError as error:
            _LOG.warning("what the scheduler says could not be sent: %s", error)
        self._due = self.monotonic() + self.every_s

    def look(self) -> None:
        """Look once, and send what is new. Raises KafkaError; then it is sent at the next look."""
        view = self._view()
        if view is None:
            return
        self._sent.clear()
        self._tell_context(view)
        self._tell_others(view)
        if self.states.complete:
            self._compare(view)

    def _view(self) -> View | None:
        try:
            view = self.adapter.observe()
        except Exception as error:  # noqa: BLE001 (a faulty adapter must not end the consumer)
            self.counts.looks_failed += 1
            known = isinstance(error, SchedulerError)
            why = str(error) if known else f"{type(error).__name__}: {error}"
            if why != self._blind:
                _LOG.warning("%s does not say what is out of service: %s", self.name, why)
            self._blind = why
            return None
        if self._blind:
            _LOG.info("%s says again what is out of service", self.name)
        self._blind = ""
        self.counts.looks += 1
        self.counts.looked_at = view.at
        return view

    def _tell_context(self, view: View) -> None:
        """Send records that are new, and those that are there no more once as ended."""
        before = self.journal.told(_CONTEXT)
        now = {one.id: one for one in view.context}
        ended = {_thing(one) for one in view.context if one.ended}
        new = [one for ident, one in now.items() if ident not in before]
        gone = [
            msgspec.json.decode(record, type=ContextRecord)
            for ident, record in before.items()
            if ident not in now
        ]
        # First what is over: the same job under a new record must not be ended after it.
        for one in gone:
            over = one.ended or (one.until is not None and one.until <= view.at)
            if not over and _thing(one) not in ended:
                self._send("context", one.host.encode(), _ended(one, view.at))
        for one in new:
            self._send("context", one.host.encode(), one)
        if new or gone:
            self._delivered()
            self.counts.context += len(new)
            with self.journal.together():
                for one in new:
                    self.journal.tell(_CONTEXT, one.id, encode(one))
                for one in gone:
                    self.journal.tell(_CONTEXT, one.id, None)

    def _tell_others(self, view: View) -> None:
        """Send a request for each part that somebody else took out, or took back, once each."""
        before = {
            ident: msgspec.json.decode(record, type=_Out)
            for ident, record in self.journal.told(_OUT).items()
        }
        now = {one.domain.id: one for one in view.standing if one.command is None}
        with self.journal.together():
            for ident, one in now.items():
                if ident not in before:
                    out = _Out(one.domain, one.by, one.reason, one.since or view.at)
                    before[ident] = out
                    self.journal.tell(_OUT, ident, msgspec.json.encode(out))
        new = {ident: out for ident, out in before.items() if ident in now and not out.sent}
        back = {ident: out for ident, out in before.items() if ident not in now}
        for out in new.values():
            self._ask(RequestAction.OUT, out, out.at)
        for out in back.values():
            self._ask(RequestAction.BACK, out, view.at)
        if new or back:
            self._delivered()
            with self.journal.together():
                for ident, out in new.items():
                    self.journal.tell(_OUT, ident, msgspec.json.encode(replace(out, sent=True)))
                for ident in back:
                    self.journal.tell(_OUT, ident, None)

    def _compare(self, view: View) -> None:
        kept = self.journal.kept_out()
        undone = self.journal.told(_UNDONE)
        for command in undone.keys() - kept.values():
            self.journal.tell(_UNDONE, command, None)
        found = compare(kept, view, self.states.by_domain, self.journal.domain_of)
        missing = {one.command or "": one for one in found if one.kind is Kind.MISSING}
        self._remember(kept, view)
        news = {command: one for command, one in missing.items() if command not in undone}
        asked = self._ask_for_release(news, view)
        told = tuple(
            one
            for one in found
            if one.kind is not Kind.MISSING
            or (one.command not in undone and one.command not in asked)
        )
        self.counts.differences = {kind: sum(one.kind is kind for one in told) for kind in Kind}
        if told != self._written:
            self._write(told)

    def _remember(self, kept: dict[str, str], view: View) -> None:
        """Keep what stands now; forget what went in another epoch: nobody need have undone it."""
        stood, forgotten = {}, []
        for domain_id, command in kept.items():
            now = self._epoch(view, command)
            before = self._stood.get(command, _NEVER)
            if stands(view, domain_id, command) or before == now:
                stood[command] = now
            elif command in self._stood:
                forgotten.append(domain_id)
        if forgotten:
            _LOG.error(
                "%s has forgotten that %s is out of service: it started anew, or the node did; "
                "nothing is taken for a release by hand",
                self.name,
                ", ".join(sorted(forgotten)),
            )
        self._stood = stood

    def _epoch(self, view: View, command: str) -> object:
        domain = self.journal.domain(command)
        return None if domain is None else view.epoch(domain)

    def _ask_for_release(self, missing: dict[str, Difference], view: View) -> set[str]:
        """Ask to release what stood while we watched and was missed by several looks since."""
        absent = {
            command: self._absent.get(command, 0) + 1
            for command in missing
            if command in self._stood
        }
        back, ours = self._places(absent), self._places(self._stood)
        if len(back) > _MANY and 2 * len(back) > len(ours):
            _LOG.error(
                "%d of %d nodes that we took out are back in service at once: %s seems to have "
                "lost its state, nothing is taken for a release by hand",
                len(back),
                len(ours),
                self.name,
            )
            self._stood = {one: at for one, at in self._stood.items() if one not in absent}
            absent = {}
        self._absent = absent
        undone = {command for command, looks in absent.items() if looks >= _ABSENT_LOOKS}
        for command in sorted(undone):
            domain = self.journal.domain(command)
            if domain is not None:
                _LOG.warning("%s was returned to service by hand", missing[command].domain_id)
                out = _Out(domain, f"{self.name}: by hand", "returned to service there", view.at)
                self._ask(RequestAction.RELEASE, out, view.at, command)
        if undone:
            self._delivered()
            for command in undone:
                self.journal.tell(_UNDONE, command, b"{}")
        return undone

    def _places(self, commands: Iterable[str]) -> set[str]:
        """The nodes of parts, and what has none: a person returns all cards of a node at once."""
        domains = (self.journal.domain(command) for command in commands)
        return {one.host or one.id for one in domains if one is not None}

    def _ask(
        self, action: RequestAction, out: _Out, at: datetime, command: str | None = None
    ) -> None:
        """Send a request; its id is a function of what happened."""
        self.counts.requests[action] += 1
        origin = (command,) if command else (out.at.isoformat(), out.by, out.reason)
        request = Request(
            id=digest("request", self.name, action, out.domain.id, *origin),
            at=at,
            action=action,
            domain=out.domain,
            by=out.by or self.name,
            reason=out.reason,
        )
        _LOG.info("%s %s by %s: %s", action, out.domain.id, request.by, out.reason)
        self._send("requests", CLUSTER_KEY, request)

    def _send(self, topic: str, key: bytes, record: Struct) -> None:
        sent = self.producer.send(self.kafka.topic(topic), encode(record), key=key)
        self._sent.append((topic, sent))

    def _delivered(self) -> None:
        """Wait until Kafka has what was sent."""
        self.producer.flush(_SENT_WITHIN_S)
        for _, sent in self._sent:
            sent.get(_SENT_WITHIN_S)  # type: ignore[attr-defined]
        self._sent.clear()

    def _write(self, told: tuple[Difference, ...]) -> None:
        """Put the differences where people can read them, whole or not at all."""
        for one in set(told) - set(self._written or ()):
            _LOG.warning("%s: %s %s", one.kind, one.domain_id, one.reason or one.command)
        self._written = told
        beside = self.told.with_suffix(".new")
        try:
            beside.write_bytes(msgspec.json.encode({"schema": "differences/1", "parts": told}))
            beside.replace(self.told)
        except OSError as error:
            _LOG.warning("%s cannot be written: %s", self.told, error.strerror)


def _thing(one: ContextRecord) -> tuple[object, ...]:
    """What a record is about, whether it has ended or not."""
    return one.host, one.kind, one.at, one.pci, one.job, one.attempt


def _ended(one: ContextRecord, at: datetime) -> ContextRecord:
    return replace(one, id=digest(one.id, "ended"), observed_at=at, until=at, ended=True)
