"""The adapter ``torchrun``: what commands for one node mean for its elastic agent."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from evidence.decisions import AckStatus, Action, Command, DesiredState, Domain, DomainKind, Level
from evidence.identity import digest
from evidence.records import ContextKind, ContextRecord
from schedulers.adapter import Outcome, Standing, View
from schedulers.budget import Limits
from schedulers.torchrun.memory import Mark
from schedulers.torchrun.supervisor import Supervisor

__all__ = ["TorchrunAdapter"]

#: What stopping takes beyond the time an agent has: killing, and starting again.
_BEYOND_S = 15.0
_STORE = "the rendezvous store is on this node: the whole job ends with its agent"


def _now() -> datetime:
    return datetime.now(UTC)


class TorchrunAdapter:
    """Commands for one host, carried out by its supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._config = supervisor.config

    def concerns(self, command: Command) -> bool:
        """Whether the command is for this host, or for its rack."""
        return self._is_ours(command.domain)

    def apply(self, command: Command) -> Outcome:
        """Carry out one command; at `evict` the agent has ended when this returns."""
        if command.action is Action.RELEASE:
            return self._release(command)
        supervisor = self._supervisor
        agent = supervisor.agent
        store = agent is not None and agent.holds_store()
        mark = Mark(
            command=command.id,
            domain=command.domain,
            domain_id=command.domain_id,
            generation=command.generation,
            level=command.level,
            reason=command.reason,
            at=_now(),
        )
        supervisor.take(mark)
        words = _STORE if store else ""
        need = supervisor.need()
        if need is None:
            return self._done(self._noted(mark), running=supervisor.agent is not None)
        if need is Level.EVICT:
            return self._stopped(mark, words)
        latest = mark.at + timedelta(seconds=self._config.drain_patience_s)
        when = f"the agent stops at the next checkpoint, at {latest:%H:%M:%S} UTC at the latest"
        return self._done(when, self._after(mark), words)

    def _stopped(self, mark: Mark, words: str) -> Outcome:
        """Wait until the agent has ended, and say how."""
        supervisor = self._supervisor
        within_s = self._config.stop_within_s + _BEYOND_S
        stopped = supervisor.until(lambda: supervisor.need() is None, within_s)
        if not stopped:
            return Outcome(AckStatus.FAILED, f"the agent still runs after {within_s:g} s")
        if supervisor.stuck:
            pids = ", ".join(str(pid) for pid in supervisor.stuck)
            return Outcome(
                AckStatus.FAILED, f"processes {pids} do not die by SIGKILL: they hang in the kernel"
            )
        return self._done(supervisor.stopped, self._after(mark), words)

    def reconcile(self, states: Mapping[str, DesiredState], limits: Limits) -> None:
        """Make the marks those of the desired states, as far as these tell of this host."""
        memory = self._supervisor.memory
        for _, state in sorted(states.items()):
            if not self._is_ours(state.domain):
                continue
            names = {state.domain_id, *state.aliases}
            ours = [one for one in memory.marks if one.domain_id in names]
            if not state.isolated:
                back = [one.domain_id for one in ours if one.generation <= state.generation]
                self._supervisor.drop(back)
            elif (
                not ours
                and not limits.dry_run
                and not memory.was_cleared(state.domain_id, state.generation)
            ):
                self._supervisor.take(
                    Mark(
                        command=state.id,
                        domain=state.domain,
                        domain_id=state.domain_id,
                        generation=state.generation,
                        level=limits.capped(state.level or Level.CORDON),
                        reason="; ".join(hold.reason for hold in state.holds),
                        at=state.at,
                    )
                )

    def observe(self) -> View:
        """What this node has out, and the job that its agent belongs to."""
        now = _now()
        standing = tuple(
            Standing(one.domain, command=one.command, reason=one.reason, since=one.at)
            for one in self._supervisor.memory.marks
        )
        return View(now, standing, self._allocation(now))

    # --- Words --------------------------------------------------------------------------------

    def _is_ours(self, domain: Domain) -> bool:
        if domain.kind is DomainKind.RACK:
            return domain.rack is not None and domain.rack == self._config.rack
        return domain.kind is not DomainKind.JOB and domain.host == self._config.host

    def _release(self, command: Command) -> Outcome:
        supervisor = self._supervisor
        same = {command.domain_id, command.domain.id}
        marks = supervisor.memory.marks
        names = [one.domain_id for one in marks if same & {one.domain_id, one.domain.id}]
        if not supervisor.drop(names):
            return Outcome(AckStatus.DONE, f"{command.domain_id} was not out here")
        wanted = supervisor.wanted()
        if wanted.out:
            others = ", ".join(one.domain_id for one in wanted.out)
            return self._done(f"the node stays out for {others}")
        agent = supervisor.agent
        if agent is not None:
            back = agent.left_out - wanted.without.keys()
            when = "at the next checkpoint" if self._config.rejoin else "when it is next started"
            return self._done(f"it has the card back {when}" if back else "", running=True)
        if not self._config.rejoin:
            return self._done("the agent may be started again; rejoin is off")
        if not supervisor.until(lambda: supervisor.agent is not None, _BEYOND_S):
            return Outcome(AckStatus.FAILED, f"no agent was started within {_BEYOND_S:g} s")
        return self._done("the agent was started again")

    def _noted(self, mark: Mark) -> str:
        """What becomes of a mark that does not stop a running agent."""
        wanted = self._supervisor.wanted()
        if mark.domain_id in {one.domain_id for one in wanted.out}:
            return "the agent is not started again until a release"
        card = self._supervisor.card(mark.domain)
        if card is not None and card.uuid in wanted.without:
            return f"the agent's next start leaves {card.uuid} out"
        return "the job does not use this card"

    def _after(self, mark: Mark) -> str:
        """What follows a stop for a mark."""
        wanted = self._supervisor.wanted()
        if wanted.out:
            back = "after a release it returns" if self._config.rejoin else "nothing starts it here"
            return f"{mark.domain_id} keeps the node out; {back}"
        return f"it is started again without {', '.join(wanted.without)}"

    def _done(self, *words: str, running: bool | None = None) -> Outcome:
        now = {None: "", True: "the running agent goes on", False: "no agent runs here"}[running]
        return Outcome(AckStatus.DONE, "; ".join(filter(None, [now, *words])))

    def _allocation(self, now: datetime) -> tuple[ContextRecord, ...]:
        supervisor = self._supervisor
        agent = supervisor.agent
        if agent is None or not self._config.allocation:
            return ()
        job, host = supervisor.launch.job, self._config.host
        return (
            ContextRecord(
                id=digest("torchrun", "allocation", job, supervisor.attempt, host),
                host=host,
                observed_at=now,
                kind=ContextKind.ALLOCATION,
                at=agent.began_at,
                job=job,
                attempt=supervisor.attempt,
                by="torchrun",
            ),
        )
