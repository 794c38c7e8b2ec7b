"""Ten times the rated load, and a backlog of frames: how long evidence waits, and what is left.

The worker is the real one; its traffic is made beforehand (`flood.py`), or the producer would be
what is measured.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Event, Thread

from figure import Figure, quantile
from gauge import Gauge, free_port
from rig import BenchError, Child, Rig
from watch import POLICY, Watch, hard

from evidence.transport import Kafka

__all__ = ["measure"]

RATED = 2000
BURST = 10 * RATED
#: A hard fact behind a minute of frames.
MARK_BACKLOG_MS = 2000.0
MARK_LOADED_MS = 1000.0
_WITHIN_S = 300.0


@dataclass(slots=True)
class _Watched:
    """A worker and what was seen of it from outside, twice a second."""

    worker: Child
    gauge: Gauge
    rss_mib: list[float] = field(default_factory=list)
    #: (seconds, messages taken, messages left)
    seen: list[tuple[float, float, float]] = field(default_factory=list)
    _stop: Event = field(default_factory=Event)
    _thread: Thread | None = None

    def begin(self) -> None:
        """Look on until `end`."""
        self._stop.clear()
        self._thread = Thread(target=self._look, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Look no more."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.5):
            try:
                read = self.gauge.read()
            except BenchError:
                continue
            taken = read["ringfence_stage_taken_total"] - read["ringfence_stage_ticks_total"]
            self.seen.append((time.monotonic(), taken, read["ringfence_stage_lag_messages"]))
            self.rss_mib.append(self.gauge.rss_mib())

    def taken(self, messages: int) -> None:
        """Wait until the worker, fresh at `begin`, has taken so many messages, ticks left out."""
        deadline = time.monotonic() + _WITHIN_S
        while not self.seen or self.seen[-1][1] < messages:
            if time.monotonic() > deadline:
                raise BenchError(f"The burst was not worked off in {_WITHIN_S:.0f} s.")
            time.sleep(0.2)


def measure(rig: Rig) -> Iterator[Figure]:
    """A backlog of frames, a burst of everything, and a steady load near the maximum."""
    yield from _backlog(rig)
    yield from _burst(rig)


def _backlog(rig: Rig) -> Iterator[Figure]:
    """Xids that come while frames wait."""
    frames, faults = (400, 4) if rig.quick else (60_000, 40)
    kafka = rig.kafka()
    rig.say(f"sending a backlog of {frames} GPU frames")
    rig.start(_flood(rig, kafka, 0, frames, "frames"), "flood").wait(_WITHIN_S)
    watched = _worker(rig, kafka, "backlog")
    watch = Watch(kafka)
    watched.begin()
    try:
        watch.inject(1, hard)  # the worker has begun
        took = watch.inject(faults, hard, 0.3, grace_s=120)
        taken, left = watched.seen[-1][1:] if watched.seen else (0.0, 0.0)
    finally:
        watched.end()
        watch.close()
        watched.worker.stop()
    note = (
        f"{faults} Xids within {0.3 * faults:.0f} s; at the last command {taken:,.0f} messages "
        f"were taken and {left:,.0f} waited; the worker's memory was at most "
        f"{max(watched.rss_mib):.0f} MiB"
    )
    for name, part in (("largest", 1.0), ("p50", 0.5)):
        yield Figure(
            f"Xid 79 to its command while {frames:,} GPU frames wait, {name}",
            "ms",
            (quantile(took, part),),
            MARK_BACKLOG_MS,
            at_most=True,
            note=note,
        )


def _burst(rig: Rig) -> Iterator[Figure]:
    """Ten times the rated load for half a minute, then 80 % of what the worker could take."""
    lasting_s = 2.0 if rig.quick else 30.0
    kafka = rig.kafka()
    watched = _worker(rig, kafka, "burst")
    flood = rig.start(_flood(rig, kafka, BURST, lasting_s), "flood")
    flood.says("ready")
    watch = Watch(kafka)
    watched.begin()
    try:
        cpu, began = watched.worker.cpu_s(), time.monotonic()
        took = watch.inject(2 if rig.quick else 20, hard, lasting_s / 20, grace_s=_WITHIN_S)
        sent = json.loads(flood.wait(_WITHIN_S).splitlines()[-1])
        watched.taken(sent["sent"])
        through_s = time.monotonic() - began
        busy_s = watched.worker.cpu_s() - cpu
        # Messages a second while there was always something left to take.
        most = sent["sent"] / through_s
        loaded = _loaded(rig, kafka, watch, 0.8 * most)
    finally:
        watched.end()
        watch.close()
        watched.worker.stop()
    left = max(one[2] for one in watched.seen)
    yield Figure(
        "messages of a mixed burst worked off, wall clock",
        "messages/s",
        (most,),
        note=f"{sent['sent']:,} sent in {sent['took_s']:.0f} s ({sent['cpu_s']:.0f} producer core "
        f"seconds), worked off in {through_s:.0f} s ({busy_s:.0f} worker core seconds); at most "
        f"{left:,.0f} waited; the worker's memory rose from {watched.rss_mib[0]:.0f} to "
        f"{max(watched.rss_mib):.0f} MiB",
    )
    yield Figure(
        "the same, a worker-core second",
        "messages/s",
        (sent["sent"] / max(busy_s, 0.01),),
        note=f"rated are {RATED:,} a second for 1,000 nodes",
    )
    yield Figure(
        "Xid 79 to its command in the burst, largest",
        "ms",
        (max(took),),
        at_most=True,
        note=f"{len(took)} faults, each behind the lines of its own partition; p50 "
        f"{quantile(took, 0.5):,.0f} ms",
    )
    for name, part in (("p99", 0.99), ("p50", 0.5)):
        yield Figure(
            f"Xid 79 to its command at 80 % of that rate, {name}",
            "ms",
            (quantile(loaded, part),),
            MARK_LOADED_MS if name == "p99" else None,
            at_most=True,
            note=f"{len(loaded)} faults at {0.8 * most:,.0f} messages/s",
        )


def _loaded(rig: Rig, kafka: Kafka, watch: Watch, rate: float) -> list[float]:
    """Faults under a steady load."""
    faults = 4 if rig.quick else 100
    lasting_s = faults * 0.25 + (2 if rig.quick else 10)
    flood = rig.start(_flood(rig, kafka, rate, lasting_s), "flood")
    flood.says("ready")
    time.sleep(1.0 if rig.quick else 5.0)
    took = watch.inject(faults, hard, grace_s=60)
    flood.stop()
    return took


def _flood(rig: Rig, kafka: Kafka, *what: object) -> tuple[str, ...]:
    return rig.script("flood.py", kafka.bootstrap, kafka.prefix, *what)


def _worker(rig: Rig, kafka: Kafka, name: str) -> _Watched:
    policy = rig.folder / f"{name}.toml"
    policy.write_text(POLICY.format(settle_s=0), encoding="utf-8")
    port = free_port()
    settings = f'[worker]\npolicy = "{policy}"\nmetrics_listen = "127.0.0.1:{port}"\n'
    worker = rig.start(rig.parts(kafka, name, settings).worker(), "worker")
    worker.says("worker ready")
    return _Watched(worker, Gauge(worker, port))
