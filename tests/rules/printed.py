"""Lines of the kernel log as the driver prints them, and the records that are read from them."""

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from collectors.kernel import parse_stream
from tests.rules.conftest import BUSES, HOST, at

NOBODY = "pid='<unknown>', name=<unknown>, "


def xid(gpu: int, rest: str, driver: str = "NVRM: Xid") -> str:
    return f"{driver} (PCI:0000:{BUSES[gpu]:02x}:00): {rest}"


def read(*lines: tuple[float, str]) -> Iterator[Any]:
    """The records that the kernel collector makes of lines with ISO times."""
    text = [
        f"{at(seconds).isoformat(timespec='microseconds')} {HOST} kernel: {line}\n".encode()
        for seconds, line in lines
    ]
    now = at(max(seconds for seconds, _ in lines))
    for record in parse_stream(text, host=HOST, now=now, file="kern.log"):
        yield replace(record, observed_at=record.at)


#: A fatal error of link 9, by a bit that counts when it comes again.
LINK = f"74, {NOBODY}NVLink: fatal error detected on link 9(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"
DBE = (
    f"48, {NOBODY}An uncorrectable double bit error (DBE) has been detected on GPU in the"
    " framebuffer at physAddr 0x2c4f1a80 partition 9, subpartition 1."
)
REMAP = (
    f"63, {NOBODY}Row Remapper: New row (0x000000002c4f1a80) marked for remapping, reset gpu to"
    " activate."
)
FULL = (
    f"64, {NOBODY}Row Remapper Error: (0x000000002c4f1a80) - All reserved rows for bank are"
    " remapped"
)
CONTAINED = f"94, {NOBODY}Contained: SM (0x1). RST: No, D-RST: No"
LOST = f"79, {NOBODY}GPU has fallen off the bus."
CHANNEL = "45, pid=81234, name=pt_main_thread, Ch 0000000b"
GSP = (
    "119, pid=2190, name=nvidia-smi, Timeout after 45s of waiting for RPC response from GPU3 GSP!"
    " Expected function 76 (GSP_RM_CONTROL) (0x20803032 0x8c)."
)
HALTED = f"62, {NOBODY}023f0f30 00000000 00000000 202c0ffe 202bc4b6 2029bdb6 202bccb8 20297b2a"
FAULT = (
    "31, pid=70011, name=python, channel 0x00000017, intr 00000000. MMU Fault: ENGINE CE2"
    " HUBCLIENT_CE0 faulted @ 0x7e1c_58000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE"
)
EXCEPTION = f"13, {NOBODY}Graphics SM Warp Exception on (GPC 4, TPC 1, SM 0): Out Of Range Address"
AER = (
    "pcieport 0000:c2:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer,"
    " (Receiver ID)"
)


def asks(now: str, was: str = "0x0 (None)") -> str:
    return f"154, GPU recovery action changed from {was} to {now}"


RESET = asks("0x1 (GPU Reset Required)")
DRAIN = asks("0x4 (Drain and Reset)")
REST = "0x00000000 0x00000000 0x00000000 0x00000000 0x00000000"
#: Link 8 down for reason 4 (its own signal) and reason 33 (the other end), before driver 575.
OWN_SIGNAL = f"149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 {REST})"
AT_PEER = f"149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 {REST})"
#: The same reason as drivers since 575 write it.
AT_PEER_V2 = f"149, NETIR_LINK_DOWN Fatal XC0 i0 Link 01 (0x02102091 {REST})"
#: An uncorrectable error in the unit that sends to the link: it leads to 48 and to poison.
UNIT_ECC = "146, TLW_CTRL Nonfatal XC0 i0 Link 03 (0x00006123 0x00000002 0x00000000 0x00000000)"
