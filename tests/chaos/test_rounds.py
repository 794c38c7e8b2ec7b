"""Chaos: whatever happens to workers, broker, network, disk and clock, the commands are the same.

A round feeds a hundred faults and their records to the shipped stages while something breaks,
and compares what came out with what the same records give undisturbed: the same commands, none
twice, none lost, each carried out once; the same localized verdicts; every message in the history
once.
"""

import os
import time
from collections.abc import Callable

import pytest

from .disturbances import DISTURBANCES, Round

pytestmark = [
    pytest.mark.integration,
    pytest.mark.kafka,
    pytest.mark.chaos,
    pytest.mark.timeout(400),
]

#: ``make chaos ROUNDS=...``; two of each kind.
ROUNDS = int(os.environ.get("CHAOS_ROUNDS") or 2 * len(DISTURBANCES))
NAMES = tuple(DISTURBANCES)


def play(
    one: Round, name: str, record: Callable[[str, object], None], *, sink: bool = True
) -> None:
    """One round; what was measured goes to ``record``."""
    acts = DISTURBANCES[name](one)
    next(acts)
    plant = one.plant
    if sink:
        plant.here.start_sink()
    plant.here.start_scheduler()
    plant.ready(*(part.name for part in plant.workers.parts))
    plant.feed()
    plant.wait_for_part(1 / 3)
    harmed = time.time()
    next(acts, None)
    plant.finish()
    plant.check(carried_out_again=one.schedulers_killed)
    told = plant.told()
    figures = {
        "commands": len(told),
        "silence_s": round(plant.silence_s(), 1),
        "slowest_s": round(plant.slowest_s(), 1),
        "back_s": round(plant.back_s(harmed), 1),
        "isolation_moves": plant.moves("isolation"),
        "restarts": sum(part.restarts for part in plant.workers.parts),
    }
    for key, value in figures.items():
        record(key, value)
    print(f"{name}: {figures}")  # noqa: T201 (pytest -s and -rP show it)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_round_ends_with_the_commands_of_an_undisturbed_run(
    round_of: Callable[..., Round],
    record_property: Callable[[str, object], None],
    number: int,
) -> None:
    name = NAMES[number % len(NAMES)]
    record_property("disturbance", name)
    one = round_of(number, every_s=0.2, standby=number % 2)
    play(one, name, record_property)


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("one_worker_cut_off_past_its_session", 139),
        ("clock_stepped", 20),  # the only worker's: an hour on, and back
    ],
)
def test_a_short_round_ends_with_the_commands_of_an_undisturbed_run(
    round_of: Callable[..., Round],
    record_property: Callable[[str, object], None],
    name: str,
    seed: int,
) -> None:
    one = round_of(seed, every_s=0.1, count=70)
    play(one, name, record_property, sink=False)
