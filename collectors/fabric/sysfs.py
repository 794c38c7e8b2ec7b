"""The node's own side of the fabric: its RDMA adapters, InfiniBand and RoCE, from sysfs.

A read of sysfs waits for the adapter's firmware: each adapter has a thread of its own, and one
that does not answer is a fact, not a wait. Counters are never cleared.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec.structs import replace

from collectors.collector import Unavailable
from collectors.deadline import Answer, Caller
from collectors.fabric.sysfs_read import Adapter, States, port_numbers, read_adapter, read_states
from evidence.identity import digest
from evidence.records import FabricPort, FabricRecord

__all__ = ["SysfsFabricCollector"]

#: While a read is under way it is asked for at these distances: soon first, later if it hangs.
_SOONEST_S, _LATEST_S = 0.01, 1.0


class SysfsFabricCollector:
    """Every adapter once in ``interval_s``, and at once when a port's state or rate changes.

    States are looked at every ``look_s``. A read that has not returned within ``deadline_s``
    makes one record whose ports say so in ``unread``; the thread is left alone until it returns.
    An adapter that was there and is gone makes a record with ``missing``.
    """

    name = "fabric-sysfs"
    topic = "fabric"

    def __init__(
        self,
        host: str,
        clock: Callable[[], datetime],
        *,
        sysfs: Path = Path("/sys"),
        subnet: str = "default",
        interval_s: float = 10.0,
        look_s: float = 2.0,
        deadline_s: float = 5.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = sysfs / "class" / "infiniband"
        self._monotonic = monotonic
        self._list_at = 0.0
        self._adapters: dict[str, _Watched] = {}
        self._terms = _Terms(
            self._folder, host, subnet, clock, monotonic, interval_s, look_s, deadline_s
        )

    @property
    def settled(self) -> bool:
        """Whether every adapter that is known has been read once, or is known to hang."""
        return all(one.settled for one in self._adapters.values())

    def read(self) -> list[FabricRecord]:
        """Return what the adapters' threads have read since the last call.

        Raises Unavailable when there is no adapter.
        """
        now = self._monotonic()
        found: list[FabricRecord] = []
        if now >= self._list_at:
            self._list_at = now + self._terms.look_s
            found += self._list()
        for one in self._adapters.values():
            found += one.poll(now)
        if not self._adapters and not found:
            raise Unavailable(f"no InfiniBand adapters under {self._folder}")
        return found

    def next_due(self, now: float) -> float:
        """When to read next, in monotonic seconds."""
        return min([self._list_at, *(one.next_due(now) for one in self._adapters.values())])

    def saved(self) -> None:
        """Nothing to keep: a sweep that is lost is followed by the next."""

    def close(self) -> None:
        """Let the threads end; one that hangs in the kernel ends with the process."""
        for one in self._adapters.values():
            one.close()

    def _list(self) -> list[FabricRecord]:
        try:
            present = {one.name for one in self._folder.iterdir()}
        except OSError:
            present = set()
        gone = [self._adapters.pop(name) for name in sorted(set(self._adapters) - present)]
        for name in sorted(present - set(self._adapters)):
            self._adapters[name] = _Watched(name, self._terms)
        for one in gone:
            one.close()
        return [one.gone() for one in gone]


@dataclass(frozen=True, slots=True)
class _Terms:
    """How and when every adapter is read."""

    folder: Path
    host: str
    subnet: str
    clock: Callable[[], datetime]
    monotonic: Callable[[], float]
    interval_s: float
    look_s: float
    deadline_s: float


class _Watched:
    """One adapter: its thread, when it is read next, and what was read last."""

    def __init__(self, device: str, terms: _Terms) -> None:
        self._device, self._terms = device, terms
        self._folder = terms.folder / device
        self._caller: Caller[tuple[Adapter | States, float]] = Caller(
            f"{SysfsFabricCollector.name}-{device}", terms.monotonic
        )
        self._sweep_at = self._look_at = 0.0
        self._started: datetime | None = None
        self._hangs = False
        self._sweep = 0
        self._last: Adapter | None = None
        self.settled = False

    def poll(self, now: float) -> list[FabricRecord]:
        """Take what was read, and start the next read if it is due."""
        found = []
        answer = self._caller.answer() if self._caller.busy else None
        if answer is not None:
            self._hangs = False
            found += self._take(answer, now)
        if self._caller.busy:
            if not self._hangs and now - self._caller.started_at > self._terms.deadline_s:
                self._hangs = self.settled = True
                found.append(self._hung())
            return found
        if now >= self._sweep_at:
            self._sweep_at, self._look_at = now + self._terms.interval_s, now + self._terms.look_s
            self._start(lambda: read_adapter(self._folder))
        elif now >= self._look_at:
            self._look_at = now + self._terms.look_s
            self._start(lambda: read_states(self._folder))
        return found

    def next_due(self, now: float) -> float:
        """When to poll next."""
        if self._caller.busy:
            return now + min(_LATEST_S, max(_SOONEST_S, now - self._caller.started_at))
        return min(self._sweep_at, self._look_at)

    def gone(self) -> FabricRecord:
        """The record of an adapter that is not there any more."""
        return self._record((), self._terms.clock(), missing=True)

    def close(self) -> None:
        """Let the thread end."""
        self._caller.close()

    def _start(self, read: Callable[[], Adapter | States]) -> None:
        def timed() -> tuple[Adapter | States, float]:
            began = time.monotonic()
            return read(), time.monotonic() - began

        self._started = self._terms.clock()
        self._caller.start(timed)

    def _take(
        self, answer: Answer[tuple[Adapter | States, float]], now: float
    ) -> list[FabricRecord]:
        at = self._started or self._terms.clock()
        if answer.value is None:
            self.settled = True
            if not self._folder.exists():
                return []  # the next listing will say so
            return [self._silent(f"{type(answer.error).__name__}: {answer.error}", at)]
        read, took_s = answer.value
        if not isinstance(read, Adapter):
            if self._last is not None and read != self._last.states:
                self._sweep_at = now
            return []
        ports = tuple(self._marked(port) for port in read.ports)
        self._last, self.settled = read, True
        return [self._record(ports, at, sweep_ms=round(took_s * 1000))]

    def _marked(self, port: FabricPort) -> FabricPort:
        """A port with ``reset`` if a counter of it fell since the last read."""
        known = self._last.ports if self._last else ()
        before = next((one for one in known if one.port == port.port), None)
        if before is None:
            return port
        fell = any(value < before.counters.get(name, 0) for name, value in port.counters.items())
        return replace(port, reset=True) if fell else port

    def _hung(self) -> FabricRecord:
        seconds = f"{self._terms.deadline_s:g} s"
        return self._silent(f"a read of sysfs has not returned for {seconds}", self._terms.clock())

    def _silent(self, reason: str, at: datetime) -> FabricRecord:
        """A record that says of each port why nothing is known of it."""
        try:
            known = port_numbers(self._folder)
        except OSError:
            known = []
        ports = tuple(FabricPort(port=port, unread={"port": reason}) for port in known or [1])
        return self._record(ports, at)

    def _record(
        self,
        ports: tuple[FabricPort, ...],
        at: datetime,
        *,
        sweep_ms: int | None = None,
        missing: bool = False,
    ) -> FabricRecord:
        self._sweep += 1
        record = FabricRecord(
            id="",
            observed_at=self._terms.clock(),
            subnet=self._terms.subnet,
            guid=(self._last.guid if self._last else "")
            or f"device:{self._terms.host}/{self._device}",
            name=self._last.name if self._last else None,
            kind="hca",
            host=self._terms.host,
            device=self._device,
            at=at,
            source="sysfs",
            sweep=self._sweep,
            sweep_ms=sweep_ms,
            missing=missing,
            ports=ports,
        )
        said = replace(record, observed_at=datetime(1, 1, 1, tzinfo=UTC), sweep_ms=None)
        return replace(record, id=digest("fabric", msgspec.json.encode(said).decode()))
