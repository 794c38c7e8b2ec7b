"""Keeps one node's agent as the marks say it must be: running, without some cards, or not at all.

The main thread alone starts and stops the agent; commands change the marks, which are on disk
before anything follows from them.
"""

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import FrameType

from evidence.decisions import Domain, Level
from schedulers.torchrun.agent import Agent
from schedulers.torchrun.cards import Card, card_of, listed, used
from schedulers.torchrun.checkpoints import CheckpointWait
from schedulers.torchrun.config import TorchrunConfig
from schedulers.torchrun.launch import Launch
from schedulers.torchrun.memory import Mark, Memory
from schedulers.torchrun.plan import Plan, needed, plan
from schedulers.torchrun.processes import end, of_agent

__all__ = ["EVICTED", "Supervisor"]

_LOG = logging.getLogger(__name__)
#: Exit code: the node is isolated and its agent does not run (sysexits: try again later).
EVICTED = 75
_TURN_S = 0.1
_SHARE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


class Supervisor:
    """One node's agent; ``launch`` is how it is started, ``environ`` with what.

    ``stopped`` tells how the last one ended, ``stuck`` has processes of it that do not die.
    """

    def __init__(
        self,
        config: TorchrunConfig,
        launch: Launch,
        memory: Memory,
        environ: Mapping[str, str],
        token: str,
    ) -> None:
        self.config = config
        self.launch = launch
        self.memory = memory
        self.stopped = ""
        self.stuck: list[int] = []
        self.attempt = 0
        self.agent: Agent | None = None
        self._environ = environ
        self._token = token
        self._changed = threading.Condition()
        self._wake = threading.Event()
        self._wait: CheckpointWait | None = None
        self._asked: int | None = None
        self._cards = memory.has(listed(config.cards))
        self._mine = used(self._cards, environ.get("CUDA_VISIBLE_DEVICES"))

    # --- For the thread of commands -----------------------------------------------------------

    def wanted(self) -> Plan:
        """What the marks mean now."""
        return plan(self.memory.marks, self._cards, self._mine, shrink=self.config.shrink)

    def need(self) -> Level | None:
        """How soon the running agent must stop; None where it needn't, or none runs."""
        agent = self.agent
        if agent is None:
            return None
        return needed(self.wanted(), agent.left_out, rejoin=self.config.rejoin)

    def card(self, domain: Domain) -> Card | None:
        """The card that a domain is or is a part of."""
        return card_of(domain, self._cards)

    def take(self, mark: Mark) -> None:
        """Take a domain out; on disk when this returns."""
        with self._changed:
            self.memory.take(mark)
        self._wake.set()

    def drop(self, domain_ids: Iterable[str]) -> bool:
        """Give domains back; whether any was out."""
        with self._changed:
            dropped = self.memory.drop(domain_ids)
        self._wake.set()
        return dropped

    def until(self, done: Callable[[], bool], within_s: float) -> bool:
        """Wait until what the main thread does makes ``done()`` true."""
        with self._changed:
            return self._changed.wait_for(done, within_s)

    # --- The main thread ----------------------------------------------------------------------

    def listen(self) -> None:
        """Pass signals on to the agent; one that ends us ends it first."""
        for number in (*_ENDING, *_PASSED_ON):
            signal.signal(number, self._signalled)

    def clean(self) -> None:
        """End what an agent left that we started before we were killed; it has time to end well."""
        deadline = time.monotonic() + self.config.stop_within_s
        while (left := of_agent(self._token)) and time.monotonic() < deadline:
            time.sleep(0.1)
        if left:
            pids = ", ".join(str(one.pid) for one in left)
            _LOG.warning("processes %s are left of an agent of ours: killed", pids)
            self.stuck = [one.pid for one in end(left, 5.0)]

    def run(self) -> int:
        """Supervise until the agent ends by itself, we are told to end, or the node is out.

        Returns the exit code: the agent's, or EVICTED.
        """
        while (code := self._turn()) is None:
            self._wake.wait(_TURN_S)
            self._wake.clear()
        if self._wait is not None:
            self._wait.cancel()
        return code

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        if number in _ENDING and self._asked is None:
            self._asked = number
        if self.agent is not None:
            self.agent.send(number)

    def _turn(self) -> int | None:
        agent = self.agent
        if agent is None:
            return self._idle()
        code = agent.poll()
        if code is not None:
            self._ended(agent, code)
            return code
        if self._asked is not None:
            return None  # its tether sees to it that it ends
        need = self.need()
        if need is None:
            self._stop_waiting("what it was for is over")
        elif why := self._due(agent, need):
            self._stop(agent, why)
        return None

    def _idle(self) -> int | None:
        """Start the agent, or wait, or give up, while none runs."""
        with self._changed:  # a mark comes before this look or finds the agent started
            wanted = self.wanted()
            if self._asked is None and not wanted.out:
                self._start(wanted)
                return None
        if wanted.out:
            return None if self.config.rejoin and self._asked is None else EVICTED
        return 128 + (self._asked or 0)

    def _start(self, wanted: Plan) -> None:
        environ = dict(self._environ)
        launch = self.launch
        if wanted.without:
            kept = [one.uuid for one in self._mine if one.uuid not in wanted.without]
            environ["CUDA_VISIBLE_DEVICES"] = ",".join(kept)
            if launch.workers is not None:
                launch = launch.with_workers(min(launch.workers, len(kept)))
            _LOG.warning("cards left out: %s", ", ".join(wanted.without))
        if self.config.disable_shared_store:
            environ[_SHARE] = "1"
        attempt = self.memory.starts(launch.job)
        left_out = frozenset(wanted.without)
        agent = Agent(launch, environ, self._token, left_out, self.config.stop_within_s)
        _LOG.info("agent %d of job %s started, attempt %d", agent.pid, launch.job, attempt)
        self.agent, self.attempt = agent, attempt
        self._changed.notify_all()
        if self._asked is not None:
            agent.send(self._asked)

    def _due(self, agent: Agent, need: Level) -> str | None:
        """Why the agent is to be stopped now; None while a checkpoint is waited for."""
        if need is Level.EVICT:
            self._stop_waiting("evicted")
            return "evicted"
        if self._wait is None:
            _LOG.warning("agent %d is to stop at its next checkpoint", agent.pid)
            environ = dict(self._environ) | {
                "RINGFENCE_HOOK_PID": str(agent.pid),
                "RINGFENCE_HOOK_HOST": self.config.host,
                "RINGFENCE_HOOK_JOB": self.launch.job,
            }
            self._wait = CheckpointWait(self.config, environ, agent.workers())
        return self._wait.over

    def _stop_waiting(self, why: str) -> None:
        if self._wait is not None:
            _LOG.info("a checkpoint is not waited for any more: %s", why)
            self._wait.cancel()
            self._wait = None

    def _stop(self, agent: Agent, why: str) -> None:
        began = time.monotonic()
        left = agent.stop()
        self._stop_waiting(why)
        took_s = time.monotonic() - began
        words = f"agent stopped within {took_s:.1f} s ({why})"
        _LOG.warning("%s", words)
        self._gone(words, [one.pid for one in left])

    def _ended(self, agent: Agent, code: int) -> None:
        """It ended by itself; its workers must not live on without it."""
        orphans = agent.sweep()
        _LOG.info("agent %d ended with exit code %d", agent.pid, code)
        self._gone(f"agent ended by itself with exit code {code}", [one.pid for one in orphans])

    def _gone(self, words: str, stuck: list[int]) -> None:
        if stuck:
            _LOG.error("processes %s do not die: they hang in the kernel", stuck)
        with self._changed:
            self.agent = None
            self.stopped, self.stuck = words, stuck
            self._changed.notify_all()
