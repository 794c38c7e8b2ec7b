"""What ends an isolation: a recovery that the policy trusts, and a person who lifts or lets go."""

from msgspec.structs import replace

from evidence.decisions import Command, DomainKind, Request, Status, Verdict
from evidence.identity import digest
from rules.acting import Acting
from rules.budget import spending
from rules.desired import Part
from rules.naming import containers
from rules.orders import isolate
from rules.policy import Releases
from rules.recovery import accuses, again, clean_at, is_over, looks_at, proposable_at, proposal

__all__ = ["Returning"]


class Returning(Acting):
    """The acting stage, and what brings parts back."""

    # --- Recovery -------------------------------------------------------------------------------

    def hear_of_recovery(self, verdict: Verdict, domain_id: str | None) -> None:
        """Start the clock of a hold whose incident is over, or restart those of an accused part."""
        if self.policy.releases is Releases.NEVER:
            return
        if verdict.status is Status.RECOVERED:
            holder = self.state.incidents.get(verdict.incident, domain_id)
            part = self.state.parts.get(holder) if holder is not None else None
            if part is None or holder is None:
                return
            if self.policy.releases is Releases.AUTOMATIC and not self.policy.recovery.clean_s:
                self.take_back(holder, part, verdict.incident, verdict.reason)
            elif (after := is_over(part, verdict.incident, self.now)) is not part:
                self.put(holder, after)
                self._wind()
        elif accuses(verdict):
            for name in self._concerned(verdict, domain_id):
                self._accused(name, verdict)

    def _concerned(self, verdict: Verdict, domain_id: str | None) -> list[str]:
        """Parts with a clock that a verdict speaks about: its own, what holds it, what is in it."""
        if not any(part.over for part in self.state.parts.values()):
            return []
        domain = verdict.domain
        names = {domain_id, domain.id, *containers(domain, verdict.rack, self.state.names)}
        names.add(self.state.incidents.get(verdict.incident))
        found = [name for name, part in self.state.parts.items() if part.over and name in names]
        if domain.kind in (DomainKind.NODE, DomainKind.GPU):
            inside = (name for name in self.inside(domain) if self.state.parts[name].over)
            found += [name for name in inside if name not in found]
        return found

    def _accused(self, domain_id: str, verdict: Verdict) -> None:
        part = self.state.parts[domain_id]
        self.put(domain_id, again(part, verdict.incident, self.now))
        if part.proposed_at is not None:
            self.publish(domain_id, f"release proposed no more: {verdict.reason}")
        self._wind()

    def _wind(self) -> None:
        """Note when the next clock has run out."""
        automatic = self.policy.releases is Releases.AUTOMATIC
        at = looks_at(self.state.parts, self.policy.recovery.clean_s, automatic=automatic)
        if at != self.state.recovers_at:
            self.set(recovers_at=at)

    def look_for_recovered(self) -> None:
        """Propose or make the release of what stayed clean for long enough."""
        if self.state.recovers_at is None or self.state.recovers_at > self.now:
            return
        clean_s = self.policy.recovery.clean_s
        for domain_id in sorted(name for name, part in self.state.parts.items() if part.over):
            if self.policy.releases is Releases.AUTOMATIC:
                self._return(domain_id, clean_s)
            elif self.policy.releases is Releases.PROPOSE:
                self._propose(domain_id, clean_s)
        self._wind()
        if self.state.recovers_at is not None and self.state.recovers_at <= self.now:
            self.set(recovers_at=None)  # the policy has changed meanwhile

    def _return(self, domain_id: str, clean_s: float) -> None:
        part = self.state.parts[domain_id]
        words = f"Released: {proposal(part, clean_s)}."
        for incident, at in sorted(clean_at(part, clean_s).items()):
            if at <= self.now:
                self.take_back(domain_id, self.state.parts[domain_id], incident, words)

    def _propose(self, domain_id: str, clean_s: float) -> None:
        part = self.state.parts[domain_id]
        at = proposable_at(part, clean_s)
        if at is None or at > self.now:
            return
        self.put(domain_id, replace(part, proposed_at=self.now))
        self.publish(domain_id, f"release proposed: {proposal(part, clean_s)}")

    # --- What people do -------------------------------------------------------------------------

    def resume(self, domain_id: str, part: Part, request: Request) -> None:
        """Let one held command go, for real also where shadow mode held it; no budget binds it."""
        if part.held is None or part.waits is None:
            return
        waited = self.state.outbox.get(part.last_command or "")
        hold = replace(part.waits, reason=_let_go(part.waits.reason, request))
        self.drop_pending(one for one in (part.last_command,) if one is not None)
        part = self.awaken(domain_id, part)
        command = isolate(domain_id, part, hold, self.now, self.policy)
        command = replace(
            command,
            id=digest(command.id, "let go"),  # what was held under its own id stays as it was
            by=request.by,
            **({} if waited is None else _of_verdict(waited.command)),
        )
        spent = spending(command.domain, domain_id, self.now, command=command.id)
        standing = tuple(o for o in self.state.standing if o.verdict.incident != hold.id)
        self.set(standing=standing, standing_at=self.state.standing_at if standing else None)
        self.take_out(domain_id, part, hold, command, spent)

    def lift(self, domain_id: str, part: Part, request: Request) -> None:
        """Lift the firm holds that a person set, and no other one."""
        kept = tuple(one for one in part.holds if not (one.firm and one.by == request.by))
        if len(kept) < len(part.holds):
            reason = request.reason or f"hold lifted by {request.by}"
            self._lift(domain_id, part, kept, request.by, (request.id, reason))


def _let_go(reason: str, request: Request) -> str:
    why = f": {request.reason}" if request.reason else ""
    return f"{reason} (let go by {request.by}{why})"


def _of_verdict(command: Command) -> dict[str, object]:
    """What a command tells of its verdict."""
    return {
        name: getattr(command, name)
        for name in ("verdict", "confidence", "recovery", "pool", "evidence")
    }
