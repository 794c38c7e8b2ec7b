"""What a worker does with its local tables: believes them, throws them away, or ends."""

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from kafka import KafkaAdminClient

from evidence.transport import Kafka

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.timeout(180)]


def _sibling(name: str) -> ModuleType:
    """A module of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


crew_module = _sibling("worker_crew")
HOSTS = crew_module.HOSTS
TABLES = "rocksdb"


@pytest.fixture
def crew(apache_kafka: Any, fresh_topics: Callable[..., Kafka], tmp_path: Path) -> Iterator[Any]:
    made = crew_module.Crew(fresh_topics(apache_kafka.bootstrap), tmp_path, "store=rocksdb")
    yield made
    made.close()


def counted(crew: Any, rounds: int) -> None:
    crew.send(rounds)
    crew.until(lambda: len(crew.told()) >= sum(crew.sent.values()))


def fill(ballast: Path) -> None:
    """Write until the disk is full."""
    with ballast.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 12)):
            pass


def test_damaged_tables_are_told_of_and_read_anew(crew: Any) -> None:
    crew.start("a")
    counted(crew, 2)
    crew.kill("a")
    for file in (crew.folder / "a" / TABLES).rglob("MANIFEST-*"):
        file.write_bytes(file.read_bytes()[:-40] + b"\x00" * 40)

    crew.start("a")
    counted(crew, 2)

    crew.check()
    assert "its local tables were removed" in crew.log("a")


@pytest.mark.slow
def test_tables_of_an_older_moment_are_brought_up_to_date(crew: Any) -> None:
    crew.start("a")
    counted(crew, 2)
    crew.leave("a")
    shutil.copytree(crew.folder / "a", crew.folder / "copy")
    crew.start("a")
    counted(crew, 3)
    crew.leave("a")

    shutil.rmtree(crew.folder / "a")
    (crew.folder / "copy").rename(crew.folder / "a")
    crew.start("a")
    counted(crew, 1)

    crew.check()


def test_a_changelog_made_anew_is_not_mixed_with_the_tables_of_the_old_one(crew: Any) -> None:
    crew.start("a")
    counted(crew, 1)
    crew.leave("a")
    admin = KafkaAdminClient(**crew.kafka.client())
    admin.delete_topics([f"{crew.kafka.prefix}worker-tally-changelog"])
    admin.close()

    crew.start("a")
    crew.send()
    crew.until(lambda: len(crew.commands) >= 2 * len(HOSTS))

    # Nothing is known of the hosts any more: they begin at one.
    assert {one.reason for one in crew.verdicts} == {f"{host} 1" for host in HOSTS}
    assert "of another cluster, topic or release" in crew.log("a")


@pytest.mark.slow
def test_two_workers_on_one_folder_is_one_sentence(crew: Any) -> None:
    crew.start("a")
    counted(crew, 1)
    ended = subprocess.run(
        crew.command("a"),
        cwd=crew_module.ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=crew_module.environment(crew.kafka),
    )

    assert ended.returncode == 3
    last = ended.stderr.strip().splitlines()[-1]
    assert "is in use by another worker: give each worker a state_dir of its own." in last
    crew.check()


def test_a_full_state_folder_ends_the_worker_with_one_sentence_and_costs_no_command(
    crew: Any,
) -> None:
    folder = crew.folder / "a"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        crew.start("a")
        counted(crew, 1)
        ballast = folder / "ballast"
        with pytest.raises(OSError, match="No space left"):
            fill(ballast)
        crew.keep_sending()
        assert crew.processes["a"].wait(60) == 3
        assert "cannot be written" in crew.log("a").splitlines()[-1]
        assert "No space left" in crew.log("a").splitlines()[-1]
        crew.start("a")
        assert crew.processes["a"].wait(60) == 3  # as long as there is no room
        ballast.unlink()
        crew.start("a")
        crew.check()
        crew.leave("a")
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_partition_count_changed_while_it_runs_ends_the_worker_with_one_sentence(
    apache_kafka: Any, fresh_topics: Callable[..., Kafka], tmp_path: Path
) -> None:
    kafka = fresh_topics(apache_kafka.bootstrap, 2)
    crew = crew_module.Crew(kafka, tmp_path, "store=rocksdb", "metadata_s=1")
    try:
        crew.start("a")
        counted(crew, 1)
        admin = KafkaAdminClient(**kafka.client())
        admin.create_partitions({kafka.topic("kernel"): 3})
        admin.close()

        assert crew.processes["a"].wait(60) == 3
        assert crew.log("a").splitlines()[-1] == (
            f"The worker stopped: Topic {kafka.topic('kernel')} had 2 partitions at the start and "
            "has 3 now: changing the partition count is a migration"
        )
        crew.start("a")
        assert crew.processes["a"].wait(60) == 3
        assert "must have equal partition counts" in crew.log("a").splitlines()[-1]
    finally:
        crew.close()


def test_cluster_topics_with_several_partitions_are_one_sentence(
    apache_kafka: Any, tmp_path: Path
) -> None:
    kafka = Kafka(bootstrap=apache_kafka.bootstrap, prefix=f"{tmp_path.name[:20]}.", partitions=2)
    admin = KafkaAdminClient(**kafka.client())
    for name in ("kernel", "gpu", "suspicions", "context", "inventory", "verdicts"):
        admin.create_topics({kafka.topic(name): {"num_partitions": 2, "replication_factor": 1}})
    admin.close()
    where = [kafka.bootstrap, kafka.prefix, "2", str(tmp_path)]
    ended = subprocess.run(
        [sys.executable, str(crew_module.PROCESS), *where],
        cwd=crew_module.ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=crew_module.environment(kafka),
    )

    assert ended.returncode == 3
    assert ended.stderr.strip().splitlines()[-1] == (
        f"Topic {kafka.topic('verdicts')} must have 1 partition and has 2: "
        "what concerns the whole cluster is decided in one place."
    )
