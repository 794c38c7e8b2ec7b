"""What an NVLink Xid says of its link: whose fault by its registers, and how much that weighs.

A code alone (74, 136, 144 to 150) accuses its own GPU as much as the one at the other end.
"""

from msgspec.structs import replace

from evidence.decisions import Recovery
from evidence.records import KernelRecord
from rules import nvlink5, xid74
from rules.catalog import Role
from rules.host_state import Fact
from rules.nvlink5 import Effect, Fault, NvlinkEvent
from rules.tables import Rules
from rules.xid74 import Weight

__all__ = ["link_fact"]

_XID_74 = 74
#: A unit's own ECC error is the root of the memory errors (48, 64) that it leads to.
#: Source: NVIDIA Xid catalog, NVLink5 rows that lead to Xid 48 or to 94 and 95.
_ECC_RANK = 84
#: Weights are ours: what the registers say is nobody's fault only asks for more evidence.
_BY_FAULT: dict[Fault, tuple[float, str]] = {
    Fault.GPU: (0.6, "a fault of this GPU's own link logic"),
    Fault.PEER: (0.5, "the fault of the device at the other end"),
    Fault.LINK: (0.5, "the signal between both ends"),
    Fault.SOFTWARE: (0.15, "the doing of software"),
    Fault.EITHER: (0.3, "the doing of software or the signal between both ends"),
    Fault.HOST: (0.15, "a matter of the host, which other lines of it tell"),
    Fault.SECONDARY: (0.2, "only what followed from something else"),
    Fault.REPEATED: (0.3, "no fault before it comes again"),
    Fault.NONE: (0.1, "nobody's fault"),
}
_NONFATAL = 0.3
_BY_WEIGHT: dict[Weight, float] = {
    Weight.PHYSICAL: 0.5,
    Weight.OWN: 0.5,
    Weight.REPEATED: 0.4,
    Weight.SECONDARY: 0.2,
    Weight.IGNORED: 0.1,
}


def link_fact(record: KernelRecord, fact: Fact, rules: Rules) -> Fact:
    """The fact with its link, the device at the other end, and what its registers say."""
    link = record.link if record.link is not None and record.link >= 0 else None
    where = f" on link {link}" if link is not None else ""
    if record.peer_pci is not None:
        where += f" to {record.peer_pci}"
    words = f"{fact.words}{where}"
    fact = replace(fact, words=words, link=link, peer_pci=record.peer_pci)
    if record.code == _XID_74:
        return _hopper(record, fact)
    event = nvlink5.decode(rules.catalog.nvlink5, record.code or 0, record.unit, record.registers)
    return fact if event is None else _blackwell(event, fact)


def _hopper(record: KernelRecord, fact: Fact) -> Fact:
    error = xid74.decode(record.registers)
    if error is None:
        return fact
    return replace(
        fact,
        words=f"{fact.words} ({error.words})",
        weight=_BY_WEIGHT[error.weight],
        own=error.weight in (Weight.OWN, Weight.REPEATED),
    )


def _blackwell(event: NvlinkEvent, fact: Fact) -> Fact:
    row = event.row
    what = event.unit if event.reason is None else f"{event.unit}, link-down reason {event.reason}"
    if row is None:
        return replace(fact, words=f"{fact.words} ({what}, which no table knows)", weight=0.3)
    weight, whose = _BY_FAULT[row.fault]
    own = row.fault is Fault.GPU
    if own and not event.fatal and row.severity == "nonfatal":
        weight = _NONFATAL
    recovery = row.recovery_if_fatal if event.fatal else row.recovery
    fact = replace(
        fact,
        words=f"{fact.words} ({what}: {whose})",
        weight=weight,
        recovery=recovery if recovery is not Recovery.NONE else fact.recovery,
        peer=row.fault is Fault.PEER,
        own=own,
    )
    if own and row.local & {Effect.ECC, Effect.GPU_FATAL}:
        # The unit sits in the GPU, whichever link it served: its link is only told in words.
        rank = _ECC_RANK if Effect.ECC in row.local else fact.rank
        fact = replace(fact, role=Role.HARDWARE, rank=rank, link=None)
    if row.fault is Fault.NONE and not event.fatal and Effect.CRASH not in row.local:
        return replace(fact, role=Role.INFO, weight=0.0)
    return fact
