"""Megabytes of mostly irrelevant logs that triage reads a second, beside grep and wc."""

import os
import resource
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import load_kernel
import load_nccl
from figure import Figure, cpu_rates
from rig import BenchError, Rig

from ringfence.triage import triage
from rules.tables import load

__all__ = ["measure"]

#: MB/s of one core.
MARK = 100
_MB = 1_000_000
#: What a person greps such logs for.
_WORDS = "NVRM|Xid|AER|oom|mce:|NCCL WARN|ProcessGroup|[Ee]rror|[Ff]ail|Traceback|timed out|SIG"
_XID = b"[ 99999.000000] NVRM: Xid (PCI:0000:3a:00): 79, GPU has fallen off the bus.\n"


def measure(rig: Rig) -> Iterator[Figure]:
    """Kernel logs, and training logs that say nothing, each beside what others take for them."""
    lines, copies, runs = (20_000, 2, 1) if rig.quick else (100_000, 6, 5)
    rules, now = load(), datetime.now(UTC)
    # A checkpoint that was saved is a record since it explains what waits for it: no noise.
    training = [line for line in load_nccl.noise(lines) if b"checkpoint" not in line]
    for name, made in (("kernel", load_kernel.noise(lines)), ("training", training)):
        folder = rig.folder / name
        size = _fill(folder, made, copies)

        def read(folder: Path = folder, size: int = size) -> int:
            if len(triage(folder, rules, now).verdicts) != 1:
                raise BenchError(f"Triage of {folder.name} logs did not find the one fault.")
            return size // _MB

        yield Figure(
            f"triage of {name} logs",
            "MB/s",
            cpu_rates(read, runs),
            MARK,
            peer=("grep -cE of a dozen words", max(_child_rates(_grep(folder), size, runs))),
            note="files recognised, lines found and parsed, one fault judged; a second of one core",
        )
        yield Figure(
            f"wc -l of the same {name} logs",
            "MB/s",
            _child_rates(["wc", "-l", *_files(folder)], size, runs),
            note="what only counting lines takes",
        )


def _fill(folder: Path, lines: list[bytes], copies: int) -> int:
    """Four hosts' logs of nothing, and one line that matters at the end of the last."""
    block = b"".join(line if line.endswith(b"\n") else line + b"\n" for line in lines)
    for number in range(4):
        file = folder / f"n{number}" / "a.log"
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as out:
            for _ in range(copies):
                out.write(block)
    kernel = folder / "n3" / "dmesg"
    kernel.write_bytes(_XID)
    return sum(Path(file).stat().st_size for file in _files(folder))


def _files(folder: Path) -> list[str]:
    return sorted(str(file) for file in folder.glob("*/*"))


def _grep(folder: Path) -> list[str]:
    return ["grep", "-cE", _WORDS, *_files(folder)]


def _child_rates(argv: list[str], size: int, runs: int) -> tuple[float, ...]:
    """MB a second of CPU time that a program needs for the same files."""

    def work() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, check=False, env=os.environ | {"LC_ALL": "C"}
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode > 1:
            raise BenchError(f"{argv[0]} failed.")
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return tuple(size / _MB / max(work(), 1e-3) for _ in range(runs))
