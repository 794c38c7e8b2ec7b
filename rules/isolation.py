"""The isolation stage: verdicts, requests and acks in, commands and desired states out.

It acts rarely and once: one command per incident, within the budget, never on a victim, and what
a person released is not taken out again for the same evidence.
"""

from datetime import datetime, timedelta

from msgspec.structs import replace

from evidence.decisions import (
    Ack,
    AckStatus,
    Action,
    Cause,
    Command,
    DesiredState,
    Domain,
    DomainKind,
    Hold,
    Request,
    RequestAction,
    Status,
    Verdict,
)
from evidence.records import Tick
from rules.budget import Spent, cost_of, in_window, objection
from rules.desired import (
    LEVELS,
    IsolationState,
    Part,
    desired,
    forget_oldest,
    highest,
    in_service,
    rebuild,
)
from rules.naming import containers, has_place, merge, moved, names_of, swapped
from rules.orders import isolate, release
from rules.outbox import answered, expired, next_due, post, resent
from rules.policy import GoverningRules, Mode, Policy
from rules.racks import note, racks, settles_at
from rules.severity import level_of, mode_of, taken_out
from rules.stage import Arrived

__all__ = ["IsolationState", "Output", "Part", "due", "rebuild", "step"]

Output = Command | DesiredState | Verdict

#: Who the holds of verdicts belong to.
OURSELVES = "ringfence"
_INCIDENTS_KEPT = 10_000
_REQUESTS_KEPT = 512
_CLOSED_KEPT = 64
_PARTS_KEPT = 20_000


def due(state: IsolationState) -> datetime | None:
    """When a Tick is needed next; None while the outbox is empty and no rack waits."""
    waiting = [] if state.racks_at is None else [state.racks_at]
    return min((*waiting, *map(next_due, state.outbox.values())), default=None)


def step(
    state: IsolationState, arrived: Arrived, rules: GoverningRules
) -> tuple[IsolationState, list[Output]]:
    """Take one verdict, request, ack or Tick; time is the broker's append time.

    Returns the state (the same object when there is nothing to write) and what to publish, in
    order; a verdict among it is about a rack and comes back as an input. A redelivered record
    changes nothing.
    """
    if arrived.offset is not None and arrived.offset <= state.offsets.get(arrived.topic, -1):
        return state, []
    turn = _Turn(state, arrived.at, rules.policy)
    match arrived.record:
        case Verdict() as verdict:
            turn.verdict(verdict)
        case Request() as request:
            turn.request(request)
        case Ack() as ack:
            turn.ack(ack)
        case Tick():
            turn.tick()
    if turn.state is not state and arrived.offset is not None:
        offsets = {**state.offsets, arrived.topic: arrived.offset}
        return replace(turn.state, offsets=offsets), turn.outputs
    return turn.state, turn.outputs


class _Turn:
    """One step in progress: the state as it becomes, and what is published."""

    def __init__(self, state: IsolationState, now: datetime, policy: Policy) -> None:
        self.state = state
        self.now = now
        self.policy = policy
        self.outputs: list[Output] = []

    # --- What arrives ---------------------------------------------------------------------------

    def verdict(self, verdict: Verdict) -> None:
        """Act on a verdict, if it is sure, new, and about a part that is still in service."""
        self._note_down(verdict)
        domain_id = self._recognise(verdict.domain)
        part = self.state.parts.get(domain_id) if domain_id else None
        if verdict.status is Status.RECOVERED:
            if self.policy.automatic_release and part and domain_id:
                self._release(domain_id, part, OURSELVES, verdict.incident, verdict.reason)
            return
        level = level_of(self.policy, verdict, part, self.now)
        if level is None or not self._concerns(verdict, part):
            return
        domain = taken_out(self.policy, verdict)
        if domain.kind is not verdict.domain.kind:
            domain_id = self._recognise(domain)
            part = self.state.parts.get(domain_id) if domain_id else None
            if not self._concerns(verdict, part):
                return
        shadow = mode_of(self.policy, verdict.pool) is Mode.SHADOW
        larger = containers(domain, verdict.rack, self.state.names)
        if any(self._is_out(name, shadow=shadow) for name in larger):
            return
        domain_id = domain_id or domain.id
        part = part or Part(domain=domain)
        if part.dry_run and not shadow:
            part = in_service(part)
        hold = Hold(
            id=verdict.incident,
            cause=verdict.cause,
            by=OURSELVES,
            at=verdict.at,
            reason=verdict.reason,
            level=level,
        )
        command = isolate(domain_id, part, hold, self.now, self.policy, verdict)
        self._isolate(domain_id, part, hold, command)

    def request(self, request: Request) -> None:
        """Do what a person asks; the budget and the mode do not bind a person."""
        if request.id in self.state.requests or not has_place(request.domain):
            return
        self._set(requests=(*self.state.requests, request.id)[-_REQUESTS_KEPT:])
        domain_id = self._recognise(request.domain) or request.domain.id
        part = self.state.parts.get(domain_id) or Part(domain=request.domain)
        if request.action is RequestAction.RELEASE:
            self._release(domain_id, part, request.by, request.id, request.reason)
            return
        hold = Hold(
            id=request.id,
            cause=Cause.UNKNOWN,
            by=request.by,
            at=request.at,
            reason=request.reason or f"{request.action} by {request.by}",
            level=request.level,
            firm=request.action is RequestAction.HOLD,
        )
        command = isolate(domain_id, part, hold, self.now, self.policy)
        if part.dry_run:
            part = in_service(part)
        self._isolate(domain_id, part, hold, command)

    def ack(self, ack: Ack) -> None:
        """Read what a scheduler did."""
        pending = self.state.outbox.get(ack.command)
        if pending is None:
            self._late_ack(ack)
            return
        after = answered(pending, ack, self.now, self.policy)
        if after is pending:
            return
        outbox = dict(self.state.outbox)
        if after is None:
            del outbox[ack.command]
        else:
            outbox[ack.command] = after
        self._set(outbox=outbox)
        if after is None and ack.status is AckStatus.EXPIRED:
            self._lapse(pending.command)

    def tick(self) -> None:
        """Send again what nobody acknowledged, end what came too late, and widen to racks."""
        self._widen()
        for command_id, pending in list(self.state.outbox.items()):
            if next_due(pending) > self.now:
                continue
            outbox = dict(self.state.outbox)
            if expired(pending, self.now):
                del outbox[command_id]
                self._set(outbox=outbox)
                self._lapse(pending.command)
            else:
                outbox[command_id] = resent(pending, self.now, self.policy)
                self._set(outbox=outbox)
                self.outputs.append(pending.command)

    # --- Widening -------------------------------------------------------------------------------

    def _note_down(self, verdict: Verdict) -> None:
        """Remember a node that failed as a whole, to see whether others of its rack did."""
        down = note(self.state.down, verdict, self.now)
        if down is not self.state.down:
            self._set(down=down, racks_at=settles_at(down, self._wait))

    def _widen(self) -> None:
        """Say of a rack, once, that enough of its nodes failed together."""
        if self.state.racks_at is None or self.state.racks_at > self.now:
            return
        down, verdicts = racks(self.state.down, self.now, self.policy.widening, self._wait)
        self._set(down=down, racks_at=settles_at(down, self._wait))
        self.outputs += verdicts

    @property
    def _wait(self) -> timedelta:
        return timedelta(seconds=self.policy.job.settle_across_hosts_s)

    # --- Acting ---------------------------------------------------------------------------------

    def _concerns(self, verdict: Verdict, part: Part | None) -> bool:
        """Whether a verdict says something that was not answered already.

        An incident that a release ended is answered anew for what happened after that release.
        """
        answered = verdict.incident in self.state.incidents
        if part is None:
            return not answered
        released = part.released_at
        if released is not None and verdict.at <= released:
            return False
        if released is not None and verdict.incident in part.closed:
            later = any(ref.at is not None and ref.at > released for ref in verdict.evidence)
            return later and not part.holds and not part.held
        return not answered

    def _is_out(self, domain_id: str, *, shadow: bool) -> bool:
        """Whether a part is out, or is a rack that waits for a person: its nodes are not."""
        part = self.state.parts.get(domain_id)
        if part is None:
            return False
        waits = part.held is not None and part.domain.kind is DomainKind.RACK
        return waits or (bool(part.holds) and (shadow or not part.dry_run))

    def _isolate(self, domain_id: str, part: Part, hold: Hold, command: Command) -> None:
        """Issue, hold or only note an isolation."""
        by_hand = hold.by != OURSELVES
        if part.holds and part.level and LEVELS.index(hold.level) <= LEVELS.index(part.level):
            self._remember(hold.id, domain_id)
            self._put(domain_id, replace(part, holds=(*part.holds, hold)))
            self._publish(domain_id)
            return
        kind, unit, cost = cost_of(command.domain, self.policy.budget)
        spent = Spent(self.now, command.id, domain_id, kind, unit, cost, command.dry_run)
        reason = None
        if not self.state.restored and not by_hand:
            reason = "What is isolated already is not known: the stage's state was not restored."
            self.outputs.append(replace(command, held=reason))
            return
        if not by_hand and not part.holds:
            reason = objection(self.state.spent, spent, self.policy.budget)
        command = replace(command, held=reason)
        self._remember(hold.id, domain_id)
        self._post(command)
        if reason is not None:
            self._put(domain_id, replace(part, held=reason, last_command=command.id))
            return
        self._set(spent=(*in_window(self.state.spent, self.now, self.policy.budget), spent))
        self._put(
            domain_id,
            replace(
                part,
                holds=(*part.holds, hold),
                level=hold.level,
                dry_run=command.dry_run,
                held=None,
                lapsed=None,
                last_command=command.id,
            ),
        )
        self._publish(domain_id)

    def _release(self, domain_id: str, part: Part, by: str, cause_id: str, reason: str) -> None:
        """Lift what ``by`` may lift; when nothing is left, the part returns."""
        kept = tuple(
            hold for hold in part.holds if hold.by != by and (hold.firm or by == OURSELVES)
        )
        lifted = [hold for hold in part.holds if hold not in kept]
        closed = (*part.closed, *(hold.id for hold in lifted))
        if part.held and part.last_command in self.state.outbox:
            closed = (*closed, self.state.outbox[part.last_command].command.incident)
        part = replace(part, holds=kept, closed=closed[-_CLOSED_KEPT:], held=None)
        if kept:
            self._put(domain_id, replace(part, level=highest(kept)))
            self._publish(domain_id)
            return
        self._return(domain_id, part, lifted, by, cause_id, reason)

    def _return(
        self,
        domain_id: str,
        part: Part,
        lifted: list[Hold],
        by: str,
        cause_id: str,
        reason: str,
    ) -> None:
        """Put a part without holds back into service: a release never expires and costs nothing."""
        command = release(domain_id, part, lifted, self.now, by=by, because=(cause_id, reason))
        outbox = {
            key: pending
            for key, pending in self.state.outbox.items()
            if pending.command.domain_id != domain_id
        }
        spent = tuple(one for one in self.state.spent if one.domain_id != domain_id)
        self._set(outbox=outbox, spent=spent)
        was_dry = part.dry_run
        part = replace(
            part,
            holds=(),
            level=None,
            dry_run=False,
            lapsed=None,
            generation=command.generation,
            released_at=self.now,
            last_command=command.id,
        )
        self._put(domain_id, part)
        self._post(command)
        if not was_dry:
            self._publish(domain_id)

    def _lapse(self, command: Command) -> None:
        """End an isolate that nobody carried out in time: the part was never out."""
        part = self.state.parts.get(command.domain_id)
        if part is None or command.dry_run or command.held or command.action is Action.RELEASE:
            return
        lapsed = next((hold for hold in part.holds if hold.id == command.incident), None)
        holds = tuple(hold for hold in part.holds if hold is not lapsed)
        self._set(spent=tuple(one for one in self.state.spent if one.command != command.id))
        self._put(
            command.domain_id, replace(part, holds=holds, level=highest(holds), lapsed=lapsed)
        )
        self._publish(command.domain_id, f"expired: command {command.id} was not carried out")

    def _late_ack(self, ack: Ack) -> None:
        """A scheduler carried out a command whose time had passed: then the part is out."""
        part = self.state.parts.get(ack.domain_id)
        late = ack.status is AckStatus.DONE and part and part.last_command == ack.command
        if not late or part is None or part.lapsed is None:
            return
        holds = (*part.holds, part.lapsed)
        self._put(ack.domain_id, replace(part, holds=holds, level=highest(holds), lapsed=None))
        self._publish(ack.domain_id)

    # --- Names ----------------------------------------------------------------------------------

    def _recognise(self, domain: Domain) -> str | None:
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
            self._put(domain_id, replace(part, domain=fuller))
            if part.holds:
                self._publish(domain_id)
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
            self._return(domain_id, part, list(part.holds), OURSELVES, domain_id, why)
            part = self.state.parts[domain_id]
        names = {name: of for name, of in self.state.names.items() if of != domain_id}
        self._set(names=names)
        # The place stays, so that its generation never runs backwards.
        here = seen if swapped(part.domain, seen) else replace(part.domain, uuid=None, serial=None)
        self._put(domain_id, Part(domain=here, generation=part.generation))

    # --- State ----------------------------------------------------------------------------------

    def _set(self, **changes: object) -> None:
        self.state = replace(self.state, **changes)

    def _put(self, domain_id: str, part: Part) -> None:
        names = dict.fromkeys((domain_id, *names_of(part.domain)), domain_id)
        parts = {**self.state.parts, domain_id: part}
        if len(parts) > _PARTS_KEPT:
            forget_oldest(parts)
        self._set(parts=parts, names={**self.state.names, **names})

    def _remember(self, incident: str, domain_id: str) -> None:
        incidents = {**self.state.incidents, incident: domain_id}
        for oldest in list(incidents)[:-_INCIDENTS_KEPT]:
            del incidents[oldest]
        self._set(incidents=incidents)

    def _post(self, command: Command) -> None:
        self.outputs.append(command)
        pending = post(command, self.now, self.policy)
        self._set(outbox={**self.state.outbox, command.id: pending})

    def _publish(self, domain_id: str, note: str | None = None) -> None:
        """Say what a domain should be now; shadow mode says nothing."""
        part = self.state.parts[domain_id]
        if part.dry_run:
            return
        self.outputs.append(desired(domain_id, part, self.now, note))
