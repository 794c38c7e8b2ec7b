"""What an NVLink5 message of Xid 144 to 150 says beyond its code, by ``data/nvlink5.tsv``.

The first register holds the reporting unit, the link and, for a link that went down, the reason;
the second is the error itself. Drivers before 575 and since encode the unit differently; with the
code beside it no value of one encoding means another unit in the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from evidence.decisions import Recovery

__all__ = ["Effect", "Fault", "NvlinkError", "NvlinkEvent", "decode", "read_row"]


class Fault(StrEnum):
    """Where the table looks for the cause of an NVLink5 event.

    ``link`` is the signal between both ends; ``either`` software or that signal; ``secondary``
    follows from something else; ``repeated`` counts only when it comes again; ``none`` is nobody.
    """

    GPU = "gpu"
    PEER = "peer"
    LINK = "link"
    SOFTWARE = "software"
    EITHER = "either"
    HOST = "host"
    SECONDARY = "secondary"
    REPEATED = "repeated"
    NONE = "none"


class Effect(StrEnum):
    """What an event does on its own GPU, or on the one at the other end."""

    ECC = "ecc"
    POISON = "poison"
    CRASH = "crash"
    PACKET_LOSS = "packet-loss"
    CROSS_CONTAIN = "cross-contain"
    GPU_FATAL = "gpu-fatal"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class NvlinkError:
    """One row: ``v1`` and ``v2`` are the unit's code in each encoding, ``status`` the error.

    ``reason`` is that of a link which went down, None in the rows of other units.
    """

    code: int
    units: tuple[str, ...]
    reason: int | None
    v1: int
    v2: int
    status: int
    severity: str
    recovery: Recovery
    recovery_if_fatal: Recovery
    fault: Fault
    nature: str
    local: frozenset[Effect]
    remote: frozenset[Effect]
    source: str
    date: str


@dataclass(frozen=True, slots=True)
class NvlinkEvent:
    """A decoded message; ``row`` is None where the table knows the unit but not the error."""

    unit: str
    reason: int | None
    link: int | None
    fatal: bool
    row: NvlinkError | None


_V1_UNIT, _V2_UNIT = 0x3FF, 0x7F
_V1_FATAL, _V2_FATAL = 1 << 10, 1 << 7
_REASON_SHIFT, _REASON_MASK = 20, 0x3F
_LINK_SHIFT, _LINK_MASK = 13, 0x1F
_WHOLE_GPU = 0x1F


def decode(
    rows: Sequence[NvlinkError], code: int, unit: str | None, registers: Sequence[int]
) -> NvlinkEvent | None:
    """Decode the registers of an Xid 144 to 150; None where they name no unit that is known.

    ``rows`` are those of the table; ``unit`` is the word in front of the registers, which tells
    two units apart that share a code.
    """
    if not registers:
        return None
    info, status = registers[0], registers[1] if len(registers) > 1 else 0
    mine = [row for row in rows if row.code == code]
    found, fatal = [row for row in mine if row.v1 == info & _V1_UNIT], info & _V1_FATAL
    if not found:
        found, fatal = [row for row in mine if row.v2 == info & _V2_UNIT], info & _V2_FATAL
    found = [row for row in found if unit in row.units] or found
    if not found:
        return None
    reason = info >> _REASON_SHIFT & _REASON_MASK
    link = info >> _LINK_SHIFT & _LINK_MASK
    downs = any(row.reason is not None for row in found)
    return NvlinkEvent(
        unit=unit or found[0].units[0],
        reason=reason if downs else None,
        link=None if link == _WHOLE_GPU else link,
        fatal=bool(fatal),
        row=next(
            (row for row in found if row.status == status and row.reason in (None, reason)), None
        ),
    )


def read_row(row: dict[str, str]) -> NvlinkError:
    """One line of ``nvlink5.tsv``; raises ValueError or KeyError for one that is none."""
    return NvlinkError(
        code=int(row["code"]),
        units=tuple(row["units"].split(",")),
        reason=None if row["reason"] == "-" else int(row["reason"]),
        v1=int(row["v1"], 16),
        v2=int(row["v2"], 16),
        status=int(row["status"], 16),
        severity=row["severity"],
        recovery=Recovery.known(row["recovery"]),
        recovery_if_fatal=Recovery.known(row["recovery_if_fatal"]),
        fault=Fault(row["fault"]),
        nature=row["nature"],
        local=_effects(row["local"]),
        remote=_effects(row["remote"]),
        source=row["source"],
        date=row["date"],
    )


def _effects(text: str) -> frozenset[Effect]:
    return frozenset(Effect(word) for word in text.split(",")) - {Effect.NONE}
