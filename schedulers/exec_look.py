"""Reads what a program prints of a scheduler: what stands out of service, and what is planned."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import IO

import msgspec
from msgspec import Struct

from evidence.decisions import Domain
from evidence.identity import digest
from evidence.records import ContextKind, ContextRecord
from schedulers.adapter import SchedulerError, Standing, View

__all__ = ["look"]

_LARGEST_BYTES = 64 * 1024 * 1024


class _Standing(Struct, frozen=True):
    domain: Domain
    command: str | None = None
    by: str = ""
    reason: str = ""
    since: datetime | None = None


class _Planned(Struct, frozen=True):
    host: str
    kind: ContextKind
    at: datetime
    until: datetime | None = None
    ended: bool = False
    pci: str | None = None
    job: str | None = None
    attempt: int = 0
    hosts: tuple[str, ...] = ()
    image: str | None = None
    owner: str | None = None
    by: str | None = None
    reason: str | None = None


class _Said(Struct, frozen=True):
    standing: tuple[_Standing, ...] = ()
    context: tuple[_Planned, ...] = ()
    epoch: str = ""


def look(program: Sequence[str], timeout_s: float) -> View:
    """Run a program and read ``{"standing": [...], "context": [...]}`` from its stdout.

    Raises SchedulerError, with one sentence, where it fails, hangs or prints something else.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        code = _code(program, timeout_s, out, errors)
        size = out.seek(0, os.SEEK_END)
        if size > _LARGEST_BYTES:
            raise SchedulerError(f"{program[0]} printed {size} bytes")
        out.seek(0)
        errors.seek(0)
        if code != 0:
            told = " ".join(errors.read(4096).decode(errors="replace").split())[:200]
            raise SchedulerError(f"{program[0]}: exit code {code}: {told}")
        try:
            said = msgspec.json.decode(out.read(), type=_Said)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise SchedulerError(f"{program[0]} printed something else: {error}") from error
    at = datetime.now(UTC)
    return View(
        at=at,
        standing=tuple(
            Standing(one.domain, one.command, one.by, one.reason, one.since)
            for one in said.standing
        ),
        context=tuple(_record(one, at) for one in said.context),
        epoch=lambda _domain: said.epoch,
    )


def _code(program: Sequence[str], timeout_s: float, out: IO[bytes], errors: IO[bytes]) -> int:
    """The exit code; output goes to files, so that a child left behind holds up nobody."""
    try:
        process = subprocess.Popen(
            list(program),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
    except OSError as error:
        raise SchedulerError(f"{program[0]} cannot be run: {error.strerror}") from error
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired as error:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise SchedulerError(f"{program[0]} gave no answer within {timeout_s:g} s") from error


def _record(one: _Planned, at: datetime) -> ContextRecord:
    """A record whose id depends on what it tells, so that the same is told once."""
    told = msgspec.structs.asdict(one)
    return ContextRecord(id=digest("context", "exec", *told.values()), observed_at=at, **told)
