"""kill -9 of a worker: how long until commands come again, with the settings that are shipped."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from .plant import Plant

pytestmark = [
    pytest.mark.integration,
    pytest.mark.kafka,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]


@pytest.mark.parametrize(
    ("way", "standby"),
    [
        ("started again", 0),
        ("taken over", 0),
        ("taken over", 1),
    ],
)
def test_after_kill_9_of_a_worker_every_command_comes(
    broker: Any,
    planted: Callable[..., Plant],
    record_property: Callable[[str, object], None],
    way: str,
    standby: int,
) -> None:
    plant = planted(broker.bootstrap, seed=5 + standby, count=150, standby=standby)
    names = ["a"] if way == "started again" else ["a", "b"]
    for name in names:
        plant.worker(name)
    plant.here.start_scheduler()
    plant.ready(*names)
    plant.feed()
    plant.wait_for_part(1 / 4)
    if way == "taken over":
        plant.keep_away("a")
    killed = time.time()
    plant.signal("a")
    plant.finish()

    plant.check()
    figures = {
        "commands": len(plant.told()),
        "silence_s": round(plant.silence_s(), 1),
        "slowest_s": round(plant.slowest_s(), 1),
        "back_s": round(plant.back_s(killed), 1),
    }
    for key, value in figures.items():
        record_property(key, value)
    print(f"kill -9, {way}, {standby} standbys: {figures}")  # noqa: T201 (pytest -rP shows it)
