"""How long a sweep over a simulated fabric takes, beside the usual tool.

The fabric is ibsim with a real opensm; it has no wires, so these are the costs of asking and not
those of switches that answer slowly.
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from figure import Figure
from rig import BenchError, Rig

__all__ = ["measure"]

#: A sweep of 512 adapter ports (24 switches, 1280 connected ends).
SWEEP_MARK_MS = 500

ROOT = Path(__file__).parents[1]
SIMULATOR = ROOT / "tests" / "fabric" / "simulator.py"
SWEEPER = ROOT / "tests" / "fabric" / "sweep_process.py"


def measure(rig: Rig) -> Iterator[Figure]:
    """Three figures; the peers are the tools of infiniband-diags, as whole commands."""
    simulator = _simulator()
    missing = simulator.missing()
    if missing is not None:
        raise BenchError(missing)
    size = (
        {"spines": 2, "leaves": 2, "hosts": 2, "cards": 2, "ports": 8}
        if rig.quick
        else {"spines": 8, "leaves": 16, "hosts": 4, "cards": 8, "ports": 40}
    )
    tree = simulator.Tree(**size)
    cards = tree.leaves * tree.hosts * tree.cards
    ends = 2 * (cards + tree.leaves * tree.spines)
    first, later, quiet, tools = [], [], [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        simulator.Simulator(tree, Path(folder) / "fabric") as fabric,
    ):
        for _ in range(1 if rig.quick else 5):
            tools.append(_timed(fabric, "ibqueryerrors"))
            took, sizes = _sweeps(fabric, 4)
            first.append(took[0])
            later += took[1:]
            quiet += sizes[1:]
    fabric_of = f"{cards} adapter ports, {tree.leaves + tree.spines} switches"
    yield Figure(
        f"sweep over {ends} connected ends",
        "ms",
        tuple(later),
        None if rig.quick else SWEEP_MARK_MS,
        at_most=True,
        peer=("ibqueryerrors, whole command", sorted(tools)[len(tools) // 2]),
        note=f"{fabric_of}; states and all counters, records made",
    )
    yield Figure(
        "first sweep, with the walk over the topology",
        "ms",
        tuple(first),
        at_most=True,
        peer=("ibqueryerrors, whole command", sorted(tools)[len(tools) // 2]),
        note=f"{fabric_of}; every process starts so",
    )
    yield Figure(
        "records of a later sweep",
        "kB",
        tuple(quiet),
        at_most=True,
        note="JSON before compression; some nodes' turn to tell all their ports is among it",
    )


def _simulator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fabric_simulator", SIMULATOR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _timed(fabric: Any, *command: str) -> float:  # noqa: ANN401 (its module has no package)
    """Milliseconds of a whole command."""
    began = time.perf_counter()
    fabric.run(*command, within_s=60)
    return (time.perf_counter() - began) * 1000


def _sweeps(fabric: Any, count: int) -> tuple[list[float], list[float]]:  # noqa: ANN401
    """Milliseconds and kB of each of ``count`` sweeps in a process of their own."""
    done = subprocess.run(
        [sys.executable, SWEEPER],
        cwd=fabric.folder,
        env=fabric.environment | {"PYTHONPATH": str(ROOT)},
        input="\n" * count,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode != 0:
        raise BenchError(f"the sweeping process failed: {done.stderr.strip()[-300:]}")
    took = [json.loads(line)["took_s"] * 1000 for line in done.stderr.splitlines()]
    sizes = [len(records) / 1000 for records in done.stdout.split("\n\n") if records]
    return took, sizes
