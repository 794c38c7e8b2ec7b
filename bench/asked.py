"""One question to a history, asked in a process of its own: the first time, and again.

Arguments: ``timeline`` or ``growth``, root, GPU or -, time, how often. Prints seconds of the first
call (imports counted apart) and of each further one, CPU seconds and the most memory as JSON.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path


def _timeline(root: Path, gpu: str, at: datetime) -> Callable[[], object]:
    from warehouse.timeline import timeline  # noqa: PLC0415 (what it takes to import is measured)

    return lambda: timeline(root, gpu, at, timedelta(hours=1))


def _growth(root: Path, _gpu: str, at: datetime) -> Callable[[], object]:
    from warehouse.growth.report import assess  # noqa: PLC0415
    from warehouse.growth.settings import load  # noqa: PLC0415

    return lambda: assess(root, load(), since=None, until=at.date())


def main() -> None:
    """Ask and tell."""
    question, root, gpu, at, times = sys.argv[1:]
    began = time.monotonic()
    make = {"timeline": _timeline, "growth": _growth}[question]
    ask = make(Path(root), gpu, datetime.fromisoformat(at))
    import_s = time.monotonic() - began
    took, cores = [], []
    for _ in range(int(times)):
        began, cpu = time.monotonic(), time.process_time()
        ask()
        took.append(time.monotonic() - began)
        cores.append(time.process_time() - cpu)
    used = resource.getrusage(resource.RUSAGE_SELF)
    told = {
        "import_s": import_s,
        "took_s": took,
        "cpu_s": cores,
        "memory_mib": used.ru_maxrss / 1024,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
