"""The isolation stage's book in one step: parts, their names and holds, the outbox, what is said.

Everything that changes the state or publishes goes through here, so that a part that is out has
its hold, its entry in the budget and its published state together, or none of them.
"""

from collections.abc import Iterable
from datetime import datetime

from msgspec.structs import replace

from evidence.decisions import (
    Action,
    Command,
    DesiredState,
    Domain,
    DomainKind,
    Hold,
    Verdict,
)
from rules.budget import Spent, in_window
from rules.desired import (
    OURSELVES,
    IsolationState,
    Part,
    desired,
    forget_oldest,
    highest,
    in_service,
)
from rules.naming import containers, merge, moved, names_of, swapped
from rules.orders import release
from rules.outbox import post
from rules.policy import Policy
from rules.surge import forgotten

__all__ = ["OURSELVES", "Book", "Output"]

Output = Command | DesiredState | Verdict

_INCIDENTS_KEPT = 10_000
_CLOSED_KEPT = 64
_HOLDS_KEPT = 32
_PARTS_KEPT = 20_000
#: Commands that wait; each is some 1.5 kB of a state that must fit into one message.
_PENDING_KEPT = 3000


class Book:
    """The state as it becomes in one step, and what is published, in order."""

    def __init__(self, state: IsolationState, now: datetime, policy: Policy) -> None:
        self.state = state
        self.now = now
        self.policy = policy
        self.outputs: list[Output] = []

    def set(self, **changes: object) -> None:
        """Change fields of the state."""
        self.state = replace(self.state, **changes)

    def put(self, domain_id: str, part: Part) -> None:
        """Keep a part, under every name that it has."""
        known = dict.fromkeys((domain_id, *names_of(part.domain)), domain_id)
        parts = {**self.state.parts, domain_id: part}
        names = {**self.state.names, **known}
        if len(parts) > _PARTS_KEPT:
            forget_oldest(parts, names)
        self.set(parts=parts, names=names)

    def remember(self, incident: str, domain_id: str) -> None:
        """Note that an incident was answered."""
        incidents = {**self.state.incidents, incident: domain_id}
        for oldest in list(incidents)[:-_INCIDENTS_KEPT]:
            del incidents[oldest]
        self.set(incidents=incidents)

    def post(self, command: Command) -> None:
        """Send a command, and again until somebody answers."""
        self.outputs.append(command)
        pending = post(command, self.now, self.policy)
        self.set(outbox={**self.state.outbox, command.id: pending})

    def publish(self, domain_id: str, note: str | None = None) -> None:
        """Say what a domain should be now; shadow mode says nothing."""
        part = self.state.parts[domain_id]
        if not part.dry_run:
            self.outputs.append(desired(domain_id, part, self.now, note))

    # --- Out and back ---------------------------------------------------------------------------

    def hold(self, domain_id: str, part: Part, hold: Hold) -> None:
        """Add one more reason to a part that is out already, as hard as it needs.

        A part that fails again and again has reasons enough: those of verdicts are not all kept.
        """
        self.remember(hold.id, domain_id)
        if hold.by == OURSELVES and len(part.holds) >= _HOLDS_KEPT:
            return
        self.put(domain_id, replace(part, holds=(*part.holds, hold)))
        self.publish(domain_id)

    def take_out(
        self, domain_id: str, part: Part, hold: Hold, command: Command, spent: Spent
    ) -> None:
        """Send the command that takes a part out, and note what that removes."""
        self.remember(hold.id, domain_id)
        self.post(command)
        self.set(spent=(*in_window(self.state.spent, self.now, self.policy.budget), spent))
        part = replace(part, held=None, held_at=None, waits=None, lapsed=None, note=None)
        holds = (*part.holds, hold)
        part = replace(part, holds=holds, level=hold.level, dry_run=command.dry_run)
        self.put(domain_id, replace(part, last_command=command.id))
        self.publish(domain_id)
        for inner in self.inside(part.domain):
            if self.state.parts[inner].dry_run or not command.dry_run:
                self._waits_no_more(inner)

    def awaken(self, domain_id: str, part: Part) -> Part:
        """A part as it really is, what was only shown about it sent no more."""
        if not part.dry_run:
            return part
        self.drop_pending(
            key
            for key, one in self.state.outbox.items()
            if one.command.domain_id == domain_id and one.command.dry_run
        )
        return in_service(part)

    def keep_waiting(self, domain_id: str, part: Part, hold: Hold, command: Command) -> None:
        """Show a command that waits for a person; the part stays as it is.

        When thousands wait already, one alarm tells more than one more of them kept.
        """
        self.remember(hold.id, domain_id)
        if len(self.state.outbox) >= _PENDING_KEPT:
            self.outputs.append(command)
            return
        self.post(command)
        dry = part.dry_run if part.holds else command.dry_run
        self.put(
            domain_id,
            replace(
                part,
                dry_run=dry,
                held=command.held,
                held_at=self.now,
                waits=hold,
                last_command=command.id,
            ),
        )

    def _waits_no_more(self, domain_id: str) -> None:
        """Withdraw a held command: what it would do is done by another one, or not needed."""
        part = self.state.parts[domain_id]
        if part.held is None:
            return
        self.drop_pending(one for one in (part.last_command,) if one is not None)
        self.put(domain_id, replace(part, held=None, held_at=None, waits=None))

    def drop_pending(self, commands: Iterable[str]) -> None:
        """Send commands no more."""
        gone = set(commands)
        outbox = {key: one for key, one in self.state.outbox.items() if key not in gone}
        self.set(outbox=outbox)

    def release(self, domain_id: str, part: Part, by: str, cause_id: str, reason: str) -> None:
        """Lift all that a person may lift; when nothing is left, the part returns."""
        kept = tuple(hold for hold in part.holds if hold.firm and hold.by != by)
        self._lift(domain_id, part, kept, by, (cause_id, reason))

    def take_back(self, domain_id: str, part: Part, incident: str, reason: str) -> None:
        """Lift the one hold of an incident that is over; others keep the part out."""
        kept = tuple(hold for hold in part.holds if hold.id != incident)
        if len(kept) < len(part.holds):
            self._lift(domain_id, part, kept, OURSELVES, (incident, reason))

    def _lift(
        self,
        domain_id: str,
        part: Part,
        kept: tuple[Hold, ...],
        by: str,
        because: tuple[str, str],
    ) -> None:
        lifted = [hold for hold in part.holds if hold not in kept]
        closed = (*part.closed, *(hold.id for hold in lifted))
        if part.held and part.last_command in self.state.outbox:
            closed = (*closed, self.state.outbox[part.last_command].command.incident)
        part = replace(part, holds=kept, closed=closed[-_CLOSED_KEPT:])
        if kept:
            self.put(domain_id, replace(part, level=highest(kept)))
            self.publish(domain_id)
            return
        self.bring_back(domain_id, part, lifted, by=by, because=because)

    def bring_back(
        self,
        domain_id: str,
        part: Part,
        lifted: list[Hold],
        *,
        by: str,
        because: tuple[str, str],
    ) -> None:
        """Put a part without holds back into service: that never expires and costs nothing.

        A person's word is never a dry run, whatever the mode.
        """
        dry = part.dry_run and by == OURSELVES
        command = release(domain_id, part, lifted, self.now, by=by, because=because, dry_run=dry)
        mine = (key for key, one in self.state.outbox.items() if one.command.domain_id == domain_id)
        self.drop_pending(tuple(mine))
        spent = tuple(o for o in self.state.spent if o.domain_id != domain_id or o.foreign)
        closed = {*part.closed, *(hold.id for hold in lifted)}
        standing = tuple(o for o in self.state.standing if o.verdict.incident not in closed)
        common = forgotten(self.state.common, closed)
        if common is not self.state.common and common.surges:
            common = replace(common, look_at=self.now)  # the alarm may be over with it
        self.set(spent=spent, standing=standing, common=common)
        part = replace(
            in_service(part),
            lapsed=None,
            generation=command.generation,
            released_at=self.now,
            passed_at=part.passed_at if by == OURSELVES else self.now,
            last_command=command.id,
        )
        self.put(domain_id, part)
        self.post(command)
        if not dry:
            self.publish(domain_id)

    def lapse(self, command: Command, refused: str = "") -> None:
        """End an isolate that nobody carried out in time: the part was never out."""
        part = self.state.parts.get(command.domain_id)
        if part is None or command.dry_run or command.held or command.action is Action.RELEASE:
            return
        lapsed = next((hold for hold in part.holds if hold.id == command.incident), None)
        holds = tuple(hold for hold in part.holds if hold is not lapsed)
        self.set(spent=tuple(one for one in self.state.spent if one.command != command.id))
        ended = replace(part, holds=holds, level=highest(holds), lapsed=lapsed, note=None)
        self.put(command.domain_id, ended)
        because = f" ({refused})" if refused else ""
        note = f"expired: command {command.id} was not carried out{because}"
        self.publish(command.domain_id, note)

    # --- Names ----------------------------------------------------------------------------------

    def inside(self, domain: Domain) -> list[str]:
        """The parts inside a larger one that are out or wait to be, in order of their names."""
        of_host = domain.kind in (DomainKind.GPU, DomainKind.NODE)
        ids = {domain.id, self.state.names.get(domain.id)}
        return sorted(
            inner
            for inner, part in self.state.parts.items()
            if (part.holds or part.held)
            and (not of_host or part.domain.host == domain.host)
            and not ids.isdisjoint(containers(part.domain, None, self.state.names))
        )

    def recognise(self, domain: Domain) -> str | None:
        """The id under which a domain is known, its new names learned; None when it is new."""
        known = self._known(domain)
        for domain_id in dict.fromkeys(known):
            part = self.state.parts[domain_id]
            if swapped(part.domain, domain) or moved(part.domain, domain):
                self._departed(domain_id, part, domain)
        known = self._known(domain)
        if not known:
            return None
        domain_id = known[0]
        part = self.state.parts[domain_id]
        fuller = merge(part.domain, domain)
        if fuller is not part.domain:
            self.put(domain_id, replace(part, domain=fuller))
            if part.holds:
                self.publish(domain_id)
        return domain_id

    def _known(self, domain: Domain) -> list[str]:
        found = (self.state.names.get(name) for name in names_of(domain))
        return [domain_id for domain_id in found if domain_id in self.state.parts]

    def _departed(self, domain_id: str, part: Part, seen: Domain) -> None:
        """Close the isolation of a card that is no longer where it was."""
        if part.holds or part.held:
            why = (
                f"the card {part.domain.uuid} left this place"
                if swapped(part.domain, seen)
                else f"the card moved to {seen.id}"
            )
            holds = list(part.holds)
            self.bring_back(domain_id, part, holds, by=OURSELVES, because=(domain_id, why))
            part = self.state.parts[domain_id]
        gone = part.domain.uuid
        self.set(
            names={name: of for name, of in self.state.names.items() if of != domain_id},
            waiting=tuple(one for one in self.state.waiting if one.domain.uuid != gone),
            standing=tuple(o for o in self.state.standing if o.verdict.domain.uuid != gone),
        )
        # The place stays, so that its generation never runs backwards.
        here = seen if swapped(part.domain, seen) else replace(part.domain, uuid=None, serial=None)
        self.put(domain_id, Part(domain=here, generation=part.generation))
