"""The worker itself over TLS and SASL: start check, Faust, tables and what is read back."""

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from evidence.transport import Kafka


def _sibling(name: str) -> ModuleType:
    """A module of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_ship = _sibling("test_ship_secure")
crew_module = _sibling("worker_crew")
pytestmark = [*_ship.pytestmark, pytest.mark.timeout(240)]
secure = _ship.secure


@pytest.fixture
def crew(secure: Kafka, tmp_path: Path) -> Iterator[Any]:
    scram = replace(secure, sasl_mechanism="SCRAM-SHA-256")
    made = crew_module.Crew(scram, tmp_path, "store=rocksdb")
    yield made
    made.close()


def test_a_worker_turns_records_into_commands_over_sasl_ssl_and_resumes(crew: Any) -> None:
    crew.start("a")
    crew.send(2)
    crew.until(lambda: len(crew.told()) >= sum(crew.sent.values()))
    crew.leave("a")

    crew.start("a")
    crew.send()

    crew.check(within_s=120)


def test_a_worker_with_a_wrong_password_ends_with_one_sentence(secure: Kafka, crew: Any) -> None:
    crew.kafka = replace(secure, sasl_mechanism="SCRAM-SHA-256", sasl_password="forgotten")

    crew.start("a")

    assert crew.processes["a"].wait(60) == 3
    last = crew.log("a").splitlines()[-1]
    assert secure.bootstrap in last
    assert "Traceback" not in crew.log("a")
    assert "forgotten" not in crew.log("a")
