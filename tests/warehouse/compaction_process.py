"""Rewriting as a process of its own: ``compaction_process.py ROOT NOW_S KEEP_DAYS [POINT]``.

It kills itself at that point. With KEEP_DAYS above 0 it takes kernel days out that are older.
"""

import os
import signal
import sys
from pathlib import Path

from warehouse.compaction import Compaction, compact
from warehouse.retention import retain


def main() -> None:
    root, now_s, keep_days, *deadly = sys.argv[1:]

    def at_point(point: str) -> None:
        if point in deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    how = Compaction(memory_mib=256)
    for _ in compact(Path(root), how, now_s=float(now_s), at_point=at_point, kinds=("kernel",)):
        pass
    if int(keep_days):
        keep = {"kernel": int(keep_days)}
        retain(Path(root), keep, how, now_s=float(now_s), at_point=at_point)


if __name__ == "__main__":
    main()
