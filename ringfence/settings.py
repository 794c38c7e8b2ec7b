"""Settings of one process: defaults, a TOML file, ``RINGFENCE_*`` variables and flags, in order.

Read once at the front door and passed down as frozen dataclasses; no part imports this module.
"""

import dataclasses
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, cast

import msgspec

from evidence.transport import Kafka, TransportError

__all__ = ["Settings", "SettingsError", "check_bootstrap", "load"]

_Config = TypeVar("_Config")

#: Sections of the file, and so the middle of a variable: RINGFENCE_KAFKA_BOOTSTRAP. None
#: begins with another one's name and an underscore.
SECTIONS = (
    "kafka",
    "agent",
    "fabric_agent",
    "worker",
    "sink",
    "scheduler",
    "slurm",
    "kubernetes",
    "torchrun",
    "drill",
)


# `kafka-1:9092`, `10.1.2.3:9092`, `[fd00::12]:9093`
_BROKER = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:\[\],/]+)(?::(?P<port>\d{1,5}))")
_LAST_PORT = 65_535


class SettingsError(ValueError):
    """A setting is wrong; the message names where it was read from."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Merged settings: one mapping a section, and the folder everything of ours lives under."""

    data: Path
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def kafka(self) -> Kafka:
        """The cluster every part speaks to; raises SettingsError like `build`."""
        kafka = self.build(Kafka, "kafka")
        check_bootstrap(kafka.bootstrap)
        try:
            kafka.check()
        except TransportError as error:
            raise SettingsError(f"[kafka] {error}") from error
        return kafka

    @property
    def warehouse(self) -> Path:
        """Root of the Parquet files."""
        return Path(self.sections.get("sink", {}).get("root", self.data / "warehouse"))

    def build(self, config: type[_Config], section: str, **given: object) -> _Config:
        """Build one part's frozen config from its section; ``given`` wins unless it is None.

        Raises SettingsError for an unknown name or a value of the wrong type.
        """
        names = {one.name for one in dataclasses.fields(cast("Any", config))}
        values = dict(self.sections.get(section, {}))
        unknown = sorted(set(values) - names)
        if unknown:
            raise SettingsError(
                f"[{section}] has no setting {unknown[0]!r}; it has {', '.join(sorted(names))}",
            )
        values |= {name: value for name, value in given.items() if value is not None}
        try:
            return msgspec.convert(values, config, strict=False, dec_hook=_decode)
        except msgspec.ValidationError as error:
            raise SettingsError(f"[{section}] {error}") from error


def check_bootstrap(brokers: str) -> None:
    """Raise SettingsError where a list of brokers is not HOST:PORT with commas between."""
    for broker in brokers.split(","):
        found = _BROKER.fullmatch(broker.strip())
        if found is None or not 0 < int(found["port"]) <= _LAST_PORT:
            raise SettingsError(f"[kafka] bootstrap: {broker!r} is not HOST:PORT")


def load(
    file: Path | None,
    data: Path | None,
    environ: Mapping[str, str] = os.environ,
    flags: Mapping[str, Mapping[str, object]] = MappingProxyType({}),
) -> Settings:
    """Merge the file, the environment and the flags (one mapping a section) into Settings.

    Raises SettingsError when the file cannot be read, is not TOML, or has an unknown section.
    """
    sections: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    content = _read(file)
    written = content.pop("data", None)
    root = data or environ.get("RINGFENCE_DATA") or written or "ringfence-data"
    for name, values in content.items():
        if name not in sections or not isinstance(values, dict):
            raise SettingsError(f"{file}: unknown section [{name}]; known: {', '.join(SECTIONS)}")
        sections[name] |= values
    for variable, value in environ.items():
        rest = variable.lower()
        for section, settings in sections.items():
            key = rest.removeprefix(f"ringfence_{section}_")
            if key not in ("", rest):
                settings[key] = value
    for name, given in flags.items():
        sections[name] |= {key: value for key, value in given.items() if value is not None}
    return Settings(data=Path(root), sections=sections)


def _read(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{file}: {error}") from error


def _decode(kind: type, value: object) -> object:
    if kind is Path:
        return Path(str(value)).expanduser()
    raise NotImplementedError(kind)
