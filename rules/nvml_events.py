"""NVML's own events as facts: an Xid of NVML stands in for the kernel line that nobody read.

NVML tells the number of an Xid and not its text, so what hangs on the text (the driver's flags, the
end of a link, the wish of a 154) is not known; the kernel's line replaces the event when it comes.
"""

from datetime import datetime, timedelta

from msgspec.structs import replace

from evidence.decisions import Cause, EvidenceRef, Recovery, Witness
from evidence.records import GpuEvent, GpuEventKind, GpuFrame, Mig
from rules.age import aged
from rules.cards import find_slot
from rules.catalog import Role
from rules.host_state import Fact, FactKind, HostState
from rules.kernel_facts import hardened, xid_fact
from rules.stage import reckonable
from rules.tables import Rules

__all__ = ["event_fact"]

#: nvml.h: the event data of an Xid that NVML does not know the number of.
_UNKNOWN_XID = 999
_RECOVERY_ACTION = 154
#: The Xid that the driver prints with an event of another kind.
#: Source: nvml.h, nvmlEventType*, and the Xid catalog's names.
_TWINS = {
    GpuEventKind.ECC_DOUBLE_BIT: 48,
    GpuEventKind.ECC_SINGLE_BIT_STORM: 92,
    GpuEventKind.DRAM_RETIREMENT: 63,
    GpuEventKind.DRAM_RETIREMENT_FAILURE: 64,
    GpuEventKind.POISON: 94,
    GpuEventKind.FATAL_POISON: 95,
}
#: The registers of a link's Xid tell whose fault it is; without them it accuses little.
_LINK_WEIGHT = 0.3


def event_fact(
    frame: GpuFrame, event: GpuEvent, arrived: datetime, state: HostState, rules: Rules
) -> Fact | None:
    """The fact in one event; None for what snapshots tell better and for a card nobody can name.

    Never at once: the kernel's line of the same Xid says more, and has the settling time to come.
    """
    subject = event.pci or find_slot(state, event.uuid, event.index)
    if subject is None:
        return None
    limits = rules.thresholds
    at = min(reckonable(event.at), arrived)
    words = f"NVML event {event.kind}" + ("" if event.data is None else f" ({event.data})")
    plain = Fact(
        ref=EvidenceRef(
            id=frame.id,
            source="gpu",
            at=at,
            host=frame.host,
            file=frame.file,
            text=f"GPU {subject}: {words}",
        ),
        name=event.kind.value,
        kind=FactKind.HEALTH,
        witness=Witness.HEALTH,
        subject=subject,
        topic="gpu",
        at=at,
        arrived=arrived,
        due=arrived + timedelta(seconds=limits.settle_s),
        words=words,
        seq=frame.seq,
        mig=None if event.gi is None else Mig(event.gi, event.ci),
    )
    plain = aged(plain, min(reckonable(frame.observed_at), arrived), state.behind_s, limits)
    if event.kind is GpuEventKind.UNAVAILABLE:
        return replace(
            plain,
            words="NVML tells that the GPU is unavailable",
            rank=47,
            weight=0.4,
            cause=Cause.GPU_LOST,
            recovery=Recovery.RESET_GPU,
        )
    code = event.data if event.kind is GpuEventKind.XID else _TWINS.get(event.kind)
    if code is None or code == _RECOVERY_ACTION:
        return None
    return _stand_in(code, plain, frame.driver or state.driver, rules)


def _stand_in(code: int, plain: Fact, driver: str | None, rules: Rules) -> Fact:
    plain = replace(plain, witness=Witness.KERNEL)
    if code == _UNKNOWN_XID:
        return replace(
            plain,
            name=f"xid-{code}",
            kind=FactKind.UNKNOWN_CODE,
            words="an Xid whose number NVML does not know",
            rank=34,
            weight=0.2,
        )
    fact = xid_fact(code, plain, driver, rules)
    fact = replace(fact, words=f"{fact.words}, told by NVML")
    if fact.role is Role.LINK:
        return replace(fact, weight=min(fact.weight, _LINK_WEIGHT))
    return hardened(fact, fact.name, rules, at_once=False)
