"""The course of a drill: which verdicts, commands and acks are its own, and when each was seen."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from evidence.decisions import Ack, AckStatus, Action, Command, DomainKind, Status, Verdict
from ringfence.drills.plan import Expect, Expected, Plan

__all__ = ["Course"]


@dataclass(slots=True)
class Course:
    """What came of one drill on ``host``; times are seconds from the injection.

    ``known`` are the incidents that were there before. ``others`` are verdicts about the host that
    are not as expected, by incident, their last revision.
    """

    host: str
    plan: Plan
    known: frozenset[str] = frozenset()
    verdict: Verdict | None = None
    command: Command | None = None
    ack: Ack | None = None
    release: Command | None = None
    release_ack: Ack | None = None
    others: dict[str, Verdict] = field(default_factory=dict)
    surplus: dict[str, Command] = field(default_factory=dict)
    acks: dict[str, Ack] = field(default_factory=dict)
    seen_s: dict[str, float] = field(default_factory=dict)

    @property
    def expect(self) -> Expect:
        """What must follow."""
        return self.plan.expect

    def take(self, record: Any, at_s: float) -> None:  # noqa: ANN401 (a struct of evidence)
        """Take one record; an ack may be read before its command, being of another topic."""
        if isinstance(record, Verdict):
            self._take_verdict(record, at_s)
        elif isinstance(record, Command):
            self._take_command(record, at_s)
        elif isinstance(record, Ack):
            self.acks[record.command] = record
        self._answered(at_s)

    def see(self, step: str, at_s: float) -> None:
        """Note when a step was seen first."""
        self.seen_s.setdefault(step, at_s)

    def has(self, step: str) -> bool:
        """Whether a step was seen."""
        return step in self.seen_s

    @property
    def is_answered(self) -> bool:
        """Whether the command was carried out."""
        return self.ack is not None and self.ack.status is AckStatus.DONE

    @property
    def is_over(self) -> bool:
        """Whether the command will not be carried out: held, dry, or its ack says so."""
        if self.command is not None and self.command.held:
            return True
        return self.ack is not None and self.ack.status not in (AckStatus.DONE, AckStatus.FAILED)

    def differed(self) -> Iterator[str]:
        """What was not as expected, in sentences."""
        if self.verdict is None:
            yield f"no verdict {self.expect}"
            for other in self.others.values():
                yield f"a verdict {other.status} {other.cause} on {other.domain.id}: {other.reason}"
        yield from self._about_command()
        for command in self.surplus.values():
            yield f"a command about {command.domain_id}: {command.reason}"

    def _about_command(self) -> Iterator[str]:
        command, ack = self.command, self.ack
        if self.expect.command is Expected.NONE:
            return
        if command is None:
            if self.verdict is not None:
                yield "no command"
            return
        if command.held:
            yield f"the command was held: {command.held}"
        elif command.dry_run and self.expect.command is Expected.ISOLATE:
            yield "the command was a dry run: the mode is shadow"
        elif not command.dry_run and self.expect.command is Expected.DRY_RUN:
            yield "the command was for real"
        elif ack is None:
            yield "no scheduler answered the command"
        elif ack.status is not AckStatus.DONE and not command.dry_run:
            yield f"{ack.scheduler} answered {ack.status}: {ack.detail}"

    # --- Records --------------------------------------------------------------------------------

    def _take_verdict(self, verdict: Verdict, at_s: float) -> None:
        if verdict.incident in self.known or not self._is_about(verdict):
            return
        if not self._is_expected(verdict):
            if self.verdict is None and verdict.status is not Status.RECOVERED:
                self.others[verdict.incident] = verdict
        elif self.verdict is None or self.verdict.incident == verdict.incident:
            self.verdict = verdict
            self.others.pop(verdict.incident, None)
            self.see("verdict", at_s)

    def _is_about(self, verdict: Verdict) -> bool:
        if self.host in (verdict.host, verdict.domain.host):
            return True
        if verdict.domain.kind is DomainKind.JOB:
            return (verdict.job or verdict.domain.job) in self.plan.guard.jobs
        return verdict.domain.host is None and verdict.domain.kind in self.expect.domain

    def _is_expected(self, verdict: Verdict) -> bool:
        expect = self.expect
        return (
            verdict.status in expect.status
            and (not expect.cause or verdict.cause in expect.cause)
            and (not expect.domain or verdict.domain.kind in expect.domain)
        )

    def _take_command(self, command: Command, at_s: float) -> None:
        ours = self.command
        if ours is not None and command.domain_id == ours.domain_id:
            if command.id == ours.id:
                self.command = command  # the same, held or not held any more
            elif command.action is Action.RELEASE and self.release is None:
                self.release = command
                self.see("release", at_s)
        elif command.action is Action.ISOLATE and self._is_new_and_ours(command):
            if ours is None and self.expect.command is not Expected.NONE:
                self.command = command
                self.see("command", at_s)
            else:
                self.surplus[command.id] = command
                self.see("surplus", at_s)

    def _is_new_and_ours(self, command: Command) -> bool:
        if command.incident in self.known:
            return False
        of_ours = self.verdict is not None and command.incident == self.verdict.incident
        return of_ours or command.domain.host == self.host

    def _answered(self, at_s: float) -> None:
        if self.command is not None and not self.is_answered:
            self.ack = self.acks.get(self.command.id, self.ack)
            if self.is_answered or self.is_over:
                self.see("ack", at_s)
        if self.release is not None:
            self.release_ack = self.acks.get(self.release.id, self.release_ack)
            if self.release_ack is not None and self.release_ack.status is AckStatus.DONE:
                self.see("released", at_s)
