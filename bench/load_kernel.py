"""Kernel-log lines and records as nodes print them, drawn from a seed.

The noise is what a healthy node says all day; the Xid lines are of many codes and drivers, each
with its own channel or address, so that no two are equal and none is merged into a storm.
"""

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

from collectors.kernel import parse_stream
from evidence.records import KernelRecord

__all__ = ["BEGAN", "BUSES", "chain", "fallen_off", "messages", "noise", "records", "xids"]

BEGAN = datetime(2026, 10, 5, 6, 30, tzinfo=UTC)
BUSES = (0x18, 0x2A, 0x3A, 0x5D, 0x9A, 0xAB, 0xBA, 0xDB)

_NOISE = (
    "veth{a:07x}: entered promiscuous mode",
    "docker0: port {b}(veth{a:07x}) entered blocking state",
    "IPv6: ADDRCONF(NETDEV_CHANGE): eth{b}: link becomes ready",
    "perf: interrupt took too long ({a} > {b}), lowering perf_event_max_sample_rate to 25000",
    'audit: type=1400 audit({a}.{b}:41): apparmor="STATUS" operation="profile_load" pid={a}',
    "XFS (nvme{b}n1p1): Mounting V5 Filesystem {a:08x}-77aa-4e0c",
    "EXT4-fs (dm-{b}): mounted filesystem with ordered data mode. Quota mode: none.",
    "Lustre: scratch-OST{b:04x}-osc: Connection restored to 10.4.{b}.17@o2ib (at 10.4.{b}.17@o2ib)",
    "LNet: {a}:0:(lib-move.c:{b}:lnet_parse()) dropped a late reply",
    "nfs: server store{b} OK",
    "systemd-journald[{b}]: Data hash table of system.journal has a fill level at 75.0 ({a} items)",
    "usb 1-{b}: new high-speed USB device number {b} using xhci_hcd",
    "nvme nvme{b}: 32/0/0 default/read/poll queues",
    "python3[{a}]: segfault at 0 ip 00007f{a:08x} sp 00007ffd{b:08x} error 4 in libtorch.so",
    "cgroup: fork rejected by pids controller in /system.slice/slurmstepd.scope/job_{a}",
    "i40e 0000:{b:02x}:00.1 ens{b}f1: NIC Link is Up, 25 Gbps Full Duplex, Flow Control: None",
    "TCP: request_sock_TCP: Possible SYN flooding on port {b}. Sending cookies.",
    "beegfs: enabling unsafe global rkey",
    "IPMI message handler: BMC returned incorrect response, expected netfn 7 cmd {b}",
    "workqueue: drain_vmap_area_work hogged CPU for >10000us {b} times, consider WQ_UNBOUND",
)  # fmt: skip

_UNKNOWN = "pid='<unknown>', name=<unknown>"
_XIDS = (
    "48, " + _UNKNOWN + ", An uncorrectable double bit error (DBE) has been detected on GPU in the "
    "framebuffer at physAddr {address:#x} partition {b}, subpartition 1.",
    "63, " + _UNKNOWN + ", Row Remapper: New row ({address:#018x}) marked for remapping, "
    "reset gpu to activate.",
    "94, " + _UNKNOWN + ", Contained: SM (0x{b:x}). RST: No, D-RST: No",
    "94, pid={a}, name=python3.11, Ch {b:08x}",
    "95, pid={a}, name=python3.11, Uncontained: LTC TAG (0x{b:x}, 0x1). RST: Yes, D-RST: No",
    "13, pid={a}, name=python3.11, Graphics SM Warp Exception on (GPC {b}, TPC 2, SM 0): "
    "Out Of Range Address",
    "31, pid={a}, name=python3.11, Ch {b:08x}, intr 00000000. MMU Fault: ENGINE GRAPHICS "
    "GPCCLIENT_T1_{b} faulted @ 0x7f92_{a:08x}. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    "43, pid={a}, name=python3.11, Ch {b:08x}",
    "45, pid={a}, name=python3.11, Ch {b:08x}",
    "74, pid={a}, name=python3.11, NVLink: fatal error detected on link {b}(0x0, 0x0, 0x10000, "
    "0x0, 0x0, 0x0, 0x0)",
    "79, " + _UNKNOWN + ", GPU has fallen off the bus.",
    "119, pid={a}, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU{b} GSP! "
    "Expected function 76 (GSP_RM_CONTROL) (0x20800a4c 0x{b:x}).",
    "145, " + _UNKNOWN + ", RLW_SRC_TRACK  Nonfatal XC1 i0 Link {b} (0x{a:08x} 0x00000008 "
    "0x00000000 0x00000000 0x00000000 0x00000000)",
    "154, " + _UNKNOWN + ", GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
)


def _uptime(step: int, _draw: random.Random) -> str:
    return f"[{41_000 + step * 0.013:12.6f}] "


def _iso(step: int, _draw: random.Random) -> str:
    at = BEGAN + timedelta(milliseconds=13 * step)
    return f"{at:%Y-%m-%dT%H:%M:%S},{at.microsecond:06d}+00:00 "


def _syslog(step: int, draw: random.Random) -> str:
    at = BEGAN + timedelta(milliseconds=13 * step)
    return f"{at:%b} {at.day:2d} {at:%H:%M:%S} hgx{draw.randrange(100, 140)} kernel: "


#: The line prefixes of dmesg, dmesg --time-format=iso and kern.log.
_PREFIXES: tuple[Callable[[int, random.Random], str], ...] = (_uptime, _iso, _syslog)


def messages(shapes: str, count: int, seed: int) -> list[str]:
    """Messages without a line prefix; ``shapes`` is ``noise`` or ``xid``."""
    draw = random.Random(seed)
    if shapes == "noise":
        return [
            _NOISE[step % len(_NOISE)].format(a=draw.randrange(1 << 20), b=draw.randrange(64))
            for step in range(count)
        ]
    return [
        f"NVRM: Xid (PCI:0000:{draw.choice(BUSES):02x}:00): "
        + _XIDS[step % len(_XIDS)].format(
            a=draw.randrange(1 << 20), b=draw.randrange(18), address=draw.randrange(1 << 37)
        )
        for step in range(count)
    ]


def _lines(shapes: str, count: int, seed: int) -> list[bytes]:
    draw = random.Random(seed)
    each = -(-count // len(_PREFIXES))
    return [
        (_PREFIXES[step // each](step, draw) + message).encode() + b"\n"
        for step, message in enumerate(messages(shapes, count, seed))
    ]


def noise(count: int, seed: int = 1) -> list[bytes]:
    """Lines of no interest, a third behind each of the three common line prefixes."""
    return _lines("noise", count, seed)


def xids(count: int, seed: int = 2) -> list[bytes]:
    """Xid lines of fourteen shapes, a third behind each of the three common line prefixes."""
    return _lines("xid", count, seed)


def records(lines: list[bytes], host: str, *, keep_other: bool = True) -> list[KernelRecord]:
    """The records of lines, made by the real parser as if read on ``host``."""
    return list(
        parse_stream(
            lines, host=host, now=BEGAN + timedelta(hours=1), file="kern.log", keep_other=keep_other
        )
    )


def chain(host: str, bus: int, at: datetime, seed: int) -> list[KernelRecord]:
    """One double-bit error as an H100 prints it: 48, 63 and nine 94 lines within 168 ms."""
    draw = random.Random(seed)
    address, pid = draw.randrange(1 << 32, 1 << 37), draw.randrange(1 << 20)
    told = [
        (0, _XIDS[0].format(address=address, b=2)),
        (28, _XIDS[1].format(address=address)),
        (36, _XIDS[2].format(b=1)),
        *((51 + 14 * n, _XIDS[3].format(a=pid, b=8 + n)) for n in range(8)),
    ]
    return list(_told(host, bus, at, told))


def fallen_off(host: str, bus: int, at: datetime) -> KernelRecord:
    """The one line of a card that left the bus (Xid 79): a hard fact."""
    return next(_told(host, bus, at, [(0, _XIDS[10])]))


def _told(host: str, bus: int, at: datetime, told: list[tuple[int, str]]) -> Iterator[KernelRecord]:
    lines = []
    for after_ms, text in told:
        stamp = at + timedelta(milliseconds=after_ms)
        lines.append(
            f"{stamp:%Y-%m-%dT%H:%M:%S},{stamp.microsecond:06d}+00:00 "
            f"NVRM: Xid (PCI:0000:{bus:02x}:00): {text}".encode()
        )
    yield from parse_stream(lines, host=host, now=at + timedelta(seconds=1), file="kern.log")
