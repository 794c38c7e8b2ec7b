# ruff: noqa: T201 (it prints for the test that started it)
"""An agent's shipping alone, as a process: ship_agent.py BOOTSTRAP PREFIX STATE RATE TOTAL.

Two sources that forget what was read and keep only a cursor, as the kernel's ring does: lines for
the kernel topic and, every tenth, a frame of GPUs. RATE 0 is as fast as memory allows. Ends when
TOTAL records are in Kafka; prints one line of JSON a second.
"""

import json
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec import Struct

from collectors.shipping.shipper import Shipper
from collectors.source import Source
from evidence.records import GpuFrame, GpuSnapshot, GpuTick, KernelKind, KernelRecord
from evidence.transport import Kafka

AT = datetime(2026, 6, 1, tzinfo=UTC)
HOST = "h200-r2-n14"
RAW = "NVRM: Xid (PCI:0000:cd:00): 94, pid=3391, name=python3, Ch 00000012, errorString CTX SWITCH"


class Numbered:
    """A source of ``total`` records, ``rate`` a second; its cursor is a number in a file."""

    def __init__(self, topic: str, state: Path, rate: float, total: int) -> None:
        self.name = self.topic = topic
        self._cursor = state / f"{topic}.cursor"
        self.next = int(self._cursor.read_text()) if self._cursor.exists() else 0
        self._rate = rate
        self._total = total
        self._began = time.monotonic()
        self._first = self.next

    def read(self) -> Iterable[Struct]:
        until = self._total
        if self._rate:
            until = min(until, self._first + int((time.monotonic() - self._began) * self._rate))
        until = min(until, self.next + 200)
        found = [self._record(number) for number in range(self.next, until)]
        self.next = until
        return found

    def saved(self) -> None:
        fresh = self._cursor.with_suffix(".new")
        fresh.write_text(str(self.next))
        fresh.replace(self._cursor)

    def close(self) -> None:
        """Nothing is held."""

    def _record(self, number: int) -> Struct:
        at = AT + timedelta(milliseconds=2 * number)
        name = f"{self.topic}-{number}"
        if self.topic == "kernel":
            return KernelRecord(
                id=name, host=HOST, observed_at=at, raw=RAW, kind=KernelKind.XID, seq=number
            )
        gpus = tuple(GpuSnapshot(index=index, power_w=71.5 + index) for index in range(8))
        ticks = (GpuTick(at=at, gpus=gpus),)
        return GpuFrame(id=name, host=HOST, observed_at=at, seq=number, ticks=ticks)


def status(shipper: Shipper, began: float) -> dict[str, object]:
    memory = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
    rows, size = shipper.spooled
    return {
        "s": round(time.monotonic() - began, 2),
        "cpu_s": round(time.process_time(), 2),
        "rss_mb": int(memory) // 1024,
        "pending": shipper.pending,
        "spooled": rows,
        "spool_mb": round(size / 1e6, 1),
        "delivered": shipper.delivered.total(),
        "dropped": shipper.dropped,
        "connected": shipper.connected,
        "skew_s": shipper.clock_skew_s,
    }


def main() -> None:
    bootstrap, prefix, state, rate, total = sys.argv[1:]
    folder = Path(state)
    shipper = Shipper(Kafka(bootstrap, prefix), host=HOST, spool=folder / "spool.sqlite")
    lines = Numbered("kernel", folder, float(rate) * 0.9, int(total) * 9 // 10)
    frames = Numbered("gpu", folder, float(rate) * 0.1, int(total) // 10)
    sources = [Source(lines, HOST, patient=False), Source(frames, HOST, patient=False)]
    began = said = time.monotonic()
    while True:
        now = time.monotonic()
        if not shipper.crowded or float(rate):
            for source in sources:
                source.ship(shipper, now)
        else:
            for source in sources:
                source._save(now)
        everything = lines.next + frames.next == int(total)
        if now - said > 1 or (everything and not shipper.pending):
            said = now
            print(
                json.dumps(status(shipper, began) | {"read": lines.next + frames.next}), flush=True
            )
        if everything and not shipper.pending:
            break
        time.sleep(0.01 if float(rate) else 0.0005)
    shipper.close()
    for source in sources:
        source.finish(time.monotonic())


if __name__ == "__main__":
    main()
