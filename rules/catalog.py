"""The Xid, SXid and NVLink5 tables: what each code of the driver means, in ``data/*.tsv``.

The word in a log line outranks this table (severity, ``RST``, ``caused by``), and a code can have
had another meaning in an old driver branch: ask `Catalog.xid` with the driver version.
"""

import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from evidence.decisions import Cause, DomainKind, Recovery
from rules.nvlink5 import NvlinkError, read_row

__all__ = ["Catalog", "CatalogError", "Role", "SXid", "Xid", "load"]

DATA = Path(__file__).with_name("data")

_Row = TypeVar("_Row")


class CatalogError(ValueError):
    """A catalog row that cannot be read; the message names file, line and column."""


class Role(StrEnum):
    """What an Xid can be in a chain of events on one GPU.

    ``contained`` is 94, which its own GPU may suffer from a neighbour's poison; ``consequence`` and
    ``recovery`` are never a cause; ``info`` is not even a symptom.
    """

    LOST = "lost"
    HARDWARE = "hardware"
    LINK = "link"
    CONTAINED = "contained"
    WARNING = "warning"
    DRIVER = "driver"
    APPLICATION = "application"
    CONSEQUENCE = "consequence"
    RECOVERY = "recovery"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Xid:
    """One Xid code.

    ``rank`` orders root causes, highest first, and ``weight`` (0 to 1) is how far the code alone
    accuses its GPU; both are ours. ``action`` is the vendor's bucket, ``recovery`` our word for it.
    ``meant`` lists driver ranges in which the number had the meaning of another code.
    """

    code: int
    mnemonic: str
    title: str
    role: Role
    rank: int
    weight: float
    cause: Cause
    domain: DomainKind
    recovery: Recovery
    action: str
    fatal: str
    generations: tuple[str, ...]
    meant: tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...]
    renamed: tuple[str, ...]
    source: str
    date: str


@dataclass(frozen=True, slots=True)
class SXid:
    """One NVSwitch code; ``contain`` codes print Fatal or Non-fatal at run time: trust the line."""

    code: int
    mnemonic: str
    title: str
    cause: Cause
    domain: DomainKind | None
    recovery: Recovery
    action: str
    fatal: str
    contain: bool
    guide: str
    generations: tuple[str, ...]
    source: str
    date: str


@dataclass(frozen=True, slots=True)
class Catalog:
    """Xids and SXids by code, and what the messages of 144 to 150 say more, in file order."""

    xids: Mapping[int, Xid]
    sxids: Mapping[int, SXid]
    nvlink5: tuple[NvlinkError, ...]

    def xid(self, code: int, driver: str | None = None) -> Xid | None:
        """What an Xid code means in a driver (``"550.90.07"``); None for a code nobody knows."""
        row = self.xids.get(code)
        if row is None or not row.meant or driver is None:
            return row
        try:
            version = _version(driver)
        except ValueError:
            return row
        for first, last, other in row.meant:
            if first <= version <= last:
                return self.xids[other]
        return row


def load(data: Path = DATA) -> Catalog:
    """Read ``xid.tsv``, ``sxid.tsv`` and ``nvlink5.tsv``.

    Raises CatalogError for a row that does not parse, OSError when a file is missing.
    """
    xids = {row.code: row for row in _rows(data / "xid.tsv", _xid)}
    sxids = {row.code: row for row in _rows(data / "sxid.tsv", _sxid)}
    nvlink5 = tuple(_rows(data / "nvlink5.tsv", read_row, ("code", "units", "reason", "status")))
    return Catalog(MappingProxyType(xids), MappingProxyType(sxids), nvlink5)


def _rows(
    path: Path, read: Callable[[dict[str, str]], _Row], key: tuple[str, ...] = ("code",)
) -> Iterator[_Row]:
    seen: set[str] = set()
    with path.open(encoding="utf-8", newline="") as lines:
        table = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        for number, row in enumerate(table, 2):
            try:
                _check(row, seen, key)
                yield read(row)
            except (KeyError, TypeError, ValueError) as error:
                raise CatalogError(f"{path.name}, line {number}: {error}") from error


def _check(row: dict[str, str], seen: set[str], key: tuple[str, ...]) -> None:
    name = " ".join(row[column] for column in key)
    if name in seen:
        raise ValueError(f"code {name} stands twice")
    seen.add(name)
    if not row["source"] or not row["date"]:
        raise ValueError("a row has a source and a date")


def _xid(row: dict[str, str]) -> Xid:
    return Xid(
        code=int(row["code"]),
        mnemonic=row["mnemonic"],
        title=row["title"],
        role=Role(row["role"]),
        rank=int(row["rank"]),
        weight=float(row["weight"]),
        cause=Cause.known(row["cause"]),
        domain=DomainKind(row["domain"]),
        recovery=Recovery.known(row["recovery"]),
        action=row["action"],
        fatal=row["fatal"],
        generations=tuple(row["generations"].split(",")),
        meant=tuple(_meaning(text) for text in row["meant"].split()),
        renamed=tuple(row["renamed"].split()),
        source=row["source"],
        date=row["date"],
    )


def _sxid(row: dict[str, str]) -> SXid:
    return SXid(
        code=int(row["code"]),
        mnemonic=row["mnemonic"],
        title=row["title"],
        cause=Cause.known(row["cause"]),
        domain=None if row["domain"] == "-" else DomainKind(row["domain"]),
        recovery=Recovery.known(row["recovery"]),
        action=row["action"],
        fatal=row["fatal"],
        contain=row["contain"] == "yes",
        guide=row["guide"],
        generations=tuple(row["generations"].split(",")),
        source=row["source"],
        date=row["date"],
    )


def _meaning(text: str) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Read ``550.40.63..550.163.01=151``: in that range of drivers the code meant 151."""
    versions, _, other = text.partition("=")
    first, _, last = versions.partition("..")
    return _version(first), _version(last), int(other)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
