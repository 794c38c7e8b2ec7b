"""The supervisor's process: its agent in the main thread, commands in another.

Kafka may be away as long as it likes: the agent runs on, and what was missed follows from the
desired states once they can be read.
"""

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evidence.identity import digest
from evidence.transport import Kafka
from schedulers import consumer as consuming
from schedulers.adapter import SchedulerError
from schedulers.checks import Checks
from schedulers.consumer import SchedulerConfig
from schedulers.desired import DesiredStates
from schedulers.journal import Journal
from schedulers.torchrun.adapter import TorchrunAdapter
from schedulers.torchrun.config import TorchrunConfig
from schedulers.torchrun.launch import Launch
from schedulers.torchrun.memory import Memory
from schedulers.torchrun.supervisor import EVICTED, Supervisor

__all__ = ["EVICTED", "supervise"]

_LOG = logging.getLogger(__name__)
_SHARE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
_AGAIN_S = 2.0
#: How long the last ack may take to reach Kafka when we end.
_LAST_ACK_S = 15.0


def supervise(
    config: TorchrunConfig,
    consumer: SchedulerConfig,
    command: Sequence[str],
    *,
    clear: bool = False,
    prepare: Callable[[Kafka], None] = lambda _kafka: None,
    environ: Mapping[str, str] = os.environ,
) -> int:
    """Run ``command``, an elastic agent, as long as this node may; call it in the main thread.

    Returns the exit code: the agent's, or EVICTED while the node is isolated. ``clear`` forgets
    what the node is out for. ``prepare`` makes ready a cluster that answers (its topics). Raises
    SchedulerError where keys, the state folder or the journal cannot be used.
    """
    name = f"{consumer.name}-{config.host}"
    # A group of its own: every supervisor reads all commands, and takes those for its host.
    group = (
        f"{consumer.group or consumer.kafka.prefix + 'scheduler.' + consumer.name}-{config.host}"
    )
    consumer = replace(consumer, name=name, group=group)
    _ = Checks(consumer.kafka, consumer.verify_keys)
    launch = Launch(tuple(command), environ)
    if config.allocation is None:
        config = replace(config, allocation="SLURM_JOB_ID" not in environ)
    memory = Memory(consumer.state_dir, name)
    try:
        with Journal(consumer.state_dir, name):
            pass
        if clear:
            for one in memory.clear():
                _LOG.warning(
                    "%s (%s) is not out any more: cleared by hand", one.domain_id, one.reason
                )
        _warn(config, launch, environ)
        token = digest("torchrun", Path(consumer.state_dir).resolve(), name)
        supervisor = Supervisor(config, launch, memory, environ, token)
        return _run(supervisor, consumer, prepare)
    finally:
        memory.close()


def _run(
    supervisor: Supervisor, consumer: SchedulerConfig, prepare: Callable[[Kafka], None]
) -> int:
    supervisor.listen()
    commands = _Commands(TorchrunAdapter(supervisor), consumer, prepare)
    thread = threading.Thread(target=commands.follow, name="commands", daemon=True)
    thread.start()
    try:
        supervisor.clean()
        if not commands.reconciled.wait(supervisor.config.start_within_s):
            _LOG.warning("the desired states could not be read yet; what is known here counts")
        code = supervisor.run()
        if code == EVICTED:
            out = "; ".join(f"{one.domain_id} ({one.reason})" for one in supervisor.wanted().out)
            _LOG.warning("no agent runs on %s: %s", supervisor.config.host, out)
        return code
    finally:
        commands.stop.set()
        thread.join(_LAST_ACK_S if commands.reads.is_set() else 0.0)


def _warn(config: TorchrunConfig, launch: Launch, environ: Mapping[str, str]) -> None:
    for words in launch.warnings():
        _LOG.warning("%s", words)
    if not config.disable_shared_store and environ.get(_SHARE) != "1":
        _LOG.warning("%s is not 1: torch 2.4 and later may hang after a change of size", _SHARE)


@dataclass(slots=True)
class _Commands:
    """The thread that reads commands; it outlives any absence of Kafka."""

    adapter: TorchrunAdapter
    config: SchedulerConfig
    prepare: Callable[[Kafka], None]
    stop: threading.Event
    reconciled: threading.Event
    reads: threading.Event

    def __init__(
        self, adapter: TorchrunAdapter, config: SchedulerConfig, prepare: Callable[[Kafka], None]
    ) -> None:
        self.adapter, self.config, self.prepare = adapter, config, prepare
        self.stop, self.reconciled = threading.Event(), threading.Event()
        self.reads = threading.Event()

    def follow(self) -> None:
        """Reconcile, then read commands, until stopped; again after any failure."""
        said = ""
        while not self.stop.is_set():
            try:
                self.prepare(self.config.kafka)
                self._reconcile()
                self.reads.set()
                consuming.run(self.config, self.adapter, self.stop)
            except Exception as error:  # noqa: BLE001 (the agent must not lose its supervisor)
                known = isinstance(error, SchedulerError)
                words = str(error) if known else f"{type(error).__name__}: {error}"
                if words != said:
                    _LOG.warning("commands are not read, tried again: %s", words)
                said = words
            self.reads.clear()
            self.stop.wait(_AGAIN_S)

    def _reconcile(self) -> None:
        """Take over the desired states once they were read to their end."""
        checks = Checks(self.config.kafka, self.config.verify_keys)
        client = self.config.kafka.client() | {
            "client_id": f"ringfence-{self.config.name}",
            "bootstrap_timeout_ms": int(self.config.start_within_s * 1000),
        }
        states = DesiredStates(self.config.kafka, checks, client)
        try:
            while not states.complete and not self.stop.is_set():
                states.read(wait_ms=200)
            if states.complete:
                self.adapter.reconcile(states.by_domain, self.config.limits)
                self.reconciled.set()
        finally:
            states.close()
