"""Brokers for the integration tests: the embedded one, Apache Kafka, or the one in KAFKA_BOOTSTRAP.

Every fixture that yields an `evidence.transport.Kafka` has fresh topics under a prefix of its own.
"""

import contextlib
import importlib.util
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from evidence.transport import Kafka
from ringfence.cluster import ensure_topics
from ringfence.embedded import EmbeddedBroker

ROOT = Path(__file__).parents[2]
GIVEN = os.environ.get("KAFKA_BOOTSTRAP")
#: Set in CI: a broker that cannot be had is then a failure, not a skip.
REQUIRED = bool(os.environ.get("RINGFENCE_REQUIRE_KAFKA"))


def _module(path: Path) -> ModuleType:
    """A Python file that belongs to no package."""
    name = path.stem
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


def _start_apache(folder: Path) -> Any:
    """A started ApacheKafka; skips (in CI fails) with the reason where it cannot be had."""
    module = _module(ROOT / "deploy/kafka/local_kafka.py")
    try:
        return module.ApacheKafka(folder).start()
    except module.KafkaUnavailable as missing:
        if REQUIRED:
            raise
        pytest.skip(f"Apache Kafka left out: {missing}")


def _fresh(bootstrap: str, partitions: int = 4) -> Kafka:
    kafka = Kafka(bootstrap=bootstrap, prefix=f"t{uuid.uuid4().hex[:10]}.", partitions=partitions)
    ensure_topics(kafka)
    return kafka


@pytest.fixture(scope="session")
def embedded_broker() -> Iterator[EmbeddedBroker]:
    """One embedded broker for the whole session."""
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One Apache Kafka broker for the whole session (an ApacheKafka: not to be killed)."""
    broker = _start_apache(tmp_path_factory.mktemp("apache"))
    yield broker
    broker.stop()


@pytest.fixture
def own_apache_kafka(tmp_path: Path) -> Iterator[Any]:
    """An Apache Kafka broker of this test alone: ``kill()`` it, ``start()`` it on its storage."""
    broker = _start_apache(tmp_path / "apache")
    yield broker
    broker.stop()


@pytest.fixture
def kafka_cluster(tmp_path: Path) -> Iterator[Any]:
    """Three Apache Kafkas of this test alone that keep every topic three times (KafkaCluster)."""
    module = _module(ROOT / "deploy/kafka/local_kafka.py")
    try:
        cluster = module.KafkaCluster(tmp_path / "cluster").start()
    except module.KafkaUnavailable as missing:
        if REQUIRED:
            raise
        pytest.skip(f"Apache Kafka left out: {missing}")
    yield cluster
    cluster.stop()


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Callable[[Kafka], Any]]:
    """``installed(kafka)``: an Installation (installation.py), gone at the end of the test."""
    module = _module(Path(__file__).with_name("installation.py"))
    with contextlib.ExitStack() as held:
        yield lambda kafka: held.enter_context(module.Installation(kafka, tmp_path))


@pytest.fixture(scope="session")
def fresh_topics() -> Callable[..., Kafka]:
    """``fresh_topics(bootstrap, partitions=4)``: our topics under a new prefix at any broker."""
    return _fresh


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> Kafka:
    """Fresh topics on KAFKA_BOOTSTRAP if given, else on the embedded broker."""
    if GIVEN:
        return _fresh(GIVEN)
    return _fresh(request.getfixturevalue("embedded_broker").bootstrap)


@pytest.fixture(scope="module")
def module_kafka(request: pytest.FixtureRequest) -> Kafka:
    """Like ``kafka``, shared by the tests of one module."""
    if GIVEN:
        return _fresh(GIVEN)
    return _fresh(request.getfixturevalue("embedded_broker").bootstrap)


@pytest.fixture(
    params=["given"] if GIVEN else ["embedded", pytest.param("apache", marks=pytest.mark.kafka)]
)
def any_kafka(request: pytest.FixtureRequest) -> Kafka:
    """Fresh topics on each broker there is: the test runs once on each."""
    if request.param == "given":
        assert GIVEN is not None
        return _fresh(GIVEN)
    fixture = {"embedded": "embedded_broker", "apache": "apache_kafka"}[request.param]
    return _fresh(request.getfixturevalue(fixture).bootstrap)
