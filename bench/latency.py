"""Last-evidence-to-command latency through Apache Kafka while a fleet's traffic goes by.

A fault is injected as its agent would send it; the clock runs from that send to the command in a
consumer's hands. Every command is answered by an ack, so that the outbox empties as in life.
"""

import json
import time
from collections.abc import Iterator

from figure import Figure, quantile
from rig import BenchError, Child, Rig
from watch import POLICY, Watch, hard, settled

from evidence.transport import Kafka
from rules.tables import Rules, load

__all__ = ["measure"]

MARK_MS = {"p50": 50.0, "p99": 200.0}
#: What a fault that waits may take beyond what it waits for.
MARK_SETTLED_MS = 200.0
RATE = 2000
#: A worker that never saw the fleet writes a state for each node at first: that is not measured.
#: The faults then last longer than the minute or so in which each node's state is noted again.
_WARM_S = 15.0
_PARTS = (("p99", 0.99), ("p50", 0.5))


def measure(rig: Rig) -> Iterator[Figure]:
    """Hard facts, and facts that wait: within their host alone, and for other hosts as shipped."""
    faults, slow_faults = (8, 8) if rig.quick else (300, 100)
    rules = load()
    host_s, across_s = rules.thresholds.settle_s, _settles_across(rules)
    kafka = rig.kafka()
    worker, background = _start(rig, kafka, 0.0)
    watch = Watch(kafka)
    try:
        time.sleep(1.0 if rig.quick else _WARM_S)
        cpu, began = worker.cpu_s(), time.monotonic()
        at_once = watch.inject(faults, hard)
        hops = watch.hops(slow_faults)
        waited = watch.inject(slow_faults, settled)
        busy = (worker.cpu_s() - cpu) / (time.monotonic() - began)
    finally:
        watch.close()
        background.stop()
        worker.stop()
    sent = json.loads(background.text().splitlines()[-1])
    rate = sent["sent"] / sent["took_s"]
    note = f"{faults} faults at {rate:,.0f} messages/s; the worker took {busy:.2f} cores"
    for name, part in _PARTS:
        yield Figure(
            f"Xid 79 to its command, {name}",
            "ms",
            (quantile(at_once, part),),
            MARK_MS[name],
            at_most=True,
            peer=("one record from a producer to a consumer", quantile(hops, part)),
            note=note + f"; largest {max(at_once):.0f} ms",
        )
    yield from _beyond("within its host", waited, host_s, MARK_SETTLED_MS)
    if not rig.quick:
        shipped = _as_shipped(rig, slow_faults, across_s)
        yield from _beyond("and for other hosts, as shipped", shipped, host_s + across_s, None)


def _settles_across(rules: Rules) -> float:
    return rules.policy.settle_s


def _beyond(whom: str, took: list[float], settle_s: float, mark: float | None) -> Iterator[Figure]:
    """What commands took beyond the time that their faults wait."""
    waited = [one - settle_s * 1000 for one in took]
    for name, part in _PARTS:
        yield Figure(
            f"Xid 48 beside ECC growth to its command less {settle_s:g} s to settle {whom}, {name}",
            "ms",
            (quantile(waited, part),),
            MARK_SETTLED_MS if mark is None else mark,
            at_most=True,
            note=f"{len(waited)} faults; a tick comes when the wait is over",
        )


def _as_shipped(rig: Rig, faults: int, settle_s: float) -> list[float]:
    """Milliseconds of faults that wait for other hosts too; they come close together."""
    kafka = rig.kafka()
    worker, background = _start(rig, kafka, settle_s)
    watch = Watch(kafka)
    try:
        time.sleep(_WARM_S)
        return watch.inject(faults, settled)
    finally:
        watch.close()
        background.stop()
        worker.stop()


def _start(rig: Rig, kafka: Kafka, settle_s: float) -> tuple[Child, Child]:
    """A worker, ready, and the traffic."""
    name = f"latency-{settle_s:g}"
    policy = rig.folder / f"{name}.toml"
    policy.write_text(POLICY.format(settle_s=settle_s), encoding="utf-8")
    parts = rig.parts(kafka, name, f'[worker]\npolicy = "{policy}"\nmetrics_listen = ""\n')
    worker = rig.start(parts.worker(), "worker")
    worker.says("worker ready")
    program = rig.script("background.py", kafka.bootstrap, kafka.prefix, RATE)
    background = rig.start(program, "background")
    if not background.alive:
        raise BenchError(f"The traffic ended: {background.tail()}")
    return worker, background
