"""Questions to a year of 1,024 GPUs: one GPU's hour, and the growth of the whole fleet.

Each is asked in a process of its own, so that nothing is warm but the file system's cache, and then
again in the same process. The samples are 300 seconds apart.
"""

import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from figure import Figure
from made_year import Fleet, hours, make
from rig import Rig

__all__ = ["measure"]

_STEP_S = 300
_WITHIN_S = 600.0


def measure(rig: Rig) -> Iterator[Figure]:
    """Five figures; the files go with the bench's folder."""
    fleet = Fleet(
        gpus=16 if rig.quick else 1024,
        days=30 if rig.quick else 365,
        step_s=_STEP_S,
        end=date(2026, 4, 1),
    )
    root = rig.folder / "year"
    began = time.monotonic()
    rows = make(root, fleet)
    size = sum(path.stat().st_size for path in root.rglob("*.parquet"))
    rig.say(f"made {rows:,} rows, {size >> 20} MiB, in {time.monotonic() - began:.0f} s")
    note = f"{fleet.gpus:,} GPUs, {fleet.days} days, a sample each {_STEP_S} s: {rows:,} rows"
    yield from _hour(rig, root, fleet, note)
    yield from _fleet(rig, root, fleet, note)


def _hour(rig: Rig, root: Path, fleet: Fleet, note: str) -> Iterator[Figure]:
    answers = [
        _ask(rig, "timeline", root, fleet.uuids[(37 * number) % fleet.gpus], when, 6)
        for number, when in enumerate([next(hours(fleet))] if rig.quick else hours(fleet))
    ]
    first = tuple(1000 * one["took_s"][0] for one in answers)
    again = tuple(1000 * min(one["took_s"][1:]) for one in answers)
    start = tuple(1000 * (one["took_s"][0] + one["import_s"]) for one in answers)
    cores = tuple(1000 * one["cpu_s"][0] for one in answers)
    memory = tuple(one["memory_mib"] for one in answers)
    yield Figure("a GPU's hour, first in a process", "ms", first, 200, at_most=True, note=note)
    yield Figure("the same, with loading the libraries", "ms", start, at_most=True)
    yield Figure("the same, asked again", "ms", again, 200, at_most=True)
    yield Figure("the same, first, in core-milliseconds", "ms", cores, at_most=True)
    yield Figure("memory for it", "MiB", memory, 2048, at_most=True)


def _fleet(rig: Rig, root: Path, fleet: Fleet, note: str) -> Iterator[Figure]:
    end = datetime.combine(fleet.end, datetime.min.time(), UTC)
    answers = [_ask(rig, "growth", root, "-", end, 2) for _ in range(1 if rig.quick else 2)]
    first = tuple(one["took_s"][0] for one in answers)
    again = tuple(one["took_s"][1] for one in answers)
    cores = tuple(one["cpu_s"][0] for one in answers)
    memory = tuple(one["memory_mib"] for one in answers)
    yield Figure(
        "ECC growth of the fleet, first in a process", "s", first, 5, at_most=True, note=note
    )
    yield Figure("the same, asked again", "s", again, 5, at_most=True)
    yield Figure("the same, core-seconds", "s", cores, at_most=True)
    yield Figure("memory for it", "MiB", memory, 2048, at_most=True)


def _ask(
    rig: Rig, question: str, root: Path, gpu: str, when: datetime, times: int
) -> dict[str, Any]:
    command = rig.script("asked.py", question, root, gpu, when.isoformat(), times)
    said = rig.start(command, question).wait(_WITHIN_S).splitlines()[-1]
    found: dict[str, Any] = json.loads(said)
    took = ", ".join(f"{1000 * one:.0f}" for one in found["took_s"])
    rig.say(f"{question}: {took} ms, {found['memory_mib']:.0f} MiB")
    return found


if __name__ == "__main__":
    with Rig(quick="--quick" in sys.argv) as one:
        for figure in measure(one):
            print(figure.name, [round(value, 1) for value in figure.values], figure.unit)
