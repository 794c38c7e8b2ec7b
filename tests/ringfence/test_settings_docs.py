"""Every flag and every setting stands in docs/settings.md."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from collectors.agent import AgentConfig
from collectors.fabric.agent import FabricAgentConfig
from evidence.transport import Kafka
from ringfence.cli import main
from ringfence.drills.config import DrillConfig
from schedulers.consumer import SchedulerConfig
from schedulers.kubernetes.config import KubernetesConfig
from schedulers.slurm import SlurmConfig
from schedulers.torchrun import TorchrunConfig
from streams.config import WorkerConfig
from warehouse.sink import SinkConfig

TEXT = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
CONFIGS = {
    "kafka": Kafka,
    "agent": AgentConfig,
    "fabric_agent": FabricAgentConfig,
    "worker": WorkerConfig,
    "sink": SinkConfig,
    "scheduler": SchedulerConfig,
    "slurm": SlurmConfig,
    "kubernetes": KubernetesConfig,
    "drill": DrillConfig,
    "torchrun": TorchrunConfig,
}


def section(name: str) -> str:
    return TEXT.split(f"## [{name}]", 1)[1].split("\n## ", 1)[0]


@pytest.mark.parametrize("name", CONFIGS)
def test_every_setting_is_in_the_docs_and_none_that_is_not(name: str) -> None:
    config: Any = CONFIGS[name]
    names = {one.name for one in dataclasses.fields(config)} - {"kafka"}
    cells = [line.split("|")[1] for line in section(name).splitlines() if line.startswith("| `")]
    told = {word.strip(" `") for cell in cells for word in cell.split(",")}
    assert told == names


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


def test_every_flag_of_every_command_is_in_the_docs() -> None:
    missing = [
        f"{name} {option}"
        for name, command in (*commands(main), ("ringfence", main))
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option.startswith("--") and f"`{option}" not in TEXT
    ]
    assert missing == []


def test_every_command_is_in_the_readme_or_the_settings() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert [name for name, _ in commands(main) if name not in readme + TEXT] == []
