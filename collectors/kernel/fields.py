"""The parsed fields of one kernel message: what every part of the grammar fills in."""

from datetime import datetime
from functools import lru_cache
from typing import TypedDict

from evidence.identity import normalise_pci
from evidence.records import KernelKind, Mig

__all__ = ["SEVERITIES", "KernelFields", "Whence", "put_pci"]

#: How the kernel, the NVIDIA driver and the switch driver spell how bad it is -> our one spelling.
SEVERITIES = {
    "fatal": "fatal",
    "uncorrected (fatal)": "fatal",
    "uncorrectable (fatal)": "fatal",
    "nonfatal": "non-fatal",
    "non-fatal": "non-fatal",
    "uncorrected (non-fatal)": "non-fatal",
    "uncorrectable (non-fatal)": "non-fatal",
    "corrected": "correctable",
    "correctable": "correctable",
    "ce": "correctable",
    "ue": "uncorrectable",
    "recoverable": "recoverable",
    "info": "info",
    "contained": "contained",
    "uncontained": "uncontained",
}


class KernelFields(TypedDict, total=False):
    """Keyword arguments of a `KernelRecord` that stand in the message itself.

    ``severity`` is one of the values of `SEVERITIES`; ``link`` is -1 where the driver says that
    the whole GPU is concerned and absent where the line names no link.
    """

    kind: KernelKind
    code: int
    pci: str
    function: int
    pid: int
    process: str
    message: str
    mig: Mig
    caused_by: int
    link: int
    peer_pci: str
    severity: str
    reset: bool
    drain_reset: bool
    recovery_action: str
    recovery_action_from: str
    uuid: str
    serial: str
    unit: str
    address: str
    registers: tuple[int, ...]
    device: str
    port: int
    rate_limited: bool
    driver: str


class Whence(TypedDict):
    """Keyword arguments of a `KernelRecord` that tell where and when its line was met."""

    id: str
    observed_at: datetime
    raw: str
    host: str | None
    at: datetime | None
    uptime_s: float | None
    source: str
    file: str | None
    line: int | None
    seq: int
    boot_id: str | None
    priority: int | None
    facility: int | None
    clock_clamped: bool


#: A node has few addresses and prints them often.
_normal = lru_cache(maxsize=4096)(normalise_pci)


def put_pci(fields: KernelFields, text: str) -> None:
    """Put the PCI address that ``text`` is into ``pci`` and, when it has one, ``function``."""
    fields["pci"], function = _normal(text)
    if function is not None:
        fields["function"] = function
