"""A process beside the sink that rewrites closed days and takes old ones out.

It is one of its own, so that sorting a day neither slows the sink nor shares its memory; it may be
killed at any time.
"""

import logging
import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from warehouse.compaction import Compaction, compact
from warehouse.errors import WarehouseError
from warehouse.retention import retain

__all__ = ["beside", "once"]

_LOG = logging.getLogger(__name__)

_EVERY_S = 600.0
_LOOK_S = 1.0


def once(root: Path, how: Compaction, keep_days: Mapping[str, int]) -> None:
    """One round; what goes wrong is logged, and the next round tries again."""
    try:
        for _ in compact(root, how):
            pass
        retain(root, keep_days, how)
    except (WarehouseError, OSError) as error:
        _LOG.error("cannot rewrite closed days: %s", error)


def _run(
    root: Path, how: Compaction, keep_days: Mapping[str, int], parent: int, level: int
) -> None:
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    os.nice(10)
    due = 0.0
    while os.getppid() == parent:
        if time.monotonic() >= due:
            once(root, how, keep_days)
            due = time.monotonic() + _EVERY_S
        time.sleep(_LOOK_S)


@contextmanager
def beside(root: Path, how: Compaction, keep_days: Mapping[str, int]) -> Iterator[None]:
    """Run rounds every ten minutes in a child process until the block ends.

    The child ends with its parent, however that ends.
    """
    arguments = (root, how, dict(keep_days), os.getpid(), logging.getLogger().level)
    child = multiprocessing.get_context("spawn").Process(target=_run, args=arguments, daemon=True)
    child.start()
    try:
        yield
    finally:
        child.terminate()
        child.join(timeout=10)
