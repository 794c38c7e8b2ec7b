"""One Apache Kafka a module that may be killed and cut off, and the plant on it."""

import contextlib
import random
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evidence.transport import Kafka
from ringfence.cluster import ensure_topics
from ringfence.embedded import free_port

from ..integration.conftest import (  # noqa: TID252 (tests are not installed)
    REQUIRED,
    ROOT,
    _module,
    kafka_cluster,
)
from .disturbances import Round
from .ground import NotHereError, Wire
from .plant import Plant

__all__ = ["broker", "kafka_cluster", "planted", "round_of", "wire"]


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire | NotHereError]:
    """A network namespace and the way to it, or why there is none."""
    try:
        wire = Wire()
    except NotHereError as reason:
        yield reason
        return
    yield wire
    wire.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, wire: Wire | NotHereError) -> Iterator[Any]:
    """An Apache Kafka of this module alone: ``kill()`` it, ``start()`` it on its storage.

    It listens on the wire too, where there is one; ``wired`` is its address there.
    """
    settings = {"num.partitions": "1"}  # an empty one would not be kept
    broker = apache(tmp_path_factory.mktemp("apache"), settings=settings)
    if isinstance(wire, Wire):
        controller = broker.voter.partition("@")[2]
        clients = f"PLAINTEXT://{broker.bootstrap}"
        broker.wired = f"{wire.here}:{free_port(None)}"
        settings["listeners"] = f"{clients},CONTROLLER://{controller},WIRE://{broker.wired}"
        settings["advertised.listeners"] = f"{clients},WIRE://{broker.wired}"
        settings["listener.security.protocol.map"] = (
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,WIRE:PLAINTEXT"
        )
    broker.start()
    yield broker
    broker.stop()


def apache(folder: Path, **named: Any) -> Any:
    """An ApacheKafka, not started; skips (in CI fails) with the reason where it cannot be had."""
    module = _module(ROOT / "deploy/kafka/local_kafka.py")
    try:
        module.class_path()
    except module.KafkaUnavailable as missing:
        if REQUIRED:
            raise
        pytest.skip(f"Apache Kafka left out: {missing}")
    return module.ApacheKafka(folder, **named)


@pytest.fixture
def planted(tmp_path: Path) -> Iterator[Callable[..., Plant]]:
    """``planted(bootstrap, seed=...)``: a Plant on fresh topics, gone at the end of the test."""
    with contextlib.ExitStack() as held:

        def make(bootstrap: str, *, replication: int = 1, **named: Any) -> Plant:
            kafka = Kafka(
                bootstrap=bootstrap,
                prefix=f"c{uuid.uuid4().hex[:10]}.",
                partitions=4,
                replication=replication,
            )
            ensure_topics(kafka)
            return held.enter_context(Plant(kafka, tmp_path, **named))

        yield make


@pytest.fixture
def round_of(
    broker: Any, wire: Wire | NotHereError, planted: Callable[..., Plant]
) -> Iterator[Callable[..., Round]]:
    """``round_of(seed, ...)``: a Round on the module's broker; more goes to the Plant."""
    with contextlib.ExitStack() as held:

        def make(seed: int, **named: Any) -> Round:
            plant = planted(broker.bootstrap, seed=seed, **named)
            return Round(plant, broker, wire, random.Random(seed), held)

        yield make
