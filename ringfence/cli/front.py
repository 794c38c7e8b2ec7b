"""What every subcommand shares: settings, exit codes, and parts imported only when needed."""

import contextlib
import importlib
import math
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import click

from ringfence.settings import Settings, SettingsError, load

__all__ = [
    "BOOTSTRAP",
    "FAULT",
    "JSON",
    "TIME",
    "Bounded",
    "Front",
    "Time",
    "Unreadable",
    "build",
    "need",
    "one_sentence",
    "stop_event",
]

#: Exit codes: the thing asked about is bad; usage or unreadable input.
FAULT, UNREADABLE = 1, 2

BOOTSTRAP = click.option(
    "--bootstrap", metavar="HOST:PORT", help="Kafka brokers [RINGFENCE_KAFKA_BOOTSTRAP]."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class Bounded(click.FloatRange):
    """A number within bounds; not-a-number, which compares with none, is without."""

    def convert(
        self,
        value: object,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Check and return the number."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


class Time(click.ParamType):
    """A date or a time as ISO 8601 writes it, in UTC where it names no zone."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """Read the time."""
        if isinstance(value, datetime):
            return value
        try:
            at = datetime.fromisoformat(str(value))
            return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no time like 2026-03-02T05:41 or 2026-03-02", param, ctx)


#: A point in time.
TIME = Time()


class Unreadable(click.ClickException):
    """Usage or input that cannot be read: one sentence and exit code 2."""

    exit_code = UNREADABLE


def need(module: str, extra: str) -> ModuleType:
    """Import a part, or say which extra of the package brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in ("collectors", "ringfence", "rules"):
            raise
        raise Unreadable(
            f"{error.name} is not installed; this needs: pip install 'ringfence[{extra}]'",
        ) from error


@dataclass(frozen=True, slots=True)
class Front:
    """Where this call's settings come from."""

    file: Path | None
    data: Path | None

    def settings(self, **flags: dict[str, object]) -> Settings:
        """Settings with this call's flags, one mapping a section; Kafka's are checked."""
        try:
            settings = load(self.file, self.data, flags=flags)
            _ = settings.kafka
        except SettingsError as error:
            raise Unreadable(str(error)) from error
        return settings


def build(settings: Settings, config: Callable[..., Any], section: str, **given: object) -> Any:  # noqa: ANN401
    """One part's config from its section and this call's flags."""
    try:
        return settings.build(config, section, **given)  # type: ignore[arg-type]
    except SettingsError as error:
        raise Unreadable(str(error)) from error


def stop_event() -> threading.Event:
    """An event that SIGTERM and Ctrl-C set: the part then finishes what it holds and returns."""
    stop = threading.Event()

    def ask(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)
    return stop


@contextlib.contextmanager
def one_sentence(*errors: type[Exception]) -> Iterator[None]:
    """Turn a part's own errors into one sentence on stderr and exit code 2."""
    try:
        yield
    except errors as error:
        raise Unreadable(str(error)) from error
