"""Acting upon one verdict or request: what it takes out, whether it may, and what it ends."""

from datetime import datetime, timedelta
from typing import NamedTuple

from msgspec.structs import replace

from evidence.decisions import (
    Cause,
    Command,
    Domain,
    DomainKind,
    Hold,
    Level,
    Request,
    RequestAction,
    Status,
    Verdict,
)
from rules.book import OURSELVES, Book
from rules.budget import in_window, objection, spending
from rules.desired import LEVELS, Part, highest
from rules.naming import containers
from rules.orders import isolate
from rules.policy import Releases
from rules.racks import is_hot
from rules.settling import in_order, with_standing
from rules.severity import is_shadow, level_of, taken_out
from rules.surge import explains

__all__ = ["Acting"]

_NOT_RESTORED = "What is isolated already is not known: the stage's state was not restored."


class _Case(NamedTuple):
    """What a verdict takes out, how hard, and whether only for show."""

    domain_id: str
    part: Part
    level: Level
    shadow: bool


class Acting(Book):
    """The book, and what verdicts and requests do to it."""

    def act(self, verdict: Verdict) -> None:
        """Act on a verdict, if it is sure, new, and about a part that is still in service."""
        case = self.considered(verdict)
        if case is None:
            return
        domain_id, part, level, shadow = case
        self._stand(verdict, shadow=shadow)
        if not shadow:
            part = self.awaken(domain_id, part)
        hold = Hold(
            id=verdict.incident,
            cause=verdict.cause,
            by=OURSELVES,
            at=verdict.at,
            reason=verdict.reason,
            level=level,
        )
        command = isolate(domain_id, part, hold, self.now, self.policy, verdict)
        alike = None if verdict.hard else explains(self.state.common, verdict, self.policy.widening)
        self.isolate(domain_id, part, hold, command, alike)

    def considered(self, verdict: Verdict) -> _Case | None:
        """What a verdict would take out now; None where it takes out nothing."""
        domain = taken_out(self.policy, verdict)
        domain_id = self.recognise(domain) or domain.id
        part = self.state.parts.get(domain_id) or Part(domain=domain)
        if not self._is_news(verdict, part):
            return None
        level = level_of(self.policy, verdict, part, self.now)
        shadow = is_shadow(self.policy, verdict)
        larger = containers(domain, verdict.rack, self.state.names)
        own = () if domain is verdict.domain else self._names(verdict.domain)
        if (
            level is None
            or self._was_passed(verdict, (*own, *larger))
            or any(self._is_out(name, verdict, shadow=shadow) for name in larger)
        ):
            return None
        if shadow and not part.dry_run and (part.holds or part.held):
            return None  # out, or waiting to be: there is nothing to show
        if verdict.cause is Cause.GPU_THERMAL and is_hot(self.state.down, verdict.rack):
            return None
        return _Case(domain_id, part, level, shadow)

    def _names(self, domain: Domain) -> tuple[str, ...]:
        known = self.recognise(domain)
        return () if known is None else (known,)

    def _is_news(self, verdict: Verdict, part: Part) -> bool:
        """Whether a verdict says something that was not answered already.

        An incident that a release ended is answered anew for what happened after that release,
        and one that only shadow answered is answered for real.
        """
        released = part.released_at
        if released is not None and verdict.at <= released:
            return False
        if released is not None and verdict.incident in part.closed:
            later = any(ref.at is not None and ref.at > released for ref in verdict.evidence)
            return later and not part.holds and not part.held
        if verdict.incident not in self.state.incidents:
            return True
        stands = any(one.verdict.incident == verdict.incident for one in self.state.standing)
        return stands and not is_shadow(self.policy, verdict)

    def _was_passed(self, verdict: Verdict, larger: tuple[str, ...]) -> bool:
        """Whether a person put what holds the part back into service after the evidence.

        A rack's return speaks of its nodes as a whole, not of a card in one of them.
        """
        for name in larger:
            part = self.state.parts.get(name)
            if part is None or part.passed_at is None or verdict.at > part.passed_at:
                continue
            if part.domain.kind is not DomainKind.RACK or verdict.cause is Cause.NODE:
                return True
        return False

    def _is_out(self, domain_id: str, verdict: Verdict, *, shadow: bool) -> bool:
        """Whether a larger part is out, or is a rack that waits for a person.

        The waiting rack explains what happens around its failing, not what a card does next week.
        """
        part = self.state.parts.get(domain_id)
        if part is None or (part.dry_run and not shadow):
            return False
        if part.domain.kind is DomainKind.RACK and part.held_at is not None:
            explains = part.held_at + timedelta(seconds=self.policy.act_by_s)
            return bool(part.holds) or verdict.at <= explains
        return bool(part.holds)

    def isolate(
        self, domain_id: str, part: Part, hold: Hold, command: Command, alike: str | None = None
    ) -> None:
        """Issue, hold or only note an isolation; ``alike`` is why it waits as one of many."""
        by_hand = hold.by != OURSELVES
        if part.holds and part.level and LEVELS.index(hold.level) <= LEVELS.index(part.level):
            self.hold(domain_id, part, hold)
            return
        if not self.state.restored and not by_hand:
            self.outputs.append(replace(command, held=_NOT_RESTORED))
            return
        spent = spending(
            command.domain, domain_id, self.now, command=command.id, dry_run=command.dry_run
        )
        if not by_hand and not part.holds:
            reason = objection(self.state.spent, spent, self.policy.budget) or alike
            if reason is not None:
                self.keep_waiting(domain_id, part, hold, replace(command, held=reason))
                return
        self.take_out(domain_id, part, hold, command, spent)

    # --- What stands, and what is over ----------------------------------------------------------

    def _stand(self, verdict: Verdict, *, shadow: bool) -> None:
        """Keep what shadow answers; what is answered for real stands for nothing more."""
        if not self.state.restored:
            return
        if shadow:
            standing = with_standing(self.state.standing, verdict, self.now)
        else:
            standing = tuple(
                one for one in self.state.standing if one.verdict.incident != verdict.incident
            )
        at = self.state.standing_at or self._look_again
        self.set(standing=standing, standing_at=at if standing else None)

    def reconsider(self) -> None:
        """Act for real on what shadow answered and still stands, where the policy lets it now."""
        if self.state.standing_at is None or self.state.standing_at > self.now:
            return
        oldest = self.now - timedelta(seconds=self.policy.stands_for_s)
        standing = tuple(one for one in self.state.standing if one.heard_at >= oldest)
        self.set(standing=standing, standing_at=self._look_again if standing else None)
        told = [one.verdict for one in standing if not is_shadow(self.policy, one.verdict)]
        for verdict in in_order(told):
            self.act(verdict)

    @property
    def _look_again(self) -> datetime:
        return self.now + timedelta(seconds=self.policy.resend_limit_s)

    def withdraw(self, verdict: Verdict) -> None:
        """Take back what was only shown or held for an incident that is no reason to act now."""
        incident = verdict.incident
        domain_id = self.state.incidents.get(incident)
        part = self.state.parts.get(domain_id) if domain_id is not None else None
        standing = tuple(o for o in self.state.standing if o.verdict.incident != incident)
        if len(standing) < len(self.state.standing):
            self.set(standing=standing, standing_at=self.state.standing_at if standing else None)
        if part is None or domain_id is None:
            return
        shown = part.dry_run and any(hold.id == incident for hold in part.holds)
        waits = self.state.outbox.get(part.last_command or "")
        held = part.held is not None and waits is not None and waits.command.incident == incident
        if not shown and not held:
            return
        back = verdict.status is Status.RECOVERED
        if shown and back and self.policy.releases is Releases.AUTOMATIC:
            return  # its release is shown instead
        pending = [k for k, o in self.state.outbox.items() if o.command.incident == incident]
        self.drop_pending(pending)
        holds = tuple(hold for hold in part.holds if hold.id != incident)
        if held:
            part = replace(part, held=None, held_at=None, waits=None)
        if shown:
            part = replace(part, holds=holds, level=highest(holds), dry_run=bool(holds))
        self.put(domain_id, part)

    # --- What people do -------------------------------------------------------------------------

    def release_with_inside(self, domain_id: str, part: Part, request: Request) -> None:
        """Release a part; what is inside a node or card returns with it.

        A command that only waited is dismissed, and so is a rack's: what is inside stays out.
        """
        inside = self.inside(part.domain)
        dismissed = part.held is not None and not part.holds
        whole = part.domain.kind in (DomainKind.NODE, DomainKind.GPU) and not dismissed
        reason = request.reason or f"released by {request.by}"
        stays = [
            inner
            for inner in inside
            if not whole or any(h.firm and h.by != request.by for h in self._holds(inner))
        ]
        said = reason + (f"; still out: {', '.join(stays[:8])}" if stays else "")
        self.release(domain_id, part, request.by, request.id, said)
        for inner in inside if whole else ():
            known = self.state.parts[inner]
            self.release(inner, known, request.by, request.id, f"{reason} (with {domain_id})")

    def _holds(self, domain_id: str) -> tuple[Hold, ...]:
        return self.state.parts[domain_id].holds

    def count_foreign(self, request: Request) -> None:
        """Count in the budget what others took out, until they say that it is back."""
        domain_id = request.domain.id
        kept = tuple(
            one for one in self.state.spent if not (one.foreign and one.domain_id == domain_id)
        )
        if request.action is RequestAction.BACK:
            self.set(spent=kept)
            return
        spent = spending(request.domain, domain_id, self.now, command=request.id, foreign=True)
        self.set(spent=(*in_window(kept, self.now, self.policy.budget), spent))
