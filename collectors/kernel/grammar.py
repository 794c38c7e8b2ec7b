"""Says what one kernel message is: by its first word, then by the grammar that word belongs to.

Nearly every line of a kernel log is of no interest; the order of the checks below is for those.
"""

import re
from collections.abc import Callable

from collectors.kernel.fields import KernelFields
from collectors.kernel.host import (
    parse_edac,
    parse_hung_task,
    parse_infiniband,
    parse_mce,
    parse_memory,
    parse_netdev_watchdog,
    parse_oom,
    parse_pci_device,
    parse_peermem,
    parse_segfault,
)
from collectors.kernel.nvidia import parse_nvrm, parse_sxid
from evidence.records import KernelKind

__all__ = ["FIRST_WORDS", "LONGEST_MESSAGE", "of_interest", "parse_message"]

#: Characters of a message that are looked at; the kernel's own limit is 2048 (PRINTK_MESSAGE_MAX).
LONGEST_MESSAGE = 4096

_Parse = Callable[[str], KernelFields | None]

#: The first word of a message -> the grammar that reads it.
_BY_FIRST_WORD: dict[str, _Parse] = {
    "NVRM:": parse_nvrm,
    "nvrm:": parse_nvrm,
    "EDAC": parse_edac,
    "INFO:": parse_hung_task,
    "Memory": parse_memory,
    "NETDEV": parse_netdev_watchdog,
    "Out": parse_oom,
    "[Hardware": parse_mce,
    "infiniband": parse_infiniband,
    "mce:": parse_mce,
    "nvidia-peermem": parse_peermem,
    "nvidia-peermem:": parse_peermem,
    "nvidia_peermem": parse_peermem,
    "nvidia_peermem:": parse_peermem,
    "oom_reaper:": parse_oom,
    "traps:": parse_segfault,
}
FIRST_WORDS = frozenset(_BY_FIRST_WORD)
# dcgm-monitor[4711]: saw "NVRM: Xid (PCI:0000:3b:00): 79, ..." (a process quotes the kernel)
_USER_PROCESS = re.compile(r"[\w./@-]+\[\d+\]: ")
# gpu7 nodecheck: NVRM: Xid (PCI:0000:3b:00): 79, ...  (`logger -t nodecheck`, rsyslog's ISO form)
# gpu7 nodecheck: dmesg has "NVRM: Xid (PCI:0000:3b:00): 79, ..."
_QUOTED = re.compile(r"""(?:^|\s)(?!(?:kernel|vmunix|klogd|nvrm):)[A-Za-z][\w./@-]*: |["'`]\s*\Z""")


def of_interest(text: str) -> KernelFields | None:
    """Parse one kernel message (its line prefix already taken off); None for one of no interest."""
    if len(text) > LONGEST_MESSAGE:
        text = text[:LONGEST_MESSAGE]
    blank = text.find(" ")
    first = text[:blank]
    parse = _BY_FIRST_WORD.get(first)
    if parse is not None:
        return parse(text)
    # `driver 0000:bb:dd.f: ...`, the domain being four digits, or five under a VMD bridge
    if ":" in text[blank + 5 : blank + 7] and (fields := parse_pci_device(text)) is not None:
        return fields
    if "Xid" in text or "NVRM:" in text:
        return _out_of_place(text)
    if "[Hardware" in first:
        return parse_mce(text)
    if "oom-kill" in text:
        return parse_oom(text)
    return parse_segfault(text) if "]: segfault at " in text else None


def _out_of_place(text: str) -> KernelFields | None:
    """A driver's words behind a prefix nobody knows; not those that a process quotes."""
    if _USER_PROCESS.match(text):
        return None
    if "SXid" in text:
        return parse_sxid(text) if "nvidia-" in text else None
    start = text.find("NVRM:")
    if start < 0:
        start = text.find("nvidia_dev_xid: ")
    if start < 0 or _QUOTED.search(text[:start]):
        return None
    return parse_nvrm(text[start:])


def parse_message(text: str) -> KernelFields:
    """Parse one kernel message, its line prefix (time, host, ``kernel:``) already taken off.

    Returns the keyword arguments of a `KernelRecord` that the message itself tells, always with
    ``kind``; ``message`` is the text after the fields that were read, absent when there is none.
    Never raises; what no grammar knows is of kind other.
    """
    fields = of_interest(text.lstrip())
    if fields is None:
        fields = {"kind": KernelKind.OTHER}
        if message := text.strip():
            fields["message"] = message
    return fields
