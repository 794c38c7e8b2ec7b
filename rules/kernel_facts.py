"""What one kernel-log record says about one part, by the Xid and SXid catalogs.

The line's own words win over the table: its severity, its ``RST`` flags, its ``caused by``. The
process an Xid 119 names is only who called.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from msgspec.structs import replace

from evidence.decisions import Cause, DomainKind, EvidenceRef, Recovery, Witness
from evidence.records import KernelKind, KernelRecord
from rules.age import aged
from rules.catalog import Role
from rules.host_state import Fact, FactKind, HostState
from rules.link_facts import link_fact
from rules.stage import reckonable
from rules.tables import Rules

__all__ = ["TEXT_MAX", "hardened", "kernel_facts", "kernel_ref", "xid_fact"]

#: Characters of a line that travel with a verdict.
TEXT_MAX = 200

_RESET_RANK = 42
#: What Xid 154 asks for, by its words. Source: open-gpu-kernel-modules 595.45.04, gpu.c.
_ACTIONS: dict[str, Recovery] = {
    "none": Recovery.NONE,
    "gpu reset required": Recovery.RESET_GPU,
    "gpu reset": Recovery.RESET_GPU,
    "node reboot required": Recovery.REBOOT_NODE,
    "node reboot": Recovery.REBOOT_NODE,
    "drain p2p": Recovery.CHECK_LINK,
    "drain and reset": Recovery.DRAIN_RESET,
    "recover imex domain": Recovery.RESTART_SERVICE,
    "bus reset": Recovery.RESET_GPU,
    "system reboot": Recovery.REBOOT_NODE,
}
#: The same where the line has the number alone, from 0 on; 6 and 7 are in NVML's documents only.
_ACTIONS |= {
    f"0x{number}": _ACTIONS[words]
    for number, words in enumerate(
        (
            "none",
            "gpu reset",
            "node reboot",
            "drain p2p",
            "drain and reset",
            "recover imex domain",
            "bus reset",
            "system reboot",
        )
    )
}


def kernel_ref(record: KernelRecord) -> EvidenceRef:
    """What a verdict shows of a kernel record."""
    return EvidenceRef(
        id=record.id,
        source="kernel",
        at=record.at,
        host=record.host,
        file=record.file,
        line=record.line,
        text=record.raw[:TEXT_MAX],
    )


def kernel_facts(
    record: KernelRecord, state: HostState, arrived: datetime, rules: Rules
) -> list[Fact]:
    """The facts in one record: mostly none (noise), else one."""
    read = _READERS.get(record.kind)
    if read is None:
        return []
    plain = Fact(
        ref=kernel_ref(record),
        name=record.kind.value,
        kind=FactKind.HOST,
        witness=Witness.KERNEL,
        subject="node:",
        topic="kernel",
        at=arrived if record.at is None else min(reckonable(record.at), arrived),
        arrived=arrived,
        due=arrived + timedelta(seconds=rules.thresholds.settle_s),
        words=(record.message or record.raw)[:TEXT_MAX],
        seq=record.seq,
        count=max(1, record.count),
    )
    fact = read(record, plain, state, rules)
    if fact is None:
        return []
    read_at = min(reckonable(record.observed_at), arrived)
    return [aged(fact, read_at, state.behind_s, rules.thresholds)]


def _xid(record: KernelRecord, plain: Fact, state: HostState, rules: Rules) -> Fact | None:
    if record.code is None or record.pci is None:
        return None
    fact = replace(
        plain,
        subject=record.pci,
        mig=record.mig,
        pid=record.pid,
        link=record.link,
        caused_by=record.caused_by,
        fatal=record.severity == "fatal",
    )
    driver = record.driver or state.driver
    fact = xid_fact(record.code, fact, driver, rules)
    row = rules.catalog.xid(record.code, driver)
    if row is None:
        return fact
    detail = _DETAILS.get(row.code)
    if detail is not None:
        fact = detail(record, fact, rules)
    return hardened(fact, fact.name, rules) if fact.hard is None else fact


def xid_fact(code: int, plain: Fact, driver: str | None, rules: Rules) -> Fact:
    """``plain`` as the fact that a driver reported Xid ``code``, weighed by the catalog."""
    row = rules.catalog.xid(code, driver)
    if row is None:
        return replace(
            plain,
            name=f"xid-{code}",
            kind=FactKind.UNKNOWN_CODE,
            code=code,
            words=f"Xid {code}, a code that no catalog knows",
            rank=34,
            weight=_UNKNOWN,
        )
    return replace(
        plain,
        name=f"xid-{code}",
        kind=FactKind.XID,
        code=code,
        words=f"Xid {code} ({row.title})",
        role=row.role,
        rank=row.rank,
        weight=row.weight,
        cause=row.cause,
        recovery=row.recovery,
    )


def hardened(fact: Fact, name: str, rules: Rules, *, at_once: bool = True) -> Fact:
    """The fact, marked hard when the policy lists its name."""
    if name not in rules.policy.hard_facts:
        return fact
    return replace(fact, hard=name, at_once=at_once)


def _contained(record: KernelRecord, fact: Fact, rules: Rules) -> Fact:
    if not (record.reset or record.drain_reset):
        return fact
    recovery = Recovery.RESET_GPU if record.reset else Recovery.DRAIN_RESET
    flag = "RST" if record.reset else "D-RST"
    words = f"{fact.words} with {flag}: Yes"
    rank = max(fact.rank, _RESET_RANK)
    fact = replace(fact, role=Role.HARDWARE, rank=rank, weight=0.9, recovery=recovery, words=words)
    return hardened(fact, "driver-reset-required", rules)


def _exception(record: KernelRecord, fact: Fact, rules: Rules) -> Fact:
    """With the GPC and TPC; which SM of the TPC does not matter to the repeats of it."""
    del rules
    unit = record.unit or ""
    return replace(fact, unit=unit.partition(", SM")[0] or None)


def _remap_failed(record: KernelRecord, fact: Fact, rules: Rules) -> Fact:
    if "already pending" in (record.message or ""):
        words = f"Xid {fact.code} (row already waits for its remap)"
        recovery = Recovery.DRAIN_RESET
        return replace(fact, role=Role.WARNING, rank=35, weight=0.2, recovery=recovery, words=words)
    return hardened(fact, "remap-failure", rules)


def _recovery_action(record: KernelRecord, fact: Fact, rules: Rules) -> Fact:
    wanted = _ACTIONS.get((record.recovery_action or "").casefold())
    if wanted is None:
        return fact
    fact = replace(fact, recovery=wanted, words=f"Xid 154 (driver asks: {record.recovery_action})")
    if wanted is Recovery.NONE:
        return replace(fact, kind=FactKind.RECOVERED)
    if wanted in (Recovery.RESET_GPU, Recovery.REBOOT_NODE):
        # It names the action, not the culprit: what does name it may still be on its way.
        return hardened(replace(fact, weight=0.9), "driver-reset-required", rules, at_once=False)
    return replace(fact, weight=0.3)


#: Codes whose message says more than their row; each keeps the fact or replaces it.
_DETAILS: dict[int, Callable[[KernelRecord, Fact, Rules], Fact]] = {
    13: _exception,
    64: _remap_failed,
    94: _contained,
    95: _contained,
    154: _recovery_action,
    74: link_fact,
    136: link_fact,
    **dict.fromkeys(range(144, 151), link_fact),
}


def _nvrm(record: KernelRecord, plain: Fact, state: HostState, rules: Rules) -> Fact | None:
    del state
    if record.pci is None:
        return None
    message = record.message or record.raw
    fact = replace(plain, kind=FactKind.NVRM, subject=record.pci, role=Role.LOST)
    if record.code == _FALLEN_OFF or "fallen off the bus" in message:
        fact = replace(
            fact,
            name="nvrm-lost",
            words="the driver found it fallen off the bus",
            rank=89,
            weight=0.95,
            cause=Cause.GPU_LOST,
            recovery=Recovery.REBOOT_NODE,
        )
        return hardened(fact, "gpu-lost", rules)
    if record.unit == "RmInitAdapter":
        return replace(
            fact,
            name="nvrm-init",
            words="the driver could not initialise it (RmInitAdapter)",
            role=Role.HARDWARE,
            rank=68,
            weight=0.5,
            cause=Cause.GPU_FIRMWARE,
            recovery=Recovery.REBOOT_NODE,
        )
    return None


def _sxid(record: KernelRecord, plain: Fact, state: HostState, rules: Rules) -> Fact | None:
    del state
    if record.code is None or record.pci is None or record.severity is None:
        return None  # without a severity it is a continuation line of an event already told
    fact = replace(
        plain,
        name=f"sxid-{record.code}",
        kind=FactKind.SWITCH,
        subject=f"switch:{record.pci}",
        code=record.code,
        link=record.link,
        fatal=record.severity == "fatal",
        cause=Cause.NVSWITCH,
    )
    row = rules.sxids.get(record.code)
    if row is None:
        words = f"SXid {record.code}, a code that no catalog knows"
        return replace(fact, kind=FactKind.UNKNOWN_CODE, words=words, rank=34, weight=_UNKNOWN)
    if not fact.fatal and row.recovery is Recovery.NONE:
        return None
    fact = replace(fact, own=row.domain is not DomainKind.NVLINK)
    port = "" if record.link is None else f" on port {record.link}"
    return replace(
        fact,
        words=f"SXid {record.code} ({row.title}), {record.severity}{port}",
        rank=61 if fact.fatal else 35,
        weight=0.6 if fact.fatal else 0.2,
        recovery=row.recovery,
    )


def _port(record: KernelRecord, plain: Fact, state: HostState, rules: Rules) -> Fact | None:
    """AER, DPC and hot-plug of the port above a device; corrected errors are daily noise."""
    del state, rules
    message = record.message or record.raw
    fatal = record.severity == "fatal" or record.kind is KernelKind.DPC
    if record.kind is KernelKind.PCIEHP:
        fatal = "Link Down" in message or "not present" in message
    if not fatal or record.pci is None:
        return None
    return replace(
        plain,
        name=f"{record.kind}-fatal",
        kind=FactKind.PORT,
        subject=f"port:{record.pci}",
        words=f"PCIe port {record.pci}: {message[:80]}",
        rank=36,
        weight=0.3,
        cause=Cause.PCIE,
        recovery=Recovery.DIAGNOSE,
        fatal=True,
    )


def _machine_check(
    record: KernelRecord, plain: Fact, state: HostState, rules: Rules
) -> Fact | None:
    del state, rules
    if record.severity not in ("uncorrectable", "fatal"):
        return None
    return replace(
        plain,
        name="machine-check",
        rank=36,
        weight=0.5,
        cause=Cause.NODE,
        recovery=Recovery.DIAGNOSE,
        fatal=True,
    )


def _out_of_memory(record: KernelRecord, plain: Fact, state: HostState, rules: Rules) -> Fact:
    del record, state, rules
    return replace(plain, name="oom", role=Role.APPLICATION, cause=Cause.SOFTWARE, rank=30)


def _crashed(record: KernelRecord, plain: Fact, state: HostState, rules: Rules) -> Fact:
    """A process that a fault of its own ended: nothing of the hardware's by itself."""
    del record, state, rules
    return replace(plain, name="segfault", role=Role.APPLICATION, cause=Cause.SOFTWARE, rank=30)


_FALLEN_OFF = 79
_UNKNOWN = 0.2
_Reader = Callable[[KernelRecord, Fact, HostState, Rules], Fact | None]
_READERS: dict[KernelKind, _Reader] = {
    KernelKind.XID: _xid,
    KernelKind.NVRM: _nvrm,
    KernelKind.SXID: _sxid,
    KernelKind.FABRIC_MANAGER: _sxid,
    KernelKind.AER: _port,
    KernelKind.DPC: _port,
    KernelKind.PCIEHP: _port,
    KernelKind.MCE: _machine_check,
    KernelKind.OOM: _out_of_memory,
    KernelKind.SEGFAULT: _crashed,
}
