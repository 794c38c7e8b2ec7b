"""The grammar of what the NVIDIA driver prints: Xid, SXid and the other NVRM lines.

An ``NVRM: Xid`` line from which no device or no code can be read is an nvrm record, never an xid.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from collectors.kernel.fields import SEVERITIES, KernelFields, put_pci
from evidence.records import KernelKind, Mig

__all__ = ["SXID_DETAIL", "parse_nvrm", "parse_sxid"]

# A member access costs as much as a small regular expression in Python 3.11.
_KIND_XID: Final = KernelKind.XID
_KIND_NVRM: Final = KernelKind.NVRM
_KIND_SXID: Final = KernelKind.SXID
_KIND_UNREADABLE: Final = KernelKind.UNREADABLE

_BDF: Final = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}"

# NVRM: Xid (PCI:0000:4b:00 GPU-I:03 GPU-CI:01): 94, pid=4711, name=python3, Contained: SM (0x1).
# NVRM: Xid (0000:0b:00): 31, Ch 0000000b, engmask 00000120, intr 10000000
# nvidia_dev_xid: Xid (PCI:0000:4b:00.0): 79, GPU has fallen off the bus.
_XID_SHAPE: Final = (
    rf"(?:NVRM|nvidia_dev_xid):\s*Xid\s*\(\s*(?:PCI:\s*)?({_BDF}(?:\.[0-7])?)"
    r"(?:\s+GPU-I:(\d{1,4}))?(?:\s+GPU-CI:(\d{1,4}))?\s*\):\s*(\d{1,9})(?![\w.])[,\s]*(.*)"
)
_XID = re.compile(_XID_SHAPE, re.DOTALL)
_XID_ANY_CASE = re.compile(_XID_SHAPE, re.DOTALL | re.IGNORECASE)
#: What the driver prints instead, from 510 on, when it knows no channel.
_NOBODY: Final = "pid='<unknown>', name=<unknown>, "
# Ch 0000000c caused by previous Xid 145
_CAUSED_BY = re.compile(r"\s*\bcaused by previous Xid (\d{1,9})\s*\Z")

# An uncorrectable double bit error (DBE) ... in the framebuffer at physAddr 0x18f31d80 partition 1
# Contained: FB DED (0x3,0x1) physAddr: 0x0000000102. RST: No, D-RST: No
_PHYSICAL = re.compile(r"physAddr:?\s*(0x[0-9a-fA-F]{1,16})")
# ... at physAddr 0x18f31d80 partition 16, subpartition 3.
# Uncorrectable DRAM error in FBPA 3 subpartition 0 physAddr 0xe9b9107e0
# Disabling ECC single-bit error interrupts in framebuffer at logical partition 3, due to ...
_PARTITION = re.compile(
    r"((?:FBPA \d+|(?:logical )?partition \d+)(?:,? subpartition \d+)?)",
)
# Row Remapper: New row (0x0000000018f31d80) marked for remapping, reset gpu to activate.
# Dynamic Page Retirement: New retired page, reload the driver to activate. (0x00000000001c52f6)
_ROW = re.compile(r"\((0x[0-9a-fA-F]{1,16})\)")
# Contained: CE User Channel (0x9). RST: No, D-RST: No
# Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No
_CONTAINED = re.compile(
    r"(Contained|Uncontained)\b"
    r"(?::\s*([^(.]+?)\s*[(.].*?\bRST:\s*(Yes|No),\s*D-RST:\s*(Yes|No))?",
)
# An uncorrectable ECC error detected (possible firmware handling failure) DRAM:2, LTC:0, MMU:0
_ECC_COUNTS = re.compile(r"\b(\w+:\d+(?:,\s*\w+:\d+)*)")
# GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)
_RECOVERY = re.compile(
    r"changed from (0x[0-9a-fA-F]{1,8})(?: \(([^)]*)\))? to (0x[0-9a-fA-F]{1,8})(?: \(([^)]*)\))?",
)
# Retiring TPC 4 from GPC 2 with a spare from the same GPC.
_TPC = re.compile(r"(TPC \d+ from GPC \d+)")
# Marking Channel 3 in FBPA 2 along with its pair for repair.
_REPAIR = re.compile(r"(Channel \d+ in FBPA \d+)")
# Graphics SM Warp Exception on (GPC 9, TPC 2, SM 0): Out Of Range Address
_SM = re.compile(r"\((GPC \d+, TPC \d+(?:, SM \d+)?)\)")
# MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f92_9a53d000. Fault is of type FAULT_PDE
_MMU = re.compile(r"ENGINE (\w+(?: \w+)?) faulted @ (0x[0-9a-fA-F]+(?:_[0-9a-fA-F]+)?)")
# NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)
# NVLink: Link training failed for link 5(0x2a, x7)
_LINK = re.compile(r"\blink (\d{1,3})\b(?:\s*\(([^)]*)\)?)?", re.IGNORECASE)
# NVLink: Failed to train link 3 to remote PCI:0000:c4:00
_REMOTE = re.compile(rf"remote PCI:\s*({_BDF}(?:\.[0-7])?)")
# RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008 0x00000000 0x00000000)
# NETIR_LINK_EVT  Fatal   XC 1 i 2 Link -1 [0x000fe406 0x00000000]
_NVLINK5 = re.compile(
    r"(\w[\w/]*)\s+(Fatal|Nonfatal|Non-fatal)\s+XC\s*\d+\s+i\s*\d+\s+Link\s+(-?\d{1,3})"
    r"(?:\s*[(\[]([^)\]]*))?",
)
_WORD: Final = len("0x00000000")
#: pid_t is 32 bits.
_PID_DIGITS: Final = 10
# Timeout after 6s of waiting for RPC response from GPU4 GSP! Expected function 76 (GSP_RM_CONTROL)
_RPC = re.compile(r"Expected function \d+ \((\w+)\)")


def _registers(text: str) -> tuple[int, ...]:
    """The hex words among ``text``'s, up to 32 bits each as the hardware's registers are."""
    words = text.replace(",", " ").split()
    try:
        return tuple([int(word, 16) for word in words if word[:2] == "0x" and len(word) <= _WORD])
    except ValueError:  # a line cut in the middle of a word, or an invented one
        return ()


def _row(message: str, fields: KernelFields) -> None:
    _memory(message, fields)
    if (found := _ROW.search(message)) is not None:
        fields["address"] = found[1].lower()


def _memory(message: str, fields: KernelFields) -> None:
    if (found := _PHYSICAL.search(message)) is not None:
        fields["address"] = found[1].lower()
    if (found := _PARTITION.search(message)) is not None:
        fields["unit"] = found[1]


def _containment(message: str, fields: KernelFields) -> None:
    found = _CONTAINED.match(message)
    if found is None:
        return
    word, unit, reset, drain_reset = found.groups()
    fields["severity"] = SEVERITIES[word.lower()]
    if reset is not None:
        fields["unit"] = unit
        fields["reset"] = reset == "Yes"
        fields["drain_reset"] = drain_reset == "Yes"
    if (found := _PHYSICAL.search(message)) is not None:
        fields["address"] = found[1].lower()


def _recovery(message: str, fields: KernelFields) -> None:
    if (found := _RECOVERY.search(message)) is not None:
        old_number, old, number, new = found.groups()
        fields["recovery_action_from"] = old or old_number
        fields["recovery_action"] = new or number


def _nvlink(message: str, fields: KernelFields) -> None:
    if (found := _LINK.search(message)) is not None:
        fields["link"] = int(found[1])
        if found[2] is not None and (registers := _registers(found[2])):
            fields["registers"] = registers
    if (found := _REMOTE.search(message)) is not None:
        peer: KernelFields = {}
        put_pci(peer, found[1])
        fields["peer_pci"] = peer["pci"]


def _nvlink5(message: str, fields: KernelFields) -> None:
    found = _NVLINK5.match(message)
    if found is None:
        return
    unit, severity, link, registers = found.groups()
    fields["unit"] = unit
    fields["severity"] = SEVERITIES[severity.lower()]
    fields["link"] = int(link)
    if registers is not None:
        fields["registers"] = _registers(registers)


def _mmu(message: str, fields: KernelFields) -> None:
    if (found := _MMU.search(message)) is not None:
        fields["unit"] = found[1]
        fields["address"] = found[2].replace("_", "").lower()
    else:
        _unit(_SM)(message, fields)


def _unit(pattern: re.Pattern[str]) -> Callable[[str, KernelFields], None]:
    def fill(message: str, fields: KernelFields) -> None:
        if (found := pattern.search(message)) is not None:
            fields["unit"] = found[1]

    return fill


#: What the message of one Xid code tells beyond its text; codes without an entry tell nothing.
_DETAILS: dict[int, Callable[[str, KernelFields], None]] = {
    13: _unit(_SM),
    31: _mmu,
    48: _memory,
    63: _row,
    64: _row,
    74: _nvlink,
    92: _memory,
    94: _containment,
    95: _containment,
    119: _unit(_RPC),
    136: _nvlink,
    140: _unit(_ECC_COUNTS),
    154: _recovery,
    156: _unit(_TPC),
    157: _unit(_TPC),
    160: _unit(_REPAIR),
    171: _memory,
    172: _memory,
} | dict.fromkeys(range(144, 151), _nvlink5)


def _who(rest: str, fields: KernelFields) -> str:
    """Read pid and name off the beginning of ``rest`` and return what follows them.

    The pid is quoted where it is unknown; a name ends at the first comma with a blank.
    """
    if rest.startswith(_NOBODY):
        return rest[len(_NOBODY) :]
    if rest.startswith("pid="):
        pid, _, rest = rest[4:].partition(", ")
        pid = pid.rstrip(", ")
        # pid=0 and <unknown> both say that the driver knew no process.
        if pid.isdecimal() and pid.isascii() and len(pid) <= _PID_DIGITS and pid != "0":
            fields["pid"] = int(pid)
    if rest.startswith("name="):
        name, _, rest = rest[5:].partition(", ")
        name = name.rstrip(", ")
        if name and name != "<unknown>":
            fields["process"] = name
    return rest


def _head(found: re.Match[str]) -> KernelFields:
    pci, gi, ci, code, _ = found.groups()
    fields: KernelFields = {"kind": _KIND_XID, "code": int(code)}
    put_pci(fields, pci)
    if gi is not None:
        fields["mig"] = Mig(int(gi), None if ci is None else int(ci))
    return fields


@lru_cache(maxsize=4096)
def _known_head(head: str) -> KernelFields | None:
    """The fields of ``NVRM: Xid (PCI:0000:6a:00): 94``: in a storm only what follows differs."""
    found = _XID.match(head)
    return _head(found) if found is not None and not found[5] else None


def _parse_xid(text: str) -> KernelFields | None:
    comma = text.find(",", 20, 90)
    known = _known_head(text[:comma]) if comma > 0 else None
    if known is not None:
        fields = known.copy()
        message = text[comma + 1 :].lstrip(", \t\n")
    else:
        found = _XID.search(text) or _XID_ANY_CASE.search(text)
        if found is None:
            return None
        fields = _head(found)
        message = found[5]
    if message[:4] == "pid=" or message[:5] == "name=":
        message = _who(message, fields)
    if "caused by" in message and (cause := _CAUSED_BY.search(message)) is not None:
        fields["caused_by"] = int(cause[1])
        message = message[: cause.start()]
    message = message.strip()
    if message:
        fields["message"] = message
        detail = _DETAILS.get(fields["code"])
        if detail is not None:
            detail(message, fields)
    return fields


# GPU at PCI:0000:9b:00: GPU-1b2c3d4e-0001-0002-0003-0123456789ab
_BANNER = re.compile(rf"GPU at PCI:({_BDF}(?:\.[0-7])?): (GPU-[0-9a-fA-F-]{{8,64}})")
# GPU Board Serial Number: 1654321098765
_SERIAL = re.compile(r"GPU Board Serial Number:\s*(\S{1,64})")
# GPU 0000:3b:00.0: GPU serial number is 1654321098765.
# GPU 0000:3b:00.0: GPU is on Board 0321098765432.
_BOARD = re.compile(r"GPU (?:serial number is|is on Board)\s+(\S*?)\s*\.?\s*\Z")
# GPU 0000:3b:00.0: GPU has fallen off the bus.
# GPU 3b:00.0: GPU has fallen off the bus.
_GPU = re.compile(
    r"(?:The NVIDIA )?GPU ((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\b:?\s*",
)
# GPU 0000:3b:00.0: RmInitAdapter failed! (0x62:0x0:2477)
_RM_INIT = re.compile(r"RmInitAdapter failed! \(0x([0-9a-f]{1,8}):0x([0-9a-f]{1,8}):(\d{1,9})\)")
# Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00 (printing 1 of every 30).
_ANYWHERE = re.compile(rf"PCI:({_BDF}(?:\.[0-7])?)")
# loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build  (dvs-builder@...)
_LOADING = re.compile(r"loading NVIDIA UNIX .*?\s(\d{3,4}\.\d{1,3}(?:\.\d{1,3})?)\s")
# Xid critical error: 79, details follow
_XID_WITHOUT_DEVICE = re.compile(r"Xid [a-z ]*error: (\d{1,9})\b")
_XID_FALLEN_OFF = 79
# The NVIDIA GPU 0000:b3:00.0\n               NVRM: (PCI ID: 10de:26b5) installed in this system has
_CONTINUED = re.compile(r"\s*\n\s*(?:NVRM:)?\s*")


def parse_nvrm(text: str) -> KernelFields:
    """Parse a message that holds ``NVRM:``, or one of the driver's other names for an Xid.

    A message of several lines that holds an Xid is that Xid.
    """
    if "#012" in text:  # rsyslog's spelling of a line break
        text = text.replace("#012", "\n")
    if "Xid" in text or "xid" in text:
        xid = _parse_xid(text)
        if xid is not None:
            return xid
    message = text.strip()
    if message[:5].upper() == "NVRM:":
        message = message[5:].strip()
    if "\n" in message:
        message = _CONTINUED.sub(" ", message)
    fields: KernelFields = {"kind": _KIND_NVRM, "message": message}
    _nvrm_line(message, fields)
    return fields


def _nvrm_line(message: str, fields: KernelFields) -> None:
    if message.startswith("Xid"):
        # A code without its device accuses nobody, but the number may be worth reading.
        if (found := _XID_WITHOUT_DEVICE.match(message)) is not None:
            fields["code"] = int(found[1])
    elif message.startswith(("GPU ", "The NVIDIA GPU ")):
        _gpu_line(message, fields)
    elif (found := _LOADING.match(message)) is not None:
        fields["driver"] = found[1]
    elif (found := _ANYWHERE.search(message)) is not None:
        put_pci(fields, found[1])
        fields["rate_limited"] = message.startswith("Rate limiting")


def _gpu_line(message: str, fields: KernelFields) -> None:
    if (found := _BANNER.match(message)) is not None:
        put_pci(fields, found[1])
        fields["uuid"] = found[2]
    elif (found := _SERIAL.match(message)) is not None:
        fields["serial"] = found[1]
    elif (found := _GPU.match(message)) is not None:
        address = found[1]
        put_pci(fields, address if address.count(":") > 1 else f"0000:{address}")
        rest = message[found.end() :]
        if rest.startswith("GPU has fallen off the bus"):
            fields["code"] = _XID_FALLEN_OFF  # the twin of that Xid, printed beside it or alone
        elif (found := _RM_INIT.match(rest)) is not None:
            fields["unit"] = "RmInitAdapter"
            fields["registers"] = (int(found[1], 16), int(found[2], 16), int(found[3]))
        elif (found := _BOARD.match(rest)) is not None and found[1]:
            fields["serial"] = found[1]
    elif (found := _ANYWHERE.search(message)) is not None:
        put_pci(fields, found[1])


# nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
# nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error
_SXID = re.compile(
    rf"(nvidia-\w+):\s+SXid\s+\((?:PCI:)?({_BDF}(?:\.[0-7])?)\):\s*(\d{{1,9}})(?![\w.])[,\s]*(.*)",
    re.DOTALL,
)
# Fatal, Link 30 LTSSM Fault Up
_SXID_EVENT = re.compile(r"(Fatal|Non-fatal|Correctable), ")
# Severity 1 Engine instance 30 Sub-engine instance 00
# Data {0x50610002, 0x10100030, 0x00000000}
SXID_DETAIL: Final = re.compile(
    r"(?:Severity \d+ Engine instance (\d+) Sub-engine instance (\d+)|Data \{([^}]*)\}?)"
)
_SXID_LINK = re.compile(r"\bLink (\d{1,3})\b")


def parse_sxid(text: str) -> KernelFields:
    """Parse a message that holds ``SXid``; one whose device or code is not there is unreadable.

    Only a line with the word Fatal, Non-fatal or Correctable is an event and has a ``severity``;
    the lines that follow it (`SXID_DETAIL`) have none, so that an event is not counted thrice.
    """
    found = _SXID.search(text)
    if found is None:
        return {"kind": _KIND_UNREADABLE, "message": f"an SXid without device or code: {text}"}
    device, pci, code, message = found.groups()
    fields: KernelFields = {"kind": _KIND_SXID, "code": int(code), "device": device}
    put_pci(fields, pci)
    message = message.strip()
    if not message:
        return fields
    fields["message"] = message
    if (event := _SXID_EVENT.match(message)) is not None:
        fields["severity"] = SEVERITIES[event[1].lower()]
    for line in message.split("\n"):
        if (detail := SXID_DETAIL.search(line)) is not None:
            engine, part, data = detail.groups()
            if data is None:
                fields["unit"] = f"engine {engine}.{part}"
            else:
                fields["registers"] = fields.get("registers", ()) + _registers(data)
    if (link := _SXID_LINK.search(message)) is not None:
        fields["link"] = int(link[1])
    return fields
