"""A drill as its TOML file defines it: what is broken and how, what must follow, who may be hit.

Every list of words may name ``{host}``, ``{short}`` (the host up to its first dot), ``{pool}``,
``{id}`` (of this run) and the file's own ``[values]``.
"""

import string
import tomllib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from evidence.decisions import Cause, DomainKind, Status

__all__ = [
    "Action",
    "DrillError",
    "Expect",
    "Expected",
    "Guard",
    "Inject",
    "Plan",
    "Recovery",
    "load",
    "with_limit",
]

_OWN = ("host", "short", "pool", "id")
_NAME_MOST = 64


class DrillError(Exception):
    """A drill cannot be run; the message is one sentence."""


class Action(StrEnum):
    """How the fault is made."""

    KILL_RANK = "kill-rank"
    STOP_AGENT = "stop-agent"
    LOSE_GPU = "lose-gpu"
    CUT_LINK = "cut-link"
    PROGRAM = "program"


class Inject(Struct, frozen=True, forbid_unknown_fields=True):
    """The fault. Which fields an action takes, `ringfence.drills.lines` says.

    A process is named by ``pid_file``, ``pattern`` (the newest whose command line matches this
    extended regular expression) or ``unit`` (systemd's); a card by ``pci`` and ``kernel_log``, or
    by ``slot`` and ``nvml_control``; a link by ``node``, ``port`` and ``console``.
    """

    action: Action
    pid_file: str | None = None
    pattern: str | None = None
    unit: str | None = None
    pci: str | None = None
    kernel_log: str | None = None
    slot: int | None = None
    nvml_control: str | None = None
    console: str | None = None
    node: str | None = None
    port: int | str | None = None
    inject: tuple[str, ...] = ()
    undo: tuple[str, ...] = ()


class Expected(StrEnum):
    """What command a drill must lead to."""

    ISOLATE = "isolate"
    DRY_RUN = "dry-run"
    NONE = "none"


class Expect(Struct, frozen=True, forbid_unknown_fields=True):
    """What must follow: a verdict of one of these kinds, and a command or none.

    Where no command is expected, none may come for ``quiet_s`` after the verdict.
    """

    status: tuple[Status, ...]
    cause: tuple[str, ...] = ()
    domain: tuple[DomainKind, ...] = ()
    command: Expected = Expected.NONE
    quiet_s: float = 15.0

    def __str__(self) -> str:
        parts = ("/".join(one) for one in (self.status, self.cause, self.domain) if one)
        return f"{' '.join(parts)}, {'no command' if self.command == 'none' else self.command}"


class Recovery(Struct, frozen=True, forbid_unknown_fields=True):
    """How this machine sees that the part is out, and that the job trains again.

    ``out`` and ``training`` are programs that exit 0 when it is so; training is also seen by
    ``training_file``, whose content must have become another ``training_changes`` times.
    ``release`` says whether the drill asks for the part's release at its end, ``settle_s`` after
    the fault was undone.
    """

    out: tuple[str, ...] = ()
    training: tuple[str, ...] = ()
    training_file: str | None = None
    training_changes: int = 2
    release: bool = True
    settle_s: float = 5.0


class Guard(Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs, and owners of jobs, that may run on the host: they are the drill's own."""

    owners: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()


class Plan(Struct, frozen=True, forbid_unknown_fields=True):
    """One drill. ``via`` is what runs a shell's command line where the fault is made."""

    name: str
    inject: Inject
    expect: Expect
    what: str = ""
    via: tuple[str, ...] = ("sh", "-c")
    within_s: float = 300.0
    recovery: Recovery = Recovery()
    guard: Guard = Guard()
    values: dict[str, str] = {}


def load(name: str, folder: Path, given: Mapping[str, str]) -> Plan:
    """Read a drill by its file, or by its name in ``folder``; ``given`` wins over its values.

    Raises DrillError where there is none, or where it is wrong.
    """
    path = Path(name) if "/" in name or name.endswith(".toml") else folder / f"{name}.toml"
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        plan = msgspec.convert(content, Plan)
    except FileNotFoundError as error:
        raise DrillError(f"There is no drill {name!r}: {path} is missing.") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DrillError(f"{path} cannot be read: {error}") from error
    except msgspec.ValidationError as error:
        raise DrillError(f"{path}: {error}") from error
    unknown = sorted(set(given) - set(plan.values))
    if unknown:
        raise DrillError(f"{path} has no value {unknown[0]!r}; it has {_listed(plan.values)}")
    plan = msgspec.structs.replace(plan, values={**plan.values, **given})
    problem = next(_problems(plan), None)
    if problem is not None:
        raise DrillError(f"{path}: {problem}")
    return plan


def _listed(names: Mapping[str, str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _problems(plan: Plan) -> Iterator[str]:
    if not plan.name or len(plan.name) > _NAME_MOST or not plan.name.isprintable():
        yield "name must be a short word"
    if not plan.via:
        yield "via names no program"
    if not plan.expect.status:
        yield "expect.status names no status"
    if not (0 < plan.within_s <= 24 * 3600 and 0 <= plan.expect.quiet_s <= plan.within_s):
        yield "within_s and expect.quiet_s must be seconds of at most a day, quiet_s the smaller"
    if plan.recovery.training_changes < 1:
        yield "recovery.training_changes must be 1 at least"
    if plan.recovery.training and plan.recovery.training_file:
        yield "recovery.training and recovery.training_file are two ways: keep one"
    yield from _wrong_words(plan)


def _wrong_words(plan: Plan) -> Iterator[str]:
    for cause in plan.expect.cause:
        if cause not in set(Cause):
            yield f"expect.cause: {cause!r} is none of {', '.join(Cause)}"
    for value in set(plan.values) & set(_OWN):
        yield f"values: {value!r} is a word of ours"
    known = set(plan.values) | set(_OWN)
    for text in _texts(msgspec.to_builtins(plan)):
        yield from _placeholders(text, known)


def _texts(value: Any) -> Iterator[str]:  # noqa: ANN401 (plain data)
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, one in value.items():
            if name not in ("values", "what", "expect", "pattern"):
                yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)


def _placeholders(text: str, known: set[str]) -> Iterator[str]:
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
    except ValueError as error:
        yield f"{text!r}: {error} (a brace that is meant is written twice)"
        return
    for name in names:
        if name not in known:
            yield f"{text!r} names {{{name}}}; known: {', '.join(sorted(known))}"


def with_limit(plan: Plan, within_s: float) -> Plan:
    """The plan with another time limit, and no longer a quiet time than that."""
    quiet_s = min(plan.expect.quiet_s, within_s)
    expect = msgspec.structs.replace(plan.expect, quiet_s=quiet_s)
    return msgspec.structs.replace(plan, within_s=within_s, expect=expect)
