"""The adapter ``kubernetes``: cordons and taints nodes, taints single GPUs, moves pods, looks.

What is carried out twice stands once. What a person took back is not done again for the same
command, and what a person did is not undone.
"""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from threading import Event
from typing import Any, TypeVar

from evidence.decisions import AckStatus, Action, Command, Domain, DomainKind, Level
from schedulers.adapter import Outcome, SchedulerError, View
from schedulers.kubernetes import looks
from schedulers.kubernetes.api import Api, ApiError, MissingError, connect, path
from schedulers.kubernetes.config import GpuAs, KubernetesConfig, PastBudget
from schedulers.kubernetes.devices import Devices
from schedulers.kubernetes.marks import mark
from schedulers.kubernetes.nodes import Nodes
from schedulers.kubernetes.pods import Cleared, Pod, clear, delete, on_node
from schedulers.kubernetes.slices import Device

__all__ = ["KubernetesAdapter", "KubernetesConfig"]

_LOG = logging.getLogger(__name__)
Json = dict[str, Any]
_CARDS = (DomainKind.GPU, DomainKind.MIG, DomainKind.NVLINK)
_PARTS = (*_CARDS, DomainKind.NODE, DomainKind.LINK)  # a link with a host is one of its adapters
_MANY = 8  # commands from which on one list of nodes costs less than a look at each
_Done = TypeVar("_Done")
_AFTER_S = 5.0  # for pods to go that are past their budgets


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A part that is out, with pods still to move: who they are, and how to force them.

    ``took`` is what was really taken out: a card, or its node.
    """

    level: Level
    words: str
    look: Callable[[], list[Pod]]
    force: Callable[[], None]
    took: DomainKind = DomainKind.NODE


class KubernetesAdapter:
    """One cluster. Setting ``stop`` cuts a drain's patience short.

    Raises SchedulerError where no login can be found; a server that does not answer is an Outcome.
    """

    def __init__(
        self,
        settings: KubernetesConfig,
        *,
        stop: Event | None = None,
        clock: Callable[[], datetime] = _now,
        api: Api | None = None,
    ) -> None:
        self._settings = settings
        self.stop = stop or Event()
        self._clock = clock
        self._api = api or connect(settings)
        self._nodes = Nodes(self._api, settings, clock)
        self._devices = Devices(self._api, settings)
        self._memory = looks.Memory()

    def apply(self, command: Command) -> Outcome:
        """Carry out one command: at most the level's patience and a few calls long."""
        begun = self._begin(command, None)
        return begun if isinstance(begun, Outcome) else self._clear(begun, time.monotonic())

    def apply_all(self, commands: Sequence[Command]) -> list[Outcome]:
        """Carry out many at once, those of one host in their order; an outcome each, in order.

        All are cordoned before the first pod is waited for, and one patience is for all of them.
        """
        hosts: dict[str | None, list[int]] = {}
        for index, command in enumerate(commands):
            hosts.setdefault(command.domain.host, []).append(index)
        read = self._read_ahead() if len(hosts) >= _MANY else {}
        began = time.monotonic()
        said: dict[int, Outcome | _Begun] = {}

        def begin(indices: list[int]) -> None:
            node = read.get(commands[indices[0]].domain.host or "")
            for index in indices:
                last = _guarded(self._begin, commands[index], node)
                # What one host's next command undoes must not be waited for after it.
                said[index] = clear_one(last) if len(indices) > 1 else last
                node = None

        def clear_one(begun: Outcome | _Begun) -> Outcome:
            return begun if isinstance(begun, Outcome) else _guarded(self._clear, begun, began)

        with ThreadPoolExecutor(self._settings.workers, "kubernetes") as pool:
            list(pool.map(begin, hosts.values()))
            return list(pool.map(clear_one, (said[index] for index in range(len(commands)))))

    def observe(self) -> View:
        """What the cluster says now; raises SchedulerError where it does not answer.

        A standing of ours that was there and is no more, with its command never released, was
        taken back by hand. Device taints follow their cards here, where a pool's list has changed.
        """
        at = self._clock()
        try:
            return self._seen(at)
        except ApiError as error:
            raise SchedulerError(str(error)) from error

    def _seen(self, at: datetime) -> View:
        nodes = {}
        for node in self._nodes.all():
            host = self._nodes.host_of(node)
            if host is not None:
                nodes[host] = node
        devices = self._devices.all()
        for words in self._devices.follow(devices):
            _LOG.warning("a device taint followed its card: %s", words)
        standing, context = [], []
        for host, node in sorted(nodes.items()):
            here, told = looks.of_node(node, host, at, self._settings)
            standing += here
            context += told
        hosts = {node["metadata"]["name"]: host for host, node in nodes.items()}
        standing += looks.of_rules(self._devices.rules())
        standing += looks.of_devices(devices, hosts)
        pods = {pod["metadata"]["uid"]: pod for pod in self._api.pages(path("pods"))}
        context += looks.allocations(pods.values(), hosts, at, self._settings)
        reboots = (self._memory.reboot(host, node, at) for host, node in sorted(nodes.items()))
        context += [one for one in reboots if one is not None]
        standing += self._memory.absent(nodes, standing, self._nodes.host)

        def epoch(domain: Domain) -> object:
            node = nodes.get(self._nodes.host(domain.host or ""))
            return None if node is None else node["metadata"]["uid"]

        return View(at, tuple(standing), tuple(context), epoch)

    def _read_ahead(self) -> dict[str, Json]:
        """Every node by its host; none where that fails: each command looks for itself then."""
        try:
            found = {self._nodes.host_of(node): node for node in self._nodes.all()}
        except ApiError:
            return {}
        return {host: node for host, node in found.items() if host is not None}

    def _begin(self, command: Command, node: Json | None) -> Outcome | _Begun:
        """Do all but move pods; what is left of it is returned."""
        try:
            if command.domain.host is None or command.domain.kind not in _PARTS:
                words = f"Kubernetes has nodes and GPUs, {command.domain.id} is neither"
                return Outcome(AckStatus.FAILED, words, retry=False)
            if command.action is Action.RELEASE:
                return self._release(command, node)
            begun = self._isolate(command, node or self._nodes.of(command.domain.host))
        except ApiError as error:
            words = str(error)
            if isinstance(error, MissingError):
                words = f"no node for host {command.domain.host}: {error}"
            return Outcome(AckStatus.FAILED, words, retry=error.retry)
        if isinstance(begun, _Begun) and command.level is Level.CORDON:
            return Outcome(AckStatus.DONE, begun.words, took=begun.took)
        return begun

    def _isolate(self, command: Command, node: Json) -> Outcome | _Begun:
        domain, name = command.domain, node["metadata"]["name"]
        why = ""
        if domain.kind in _CARDS and self._settings.gpu_as != GpuAs.NODE:
            found = self._devices.find(domain, name)
            if not isinstance(found, str):
                return self._isolate_devices(command, node, found)
            if self._settings.gpu_as == GpuAs.NEVER:
                words = f"not isolated: {found}, and no node may stand in (gpu_as = never)"
                return Outcome(AckStatus.FAILED, words, retry=False)
            why = f", for {domain.id}: {found}"
        elif domain.kind is not DomainKind.NODE:
            why = f", for {domain.id}"
        node, change = self._nodes.isolate(node, command)
        words = f"node {name}{why}: {change.words}"
        if change.by_hand:
            return Outcome(AckStatus.FAILED, words, retry=False)

        def force() -> None:
            self._nodes.force(node, command)

        return _Begun(command.level, words, lambda: on_node(self._api, name), force)

    def _isolate_devices(self, command: Command, node: Json, devices: tuple[Device, ...]) -> _Begun:
        now = self._clock()
        names = ", ".join(f"{one.pool}/{one.name}" for one in devices)
        changed = self._devices.taint(mark(command, now), devices)
        did = "tainted by DeviceTaintRule" if changed else "was tainted by this command before"
        words = f"device {names}: {did}"
        if failed := self._nodes.event(node, command, f"{words}; {command.reason}"):
            words += f" ({failed})"

        def force() -> None:
            self._devices.taint(mark(command, now, forced=True), devices)

        look = partial(self._devices.users, devices)
        return _Begun(command.level, words, look, force, command.domain.kind)

    def _clear(self, begun: _Begun, began: float) -> Outcome:
        """Move the pods as the level wants it, with its patience from ``began`` on."""
        words = begun.words
        evict = begun.level is Level.EVICT
        patience = self._settings.evict_patience_s if evict else self._settings.drain_patience_s
        try:
            cleared = clear(self._api, begun.look, began + patience, self.stop)
            if evict and cleared.held and not cleared.stopped:
                cleared, words = self._past_budget(cleared, begun)
        except ApiError as error:
            words = f"{words}; its pods were not all moved: {error}"
            return Outcome(AckStatus.FAILED, words, retry=error.retry)
        status = AckStatus.FAILED if cleared.held or cleared.stopped else AckStatus.DONE
        return Outcome(status, f"{words}; {cleared.words}", took=begun.took)

    def _past_budget(self, cleared: Cleared, begun: _Begun) -> tuple[Cleared, str]:
        """What is to be done with pods that are still held when `evict` runs out of patience."""
        words = begun.words
        match self._settings.past_budget:
            case PastBudget.LEAVE:
                return cleared, words
            case PastBudget.TAINT:
                begun.force()
                words += ", then NoExecute"
            case PastBudget.DELETE:
                delete(self._api, cleared.held)
                words += ", then deleted past their budgets"
        after = clear(self._api, begun.look, time.monotonic() + _AFTER_S, self.stop)
        after.gone += cleared.gone
        return after, words

    def _release(self, command: Command, node: Json | None) -> Outcome:
        domain = command.domain
        lifted = self._devices.lift(domain) if domain.kind in _CARDS else []
        words = [f"device {', '.join(lifted)}: taint lifted"] if lifted else []
        assert domain.host is not None
        try:
            node = node or self._nodes.of(domain.host)
        except MissingError:
            # Its label may be gone, and our cordon still there.
            node = self._nodes.marked(domain)
        if node is None:
            words.append(f"no node for host {domain.host} any more")
            return Outcome(AckStatus.DONE, "; ".join(words))
        node, change = self._nodes.release(node, command)
        if change.body is not None or not lifted:
            words.append(f"node {node['metadata']['name']}: {change.words}")
        elif failed := self._nodes.event(node, command, f"{words[0]}; {command.reason}"):
            words.append(failed)
        return Outcome(AckStatus.DONE, "; ".join(words))


def _guarded(act: Callable[..., _Done], *given: object) -> _Done | Outcome:
    """One command's fault must not take the outcomes of the others along."""
    try:
        return act(*given)
    except Exception as error:  # noqa: BLE001 (as the consumer does for one command)
        _LOG.exception("the adapter raised on one command of many")
        return Outcome(AckStatus.FAILED, f"adapter error: {type(error).__name__}: {error}")
