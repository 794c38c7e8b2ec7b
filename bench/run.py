"""``make bench``: measures the parts on this machine and says how they stand to their marks.

``--only NAME`` (several times) measures some groups, ``--quick`` less of everything (its numbers
say only that the bench works), ``--json FILE`` writes all of it as data. A missed mark is no
failure of the run: it exits 0 when everything was measured, 1 when something could not be, 2 on a
wrong flag.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import agent
import burst
import codec
import day
import fabric
import history
import kernel
import latency
import machine
import nccl
import sink
import soak
import steps
import storage
import storm
import stream
import triage
from figure import Figure
from rich.console import Console
from rich.table import Table
from rig import BenchError, Rig

__all__ = ["FIGURES", "main"]

#: The groups of figures in the order in which they are measured.
FIGURES: Mapping[str, Callable[[Rig], Iterator[Figure]]] = {
    "kernel": kernel.measure,
    "nccl": nccl.measure,
    "codec": codec.measure,
    "fabric": fabric.measure,
    "agent": agent.measure,
    "steps": steps.measure,
    "day": day.measure,
    "stream": stream.measure,
    "sink": sink.measure,
    "storage": storage.measure,
    "history": history.measure,
    "triage": triage.measure,
    "latency": latency.measure,
    "burst": burst.measure,
    "soak": soak.measure,
    "storm": storm.measure,
}


def main(arguments: list[str] | None = None) -> int:
    """Measure what was asked for, print a table, and write the JSON file."""
    parser = argparse.ArgumentParser(description="Measure Ringfence on this machine.")
    parser.add_argument("--only", action="append", choices=FIGURES, help="group to measure")
    parser.add_argument("--quick", action="store_true", help="a short run that proves nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _leave)
    measured_on = machine.describe()
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(machine.sentence(measured_on), highlight=False)
    groups, failed = [], []
    with Rig(quick=given.quick) as rig:
        for name in given.only or FIGURES:
            try:
                groups.append(_group(name, rig))
            except BenchError as error:
                failed.append({"group": name, "reason": str(error)})
            else:
                console.print(_table(groups[-1]))
    for one in failed:
        console.print(f"{one['group']} was not measured: {one['reason']}", highlight=False)
    if given.quick:
        console.print("A quick run: these numbers are not to be quoted.")
    if given.json is not None:
        found = {"machine": measured_on, "quick": given.quick, "groups": groups, "failed": failed}
        given.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 1 if failed else 0


def _leave(number: int, _frame: FrameType | None) -> None:
    """End as Ctrl-C does, so that the broker, the parts and the folders go too."""
    raise SystemExit(128 + number)


def _group(name: str, rig: Rig) -> dict[str, Any]:
    """One group's figures, how long they took, and what others took of the machine meanwhile."""
    rig.say(f"measuring {name}")
    others, began = machine.Others(), time.monotonic()
    figures = [figure.as_json() for figure in FIGURES[name](rig)]
    took_s = round(time.monotonic() - began, 1)
    return {
        "name": name,
        "took_s": took_s,
        "cores_of_others": round(others.cores(), 2),
        "figures": figures,
    }


def _table(group: dict[str, Any]) -> Table:
    others = group["cores_of_others"]
    title = f"{group['name']} ({group['took_s']} s; others kept {others} cores busy)"
    table = Table(title=title, title_justify="left", expand=False)
    for column in ("figure", "median", "best", "unit", "mark", "", "beside", "ratio"):
        number = column in ("median", "best", "mark", "ratio")
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    for one in group["figures"]:
        peer = one["peer"]
        sign = "<=" if one["at_most"] else ">="
        table.add_row(
            f"{one['name']}\n[dim]{one['note']}[/]" if one["note"] else one["name"],
            _number(one["median"]),
            _number(one["best"]),
            one["unit"],
            "" if one["mark"] is None else f"{sign} {_number(one['mark'])}",
            {"ok": "[green]ok[/]", "missed": "[red]missed[/]"}.get(one["judgement"], ""),
            "" if peer is None else f"{peer['name']}: {_number(peer['value'])}",
            "" if one["ratio_to_peer"] is None else f"{one['ratio_to_peer']:.2f}",
        )
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
