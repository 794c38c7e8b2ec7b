import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from ringfence.cli import main

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
DOCKERFILE = (ROOT / "deploy/docker/Dockerfile").read_text()
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = sorted(name for name, service in SERVICES.items() if "build" in service)


def test_our_parts_and_kafka_are_there() -> None:
    assert sorted(SERVICES) == ["agent", "kafka", "scheduler", "sink", "worker"]
    assert OURS == ["agent", "scheduler", "sink", "worker"]


@pytest.mark.parametrize("name", OURS)
def test_each_command_is_one_that_ringfence_has(name: str) -> None:
    command = SERVICES[name]["command"]
    ours = command[: command.index("--")] if "--" in command else command
    # With --help the command line is parsed (an unknown flag is an error) and nothing is run.
    result = CliRunner().invoke(main, [*ours, "--help"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("name", OURS)
def test_each_part_waits_for_kafka_and_is_checked(name: str) -> None:
    service = SERVICES[name]
    assert service["depends_on"] == {"kafka": {"condition": "service_healthy"}}
    assert service["healthcheck"]["test"][:3] == ["CMD", "python", "-m"]
    assert service["restart"] == "unless-stopped"


def test_every_named_volume_is_declared_and_used() -> None:
    used = {
        volume.partition(":")[0]
        for service in SERVICES.values()
        for volume in service.get("volumes", [])
        if not volume.startswith(("/", "."))
    }
    assert used == set(COMPOSE["volumes"])


def test_ports_are_published_on_loopback_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports == ["127.0.0.1:9092:9092"]


def test_kafka_is_the_version_that_the_tests_run() -> None:
    space = {"m": "http://maven.apache.org/POM/4.0.0"}
    pom = ET.parse(ROOT / "deploy/kafka/pom.xml").getroot()
    version = pom.findtext("m:properties/m:kafka.version", namespaces=space)
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{version}"


def test_every_image_is_pinned() -> None:
    images = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert len(set(images)) == 1
    for image in [*images, SERVICES["kafka"]["image"]]:
        assert re.search(r":\d+\.\d+\.\d+", image), image


def test_the_image_gets_every_package_that_is_listed() -> None:
    copied = set(re.findall(r"^COPY (\w+) \1$", DOCKERFILE, re.MULTILINE))
    let_in = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")
    }
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert copied == packages
    assert packages <= let_in


def test_docker_compose_accepts_it() -> None:
    docker = shutil.which("docker")
    if (
        docker is None
        or subprocess.run(
            [docker, "compose", "version"], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("docker compose is not on this machine")
    result = subprocess.run(
        [docker, "compose", "--profile", "node", "config", "--quiet"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
