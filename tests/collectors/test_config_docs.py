"""The defaults that docs/settings.md tells of the agents are those that they have."""

import dataclasses
import re
from pathlib import Path

import pytest

from collectors.config import AgentConfig
from collectors.fabric.agent import FabricAgentConfig

TEXT = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()


def written(value: object) -> str:
    """A default as the table says it."""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int) and value >= 1 << 20:
        return f"{value >> 20} MiB"
    return f"{value:g}" if isinstance(value, int | float) else f"`{value}`"


@pytest.mark.parametrize(
    ("section", "config"), [("agent", AgentConfig), ("fabric_agent", FabricAgentConfig)]
)
def test_every_plain_default_stands_in_the_table(section: str, config: type) -> None:
    table = TEXT.partition(f"## [{section}]")[2].partition("\n## ")[0]
    told: dict[str, str] = {}
    for names, defaults in re.findall(r"^\| (`[^|]+`) \| ([^|]*)\|", table, re.MULTILINE):
        found = re.findall(r"`(\w+)`", names)
        told |= dict(zip(found, defaults.strip().split(", "), strict=False))
    plain = {
        one.name: written(one.default)
        for one in dataclasses.fields(config)
        if isinstance(one.default, bool | int | float | str) and one.default != ""
    }
    plain.pop("port", None)  # 0 stands for the first that is active
    assert {name: told.get(name) for name in plain} == plain
