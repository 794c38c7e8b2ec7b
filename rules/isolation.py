"""The isolation stage: verdicts, requests and acks in, commands and desired states out.

It acts rarely and once: one command per incident, within the budget, never on a victim, and what
a person released is not taken out again for the same evidence.

What does not depend on the order of arrival: verdicts that are not hard and arrive within one
wait (``settle_s`` from the first of them) give the same commands, held ones included. A hard
verdict acts at once, and so before all that wait; of two hard ones for which the budget has no
room together, the first to arrive is acted upon and the other one held.
"""

from datetime import datetime, timedelta

from msgspec.structs import replace

from evidence.decisions import (
    Ack,
    AckStatus,
    Cause,
    DomainKind,
    Hold,
    Request,
    RequestAction,
    Verdict,
)
from evidence.records import Tick
from rules import surge
from rules.book import Output
from rules.budget import took_node
from rules.desired import IsolationState, Part, highest, rebuild
from rules.naming import has_place
from rules.orders import isolate
from rules.outage import look_at, take, tell
from rules.outbox import Pending, answered, expired, next_due, resent
from rules.policy import GoverningRules
from rules.racks import note, racks, recovered, settles_at
from rules.returning import Returning
from rules.settling import WAITING_MOST, in_order, slim, without
from rules.severity import is_acted_upon
from rules.stage import Arrived
from rules.surge import CLUSTER
from rules.surge_telling import forget_at
from rules.surge_telling import tell as tell_common

__all__ = ["IsolationState", "Output", "Part", "due", "rebuild", "settles", "step"]

_REQUESTS_KEPT = 512
#: How long a count of nodes that fail alike must not have changed to be told anew.
_RESTS = timedelta(seconds=10)


def settles(state: IsolationState) -> datetime | None:
    """When verdicts are to be acted upon that wait for others; None while none does."""
    waiting = (state.racks_at, state.settles_at, state.outage_at, state.common.look_at)
    return min((at for at in waiting if at is not None), default=None)


def due(state: IsolationState) -> datetime | None:
    """When a Tick is needed next; None while the outbox is empty and nothing waits or stands."""
    later = (state.standing_at, state.recovers_at, forget_at(state.common))
    waiting = (settles(state), *later, *map(next_due, state.outbox.values()))
    return min((at for at in waiting if at is not None), default=None)


def step(
    state: IsolationState, arrived: Arrived, rules: GoverningRules
) -> tuple[IsolationState, list[Output]]:
    """Take one verdict, request, ack or Tick; time is the broker's append time.

    Returns the state (the same object when there is nothing to write) and what to publish, in
    order; a verdict among it is about a rack and was acted upon already. A redelivered record
    changes nothing.
    """
    if arrived.offset is not None and arrived.offset <= state.offsets.get(arrived.topic, -1):
        return state, []
    turn = _Turn(state, arrived.at, rules.policy)
    turn.settle()
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


class _Turn(Returning):
    """One step in progress: what arrived is taken in."""

    # --- Verdicts -------------------------------------------------------------------------------

    def verdict(self, verdict: Verdict) -> None:
        """Take a verdict: at once where it is hard, with others after a wait where it is not."""
        self._note_down(verdict)
        self._gather_silent(verdict)
        self._gather_alike(verdict)
        waiting = without(self.state.waiting, verdict.incident)
        earlier = [one for one in self.state.waiting if one.incident == verdict.incident]
        if any(one.revision > verdict.revision for one in earlier):
            return
        domain_id = self.recognise(verdict.domain)
        self.hear_of_recovery(verdict, domain_id)
        waits = False
        if not is_acted_upon(self.policy, verdict):
            self.withdraw(verdict)
        elif (verdict.hard and not self._is_overtaken(verdict)) or not self.policy.settle_s:
            self.act(verdict)
        else:
            waits = self.considered(verdict) is not None
        if waits:
            waiting = (*waiting, slim(verdict))
        if waits or earlier:
            self._set_waiting(waiting)
        if len(waiting) > WAITING_MOST:
            self._act_upon_waiting()

    def _set_waiting(self, waiting: tuple[Verdict, ...]) -> None:
        """Keep who waits; the wait begins with the first and does not begin anew."""
        at = self.state.settles_at
        if at is None:
            at = self.now + timedelta(seconds=self.policy.settle_s)
        self.set(waiting=waiting, settles_at=at if waiting else None)

    def settle(self) -> None:
        """Widen to racks and act upon what has waited long enough, before anything else."""
        if self.state.racks_at is not None and self.state.racks_at <= self.now:
            self._widen()
        alarms_at = (self.state.common.look_at, forget_at(self.state.common))
        if any(at is not None and at <= self.now for at in alarms_at):
            self._gather_alike()
        if self.state.settles_at is not None and self.state.settles_at <= self.now:
            self._act_upon_waiting()
        if self.state.outage_at is not None and self.state.outage_at <= self.now:
            self._gather_silent()
        self.look_for_recovered()

    def _act_upon_waiting(self) -> None:
        waiting = self.state.waiting
        self.set(waiting=(), settles_at=None)
        for verdict in in_order(waiting):
            self.act(verdict)

    # --- Widening -------------------------------------------------------------------------------

    def _note_down(self, verdict: Verdict) -> None:
        """Remember a node that failed as a whole, to see whether others of its rack did."""
        before = self.state.down
        down = note(before, verdict, self.now)
        if down is before:
            return
        self.set(down=down, racks_at=settles_at(down, self._wait))
        back = recovered(before, down, verdict.incident, self.now, self.policy.widening)
        if back is not None:
            self.outputs.append(back)
            self.withdraw(back)

    def _widen(self) -> None:
        """Say of a rack, once, that enough of its nodes failed together, and act upon it."""
        down, verdicts = racks(self.state.down, self.now, self.policy.widening, self._wait)
        self.set(down=down, racks_at=settles_at(down, self._wait))
        for verdict in verdicts:
            muted = self.policy.rule(verdict.rule).muted
            self.outputs.append(replace(verdict, muted=muted))
            self.act(verdict)

    def _gather_silent(self, verdict: Verdict | None = None) -> None:
        """Take in that a host fell silent, and say what is to be said of those that did."""
        before = self.state.outage
        known = before if verdict is None else take(before, verdict, self.now)
        if known is before and verdict is not None:
            return
        known, verdicts = tell(known, self.now, self.policy.widening)
        self.set(outage=known, outage_at=look_at(known, self.policy.widening))
        for one in verdicts:
            self.outputs.append(replace(one, muted=self.policy.rule(one.rule).muted))

    def _gather_alike(self, verdict: Verdict | None = None) -> None:
        """Take in what fails, and say what is to be said of many that fail alike."""
        if verdict is not None and not self.policy.rule(verdict.rule).enabled:
            return
        before, policy = self.state.common, self.policy.widening
        known = before if verdict is None else surge.take(before, verdict, self.now, policy)
        if known is before and verdict is not None:
            return
        told = {one.rack for one in self.state.down if one.said}
        rest = max(self._wait, _RESTS)
        known, verdicts = tell_common(known, self.now, policy, rest, told)
        self.set(common=known)
        for one in verdicts:
            self.outputs.append(replace(one, muted=self.policy.rule(one.rule).muted))

    def _is_overtaken(self, verdict: Verdict) -> bool:
        """Whether a verdict was made of a backlog: its next revision may be right behind it."""
        late = self.now - verdict.decided_at
        return late > timedelta(seconds=self.policy.fresh_s)

    @property
    def _wait(self) -> timedelta:
        return timedelta(seconds=self.policy.settle_s)

    # --- Requests -------------------------------------------------------------------------------

    def request(self, request: Request) -> None:
        """Do what a person asks; the budget and the mode do not bind a person."""
        if request.id in self.state.requests:
            return
        if request.action is RequestAction.RESUME and request.domain.job == CLUSTER:
            self.set(restored=True)  # a person knows what is out, or that nothing is
        elif not has_place(request.domain):
            return
        self.set(requests=(*self.state.requests, request.id)[-_REQUESTS_KEPT:])
        if request.action in (RequestAction.OUT, RequestAction.BACK):
            self.count_foreign(request)
            return
        domain_id = self.recognise(request.domain) or request.domain.id
        part = self.state.parts.get(domain_id) or Part(domain=request.domain)
        match request.action:
            case RequestAction.RELEASE:
                self.release_with_inside(domain_id, part, request)
            case RequestAction.RESUME:
                self.resume(domain_id, part, request)
            case RequestAction.LIFT:
                self.lift(domain_id, part, request)
            case _:
                self._take_out_by_hand(domain_id, part, request)

    def _take_out_by_hand(self, domain_id: str, part: Part, request: Request) -> None:
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
        self.isolate(domain_id, self.awaken(domain_id, part), hold, command)

    # --- Acks and time --------------------------------------------------------------------------

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
        self.set(outbox=outbox)
        if after is None and ack.status is AckStatus.EXPIRED:
            self.lapse(pending.command, pending.refused)
        elif ack.status is AckStatus.REFUSED:
            self._refused(pending, ack, after)
        elif ack.status is AckStatus.DONE:
            self._carried_out(ack)

    def _refused(self, pending: Pending, ack: Ack, after: Pending | None) -> None:
        """Say in the published state that a scheduler refused, and whether it is tried again."""
        part = self.state.parts.get(ack.domain_id)
        command = pending.command
        if part is None or command.dry_run or command.held or part.last_command != command.id:
            return
        ends = "" if after is not None else "; not sent again"
        note = f"{command.action} refused by {ack.scheduler}: {ack.detail[:300]}{ends}"
        if note != part.note:
            self.put(ack.domain_id, replace(part, note=note))
            self.publish(ack.domain_id)

    def _carried_out(self, ack: Ack) -> None:
        """Count what was really taken out, and forget what another scheduler refused."""
        if ack.took is DomainKind.NODE:
            self.set(spent=took_node(self.state.spent, ack.command))
        part = self.state.parts.get(ack.domain_id)
        if part is not None and part.note is not None and part.last_command == ack.command:
            self.put(ack.domain_id, replace(part, note=None))
            self.publish(ack.domain_id)

    def _late_ack(self, ack: Ack) -> None:
        """A scheduler carried out a command whose time had passed: then the part is out."""
        part = self.state.parts.get(ack.domain_id)
        if ack.status is AckStatus.DONE:
            self._carried_out(ack)
            part = self.state.parts.get(ack.domain_id)
        late = ack.status is AckStatus.DONE and part and part.last_command == ack.command
        if not late or part is None or part.lapsed is None:
            return
        holds = (*part.holds, part.lapsed)
        self.put(ack.domain_id, replace(part, holds=holds, level=highest(holds), lapsed=None))
        self.publish(ack.domain_id)

    def tick(self) -> None:
        """Look again at what stands, send again what nobody answered, end what came too late."""
        self.reconsider()
        for command_id, pending in list(self.state.outbox.items()):
            if command_id not in self.state.outbox or next_due(pending) > self.now:
                continue
            if expired(pending, self.now):
                self.drop_pending((command_id,))
                self.lapse(pending.command, pending.refused)
            else:
                again = resent(pending, self.now, self.policy)
                self.set(outbox={**self.state.outbox, command_id: again})
                self.outputs.append(pending.command)
