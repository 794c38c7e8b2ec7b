"""Several workers of one group that come, go, are killed and stand still, on Apache Kafka.

Every round must end with the commands of an undisturbed run: verdict K of a host says how many
records the host had had, so that a lost one shows as a number missing, and a state that went back
as a number given twice.
"""

import importlib.util
import random
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from evidence.transport import Kafka

pytestmark = [
    pytest.mark.integration,
    pytest.mark.kafka,
    pytest.mark.chaos,
    pytest.mark.timeout(300),
]


def _sibling(name: str) -> ModuleType:
    """A module of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


crew_module = _sibling("worker_crew")
Crew = crew_module.Crew
HOSTS = crew_module.HOSTS


@pytest.fixture
def made(
    apache_kafka: Any, fresh_topics: Callable[..., Kafka], tmp_path: Path
) -> Iterator[Callable[..., Any]]:
    crews: list[Any] = []

    def make(*settings: str, hosts: Sequence[str] = HOSTS) -> Any:
        kafka = fresh_topics(apache_kafka.bootstrap)
        crews.append(Crew(kafka, tmp_path, *settings, hosts=hosts))
        return crews[-1]

    yield make
    for crew in crews:
        crew.close()


def test_workers_join_and_leave_and_roll_and_every_record_is_counted_once(
    made: Callable[..., Any],
) -> None:
    crew = made("store=rocksdb", "standby_replicas=1")
    crew.start("a")
    crew.send(2)
    crew.until(lambda: len(crew.told()) >= 2 * len(HOSTS))
    crew.keep_sending()

    crew.start("b")
    time.sleep(3)
    for name in ("a", "b"):  # a rolling restart
        crew.leave(name)
        crew.start(name)
        time.sleep(2)
    crew.leave("a")
    time.sleep(1)

    crew.check()


@pytest.mark.slow
def test_a_worker_killed_between_two_others_costs_no_record(made: Callable[..., Any]) -> None:
    crew = made("store=rocksdb", "standby_replicas=1")
    crew.start("a")
    crew.start("b", "outputs-acknowledged:40")
    crew.keep_sending()
    crew.until(lambda: crew.processes["b"].poll() is not None)
    crew.start("b", "state-kept:30")
    crew.until(lambda: crew.processes["b"].poll() is not None)
    crew.start("b")
    crew.kill("a")

    crew.check()


def test_a_worker_that_stood_still_past_its_session_does_not_write_over_the_next_ones_state(
    made: Callable[..., Any],
) -> None:
    crew = made("store=rocksdb")
    crew.start("a", "outputs-acknowledged:3:stop")
    crew.keep_sending()
    crew.until(lambda: "T" in state_of(crew.processes["a"].pid))
    crew.start("b")
    before = len(crew.told())
    crew.until(lambda: len(crew.told()) > before + 20 * len(HOSTS))

    crew.signal("a", signal.SIGCONT)
    crew.until(lambda: crew.processes["a"].poll() is not None)
    assert "stood still" in crew.log("a")
    crew.kill("b")
    crew.start("c")  # reads what both wrote

    crew.check()


def test_a_standby_has_every_key_when_it_takes_over(made: Callable[..., Any]) -> None:
    """More keys than fit into any queue between Kafka and the copy."""
    hosts = [f"many-{number:04}" for number in range(2400)]
    crew = made("store=memory", "standby_replicas=1", "buffer_size=64", hosts=hosts)
    crew.start("a")
    crew.send()
    crew.until(lambda: len(crew.told()) >= len(hosts))
    crew.start("b")
    crew.until(lambda: len(keys_restored(crew, "b")) >= 2)
    time.sleep(2)

    crew.kill("a")
    crew.send()

    crew.check()
    assert sum(keys_restored(crew, "b")[-2:]) == len(hosts) + 1


def keys_restored(crew: Any, name: str) -> list[int]:
    """How many keys a worker had after each recovery of each stage."""
    found = re.findall(r"stage: (\d+) keys in", crew.log(name))
    return [int(number) for number in found]


def state_of(pid: int) -> str:
    """The letter of a process: T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_faults_ends_with_the_commands_of_an_undisturbed_run(
    made: Callable[..., Any], seed: int
) -> None:
    chance = random.Random(seed)
    crew = made("store=rocksdb", f"standby_replicas={seed % 2}")
    names = ["a", "b", "c"]
    for name in names:
        crew.start(name)
    crew.keep_sending(0.1)
    for _ in range(12):
        name = chance.choice(names)
        match chance.choice(["kill", "kill", "leave", "stop", "rest"]):
            case "kill":
                crew.kill(name)
                time.sleep(chance.choice([0, 0, 3]))
                crew.start(name)
            case "leave":
                crew.signal(name, signal.SIGTERM)
                crew.processes[name].wait(30)
                crew.start(name)
            case "stop":
                crew.signal(name, signal.SIGSTOP)
                time.sleep(chance.choice([1, 9]))
                crew.signal(name, signal.SIGCONT)
            case "rest":
                time.sleep(2)
        crew.read()
        time.sleep(chance.uniform(0, 4))
        for one in names:
            if crew.processes[one].poll() is not None:
                crew.start(one)

    crew.check(within_s=120)
