"""The grammar of what the kernel says beside the GPU: PCIe, NICs, memory, processes.

The address of an AER, DPC or hot-plug line is the port above the device, not the device.
"""

import re
from collections.abc import Callable

from collectors.kernel.fields import SEVERITIES, KernelFields, put_pci
from evidence.records import KernelKind

__all__ = [
    "parse_edac",
    "parse_fabric_manager",
    "parse_hung_task",
    "parse_infiniband",
    "parse_mce",
    "parse_memory",
    "parse_netdev_watchdog",
    "parse_oom",
    "parse_pci_device",
    "parse_peermem",
    "parse_segfault",
]

_BDF = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"

# pcieport 0000:00:03.0: AER: Uncorrected (Fatal) error received: 0000:00:03.0
# mlx5_core 0000:65:00.0 ens15np0: NETDEV WATCHDOG: CPU: 94: transmit queue 3 timed out 5032 ms
# pciehp 0000:3a:00.0:pcie004: Slot(12): Link Down
_DEVICE = re.compile(rf"([\w.-]+) ({_BDF})(?::\w+)?(?: ([\w.-]+))?: ?(.*)", re.DOTALL)

# AER: Multiple Uncorrected (Fatal) error received: 0000:00:03.0
# PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer, (Receiver ID)
# AER: Correctable error message received from 0000:00:05.0
_SEVERITY = re.compile(
    r"\b((?:Uncorrected|Uncorrectable) \((?:Fatal|Non-Fatal)\)|(?:Corrected|Correctable)\b)",
    re.IGNORECASE,
)
# AER: Uncorrected (Fatal) error received: id=0010   /   DPC: containment event, source:0x3400
_SOURCE_ID = re.compile(r"(?:id=|source:0x)([0-9a-fA-F]{4})\b")
# AER: Correctable error message received from 0000:00:05.0
_SOURCE = re.compile(rf"received(?: from|:)\s+({_BDF})")
# PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)
_LAYER = re.compile(r"type=([\w ]+?),")
# device [8086:2f04] error status/mask=00000020/00000000
_STATUS = re.compile(r"device \[[0-9a-f:]+\] error status/mask=([0-9a-f]{1,8})/([0-9a-f]{1,8})")
#    [ 5] Surprise Down Error    (First)
_BIT = re.compile(r"\[\s*(\d{1,2})\]\s+(\S[^(]*?)\s*(?:\(First\)\s*)?\Z")
# pciehp: Slot(12): Link Down
_SLOT = re.compile(r"(Slot\([^)]*\))")
# Port module event[error]: module 0, Cable error, High Temperature   /   Port: 1 Link ACTIVE
_PORT = re.compile(r"Port(?: module event\S* module|:) (\d{1,4})\b")
# poll_health:852:(pid 0): device's health compromised - reached miss count
_FUNCTION = re.compile(r"(\w+):\d+:\(pid (\d{1,10})\):")

_POWER_STATE = ("Refused to change power state", "Unable to change power state")


def _source(text: str, fields: KernelFields) -> None:
    """The device whose message the port passed on, when it is not the port itself."""
    source: KernelFields = {}
    if (found := _SOURCE.search(text)) is not None:
        put_pci(source, found[1])
    elif (found := _SOURCE_ID.search(text)) is not None:
        # A requester id: bus << 8 | device << 3 | function, in the domain of the port.
        number = int(found[1], 16)
        domain = fields["pci"].partition(":")[0]
        source["pci"] = f"{domain}:{number >> 8:02x}:{number >> 3 & 0x1F:02x}"
    if source and source["pci"] != fields["pci"]:
        fields["peer_pci"] = source["pci"]


def _aer(rest: str, fields: KernelFields) -> None:
    fields["kind"] = KernelKind.AER
    if (found := _SEVERITY.search(rest)) is not None:
        fields["severity"] = SEVERITIES[found[1].lower()]
        _source(rest, fields)
        if (layer := _LAYER.search(rest)) is not None:
            fields["unit"] = layer[1]


def _aer_status(rest: str, fields: KernelFields) -> None:
    if (found := _STATUS.match(rest)) is not None:
        fields["kind"] = KernelKind.AER
        fields["registers"] = (int(found[1], 16), int(found[2], 16))


def _aer_bit(rest: str, fields: KernelFields) -> None:
    if (found := _BIT.match(rest)) is not None:
        fields["kind"] = KernelKind.AER
        fields["unit"] = found[2]
        fields["registers"] = (int(found[1]),)


def _dpc(rest: str, fields: KernelFields) -> None:
    fields["kind"] = KernelKind.DPC
    if "ERR_FATAL" in rest:
        fields["severity"] = "fatal"
    elif "ERR_NONFATAL" in rest:
        fields["severity"] = "non-fatal"
    _source(rest, fields)


def _pciehp(rest: str, fields: KernelFields) -> None:
    fields["kind"] = KernelKind.PCIEHP
    if (found := _SLOT.search(rest)) is not None:
        fields["unit"] = found[1]


def _mlx5(rest: str, fields: KernelFields) -> None:
    fields["kind"] = KernelKind.MLX5
    if (found := _PORT.search(rest)) is not None:
        fields["port"] = int(found[1])
    if (found := _FUNCTION.match(rest)) is not None:
        fields["unit"] = found[1]
        if int(found[2]):
            fields["pid"] = int(found[2])


def _efa(_rest: str, fields: KernelFields) -> None:
    fields["kind"] = KernelKind.EFA


#: The driver whose every line is of one kind.
_BY_DRIVER: dict[str, Callable[[str, KernelFields], None]] = {
    "aer": _aer,
    "dpc": _dpc,
    "efa": _efa,
    "mlx5_core": _mlx5,
    "mlx5_ib": _mlx5,
    "pciehp": _pciehp,
}
#: How the rest of a line of any PCI driver begins when the PCI core speaks.
_BY_BEGINNING: dict[str, Callable[[str, KernelFields], None]] = {
    "AER:": _aer,
    "PCIe Bus Error:": _aer,
    "DPC:": _dpc,
    "DPC ": _dpc,
    "pciehp:": _pciehp,
    "device has no AER-aware driver": _aer,
    "device [": _aer_status,
    "[": _aer_bit,
    "TLP Header:": _aer,
    "broadcast error_detected message": _aer,
}
_BEGINNINGS = tuple(_BY_BEGINNING)


def parse_pci_device(text: str) -> KernelFields | None:
    """Parse ``driver 0000:bb:dd.f: message``; None when it is not of interest."""
    found = _DEVICE.match(text)
    if found is None:
        return None
    driver, pci, name, rest = found.groups()
    rest = rest.strip()
    fields: KernelFields = {"message": rest, "device": name or driver}
    put_pci(fields, pci)
    by_driver = _BY_DRIVER.get(driver)
    if rest.startswith(_BEGINNINGS):
        for beginning, parse in _BY_BEGINNING.items():
            if rest.startswith(beginning):
                parse(rest, fields)
                if "kind" in fields:
                    return fields
    if by_driver is not None:
        by_driver(rest, fields)
    elif driver.startswith("nvidia") and rest.startswith(_POWER_STATE):
        fields["kind"] = KernelKind.NVRM
    return fields if "kind" in fields else None


# infiniband mlx5_0: create_qp:3192:(pid 4323): Create QP type 2 failed
# infiniband rdmap16s27: Failed to process command GET_STATS, Wait for completion (polling) timeout
_INFINIBAND = re.compile(r"infiniband ((mlx5|rdmap|efa)\w*): (.*)", re.DOTALL)


def parse_infiniband(text: str) -> KernelFields | None:
    """Parse a line that names an RDMA device and no PCI address."""
    found = _INFINIBAND.match(text)
    if found is None:
        return None
    fields: KernelFields = {"message": found[3].rstrip(), "device": found[1]}
    if found[2] == "mlx5":
        _mlx5(found[3], fields)
    else:
        _efa(found[3], fields)
    return fields


# NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 0 timed out
_WATCHDOG = re.compile(r"NETDEV WATCHDOG: (\S+) \((mlx5_core|efa)\): (.*)", re.DOTALL)


def parse_netdev_watchdog(text: str) -> KernelFields | None:
    """Parse the watchdog line of kernels before 6.8, which names the interface only."""
    found = _WATCHDOG.match(text)
    if found is None:
        return None
    kind = KernelKind.MLX5 if found[2] == "mlx5_core" else KernelKind.EFA
    return {"kind": kind, "device": found[1], "message": text.rstrip()}


# nvidia-peermem nv_mem_get_pages:471 ERROR error -22 while calling nvidia_p2p_get_pages()
_PEERMEM = re.compile(r"nvidia[-_]peermem:? (\w+):\d+ (.*)", re.DOTALL)


def parse_peermem(text: str) -> KernelFields:
    """Parse a line of the module that lets a NIC reach GPU memory."""
    fields: KernelFields = {"kind": KernelKind.PEERMEM, "message": text.rstrip()}
    if (found := _PEERMEM.match(text)) is not None:
        fields["unit"] = found[1]
        fields["message"] = found[2].rstrip()
    return fields


# EDAC MC3: 1 UE memory read error on CPU_SrcID#0_MC#3_Chan#0_DIMM#0 (channel:0 slot:0 page:0x7e025e
_EDAC = re.compile(
    r"EDAC (\w+): \d+ (UE|CE) .*? on (\S+)(?:.*?page:(0x[0-9a-f]{1,16}))?", re.DOTALL
)


def parse_edac(text: str) -> KernelFields | None:
    """Parse an EDAC error count line; EDAC's start-up lines are of no interest."""
    found = _EDAC.match(text)
    if found is None:
        return None
    controller, severity, unit, page = found.groups()
    fields: KernelFields = {
        "kind": KernelKind.MCE,
        "message": text.rstrip(),
        "device": controller,
        "severity": SEVERITIES[severity.lower()],
        "unit": unit,
    }
    if page is not None:
        fields["address"] = page
    return fields


# {1}[Hardware Error]: event severity: fatal
_EVENT_SEVERITY = re.compile(r"severity:\s*(fatal|recoverable|corrected|info)\b", re.IGNORECASE)
# {1}[Hardware Error]:   device_id: 0000:3a:00.0
_DEVICE_ID = re.compile(rf"device_id:\s*({_BDF})")


def parse_mce(text: str) -> KernelFields:
    """Parse a machine check or firmware-first (APEI) line."""
    fields: KernelFields = {"kind": KernelKind.MCE, "message": text.strip()}
    if (found := _EVENT_SEVERITY.search(text)) is not None:
        fields["severity"] = SEVERITIES[found[1].lower()]
    if (found := _DEVICE_ID.search(text)) is not None:
        put_pci(fields, found[1])
    return fields


# Memory failure: 0x7740c0: recovery action for dirty page: Recovered
_FAILURE = re.compile(r"Memory failure: (0x[0-9a-fA-F]{1,16}): ")


def parse_memory(text: str) -> KernelFields | None:
    """Parse a line that begins with the word Memory: a bad page, or a cgroup out of memory."""
    if (found := _FAILURE.match(text)) is not None:
        return {"kind": KernelKind.MCE, "message": text.rstrip(), "address": found[1].lower()}
    return parse_oom(text)


# Memory cgroup out of memory: Killed process 51807 (oxide) total-vm:412192kB, anon-rss:62936kB
# Out of memory: Killed process 4242 (python) total-vm:9000000kB
# oom_reaper: reaped process 4242 (python), now anon-rss:0kB
_KILLED = re.compile(r"(?:Kill(?:ed)?|reaped) process (\d{1,10}) \((.*?)\)(?:[ ,]|\Z)")
# oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python3,pid=4242,uid=1000
_OOM_KILL = re.compile(r",task=(.*?),pid=(\d{1,10}),")
_OOM_WORDS = ("out of memory:", "oom-kill:", "oom_reaper:", " invoked oom-killer:")


def parse_oom(text: str) -> KernelFields | None:
    """Parse the out-of-memory killer's lines; ``pid`` is the process that was killed."""
    lowered = text[:256].lower()
    if not any(word in lowered for word in _OOM_WORDS):
        return None
    fields: KernelFields = {"kind": KernelKind.OOM, "message": text.rstrip()}
    if (found := _KILLED.search(text)) is not None:
        fields["pid"], fields["process"] = int(found[1]), found[2]
    elif (found := _OOM_KILL.search(text)) is not None:
        fields["pid"], fields["process"] = int(found[2]), found[1]
    return fields


# python3[51807]: segfault at 7f3a00000008 ip 00007f3a1c2b5e10 sp 00007ffd3c1e0a40 error 4 in libc
_SEGFAULT = re.compile(r"([^\[\]]{1,64})\[(\d{1,10})\]: segfault at ")
# traps: python3[51807] general protection fault ip:7f3a1c2b5e10 sp:7ffd3c1e0a40 error:0 in libc
_TRAP = re.compile(r"traps: ([^\[\]]{1,64})\[(\d{1,10})\] (?:general protection fault|trap )")


def parse_segfault(text: str) -> KernelFields | None:
    """Parse what the kernel says of a process that a fault of its own ended."""
    found = _SEGFAULT.match(text) or _TRAP.match(text)
    if found is None:
        return None
    return {
        "kind": KernelKind.SEGFAULT,
        "message": text.rstrip(),
        "process": found[1],
        "pid": int(found[2]),
    }


# INFO: task cache_mgr_event:620917 blocked for more than 120 seconds.
# INFO: task kworker/7:1:314 blocked in I/O wait for more than 122 seconds.
_HUNG = re.compile(r"INFO: task (.+):(\d{1,10}) blocked\b.* for more than \d+ seconds")


def parse_hung_task(text: str) -> KernelFields | None:
    """Parse the hung-task detector's line."""
    found = _HUNG.match(text)
    if found is None:
        return None
    return {
        "kind": KernelKind.HUNG_TASK,
        "message": text.rstrip(),
        "pid": int(found[2]),
        "process": found[1],
    }


# detected NVSwitch non-fatal error 12028 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 port 61
_SWITCH_ERROR = re.compile(
    rf"detected NVSwitch (fatal|non-fatal) error (\d{{1,9}})\b(?:.*?pci bus id ({_BDF}))?"
    r"(?:.*?\bport (\d{1,4})\b)?",
)


def parse_fabric_manager(message: str) -> KernelFields:
    """Parse the message of a fabric manager line; ``code`` is the SXid it reports."""
    fields: KernelFields = {"kind": KernelKind.FABRIC_MANAGER, "message": message.strip()}
    if (found := _SWITCH_ERROR.search(message)) is not None:
        severity, code, pci, port = found.groups()
        fields["severity"] = severity
        fields["code"] = int(code)
        if pci is not None:
            put_pci(fields, pci)
        if port is not None:
            fields["port"] = fields["link"] = int(port)
    return fields
