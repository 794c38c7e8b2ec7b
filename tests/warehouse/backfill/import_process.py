"""A program that stores 10,000 long records in several files and is killed before the last one."""

import os
import signal
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from evidence.records import KernelKind, KernelRecord
from warehouse.backfill.store import Store

COUNT = 10_000
NOW = datetime(2026, 9, 1, 12, tzinfo=UTC)
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)


def record(number: int) -> KernelRecord:
    """The n-th record, the same in every run."""
    return KernelRecord(
        id=f"{number:024x}",
        observed_at=NOW,
        at=BEGIN + timedelta(seconds=number),
        raw=f"NVRM: Xid (PCI:0000:17:00): 31, pid={number}" + "." * 4000,
        kind=KernelKind.XID,
        host="vk-07",
        code=31,
    )


def main() -> None:
    """Store all of them, or be killed on the way."""
    root, how = Path(sys.argv[1]), sys.argv[2]
    with Store(root, NOW + timedelta(days=int(sys.argv[3]))) as store:
        for number in range(COUNT):
            store.add(record(number))
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        store.flush()


if __name__ == "__main__":
    main()
