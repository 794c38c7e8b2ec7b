"""Which tests share a process, and which begin first, where several run at once: ``pytest -n 4``.

Brokers and clusters of a session are started once per process, on free ports and in folders of
their own. A file stays in one process, and some files stay together.
"""

from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

_HERE = Path(__file__).parent

#: What may only run one after the other, or is dear to start, by the beginning of its path.
_TOGETHER = {
    "tests/integration/test_kmsg": "kernel-ring",  # the machine has one
    "tests/schedulers/slurm/": "slurm",
    "tests/schedulers/kubernetes/": "kubernetes",
}
#: Files that take long and whose tests share nothing: these are dealt out test by test.
_APART = tuple(
    f"tests/integration/test_{name}.py::"
    for name in ("chaos", "deadletters", "sink", "topics", "up", "worker", "worker_crew")
)
#: What waits longest begins first, so that no process is left alone with it in the end; what only
#: computes comes last.
_FIRST = ("schedulers", "integration", "chaos", "collectors", "fabric", "warehouse")
_LAST = ("ringfence", "evidence", "rules")


class Scheduling(LoadScopeScheduling):  # type: ignore[misc] # xdist is not typed
    """Deals out files, in the order of collection, but for the exceptions above."""

    def _split_scope(self, nodeid: str) -> str:
        for beginning, name in _TOGETHER.items():
            if nodeid.startswith(beginning):
                return name
        return nodeid if nodeid.startswith(_APART) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    """Ours, unless another one is asked for by --dist.

    Not the marker ``xdist_group``: xdist 3.8 keeps it in a field that pytest 9.2 no longer reads.
    """
    if config.getoption("dist") != "load":
        return None
    config.option.loadscopereorder = False
    return Scheduling(config, log)


def _place(item: pytest.Item) -> int:
    folder = item.path.relative_to(_HERE).parts[0]
    if folder in _FIRST:
        return _FIRST.index(folder)
    return len(_FIRST) + (1 + _LAST.index(folder) if folder in _LAST else 0)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # one of several processes
        items.sort(key=_place)
