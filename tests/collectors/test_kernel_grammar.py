"""One kernel message, no prefix: every shape, with all the fields it must give."""

# ruff: noqa: E501 (log lines are quoted whole)

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.kernel import parse_message
from evidence.records import KernelKind, Mig

_WHO = {"pid": 70111, "process": "train.py"}


def _xid(code: int, message: str | None = None, **more: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"kind": KernelKind.XID, "code": code, "pci": "0000:6a:00", **more}
    if message is not None:
        fields["message"] = message
    return fields


_A = "NVRM: Xid (PCI:0000:6a:00): "
_DBE = (
    "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at"
    " physAddr 0x2AB1c3e0 partition 11, subpartition 1."
)
_RPC = (
    "Timeout after 45s of waiting for RPC response from GPU3 GSP! Expected function 76"
    " (GSP_RM_CONTROL) sequence 18 (0x20803032 0x58c)."
)
_MMU = (
    "Ch 00000012, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_3 faulted @"
    " 0x7e10_4C000000. Fault is of type FAULT_PTE ACCESS_TYPE_VIRT_READ"
)
_CE = (
    "channel 0x01000031, intr 00000000. MMU Fault: ENGINE CE2 HUBCLIENT_CE0 faulted @"
    " 0x6f1c_38000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE"
)

_XIDS: list[tuple[str, dict[str, Any]]] = [
    # shapes of the line, old drivers first
    (
        "NVRM: Xid (0000:6a:00): 31, Ch 0000000b, engmask 00000120, intr 10000000",
        _xid(31, "Ch 0000000b, engmask 00000120, intr 10000000"),
    ),
    (
        "NVRM: Xid (PCI:0000:6a:00): 32, Channel ID 00000000 intr 00004000",
        _xid(32, "Channel ID 00000000 intr 00004000"),
    ),
    (_A + "79, pid=0, GPU has fallen off the bus.", _xid(79, "GPU has fallen off the bus.")),
    (
        _A + "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        _xid(79, "GPU has fallen off the bus."),
    ),
    (_A + "79, GPU has fallen off the bus", _xid(79, "GPU has fallen off the bus")),
    (_A + "46", _xid(46)),
    (_A + "46,", _xid(46)),
    (_A + "31, pid=XXX", _xid(31)),
    (_A + "79, pid=4410", _xid(79, pid=4410)),
    (_A + "8, pid=4410, name=idle_check", _xid(8, pid=4410, process="idle_check")),
    (_A + "43, pid=70111, name=train.py, Ch 00000009", _xid(43, "Ch 00000009", **_WHO)),
    (
        _A + "45, pid=812, name=KMS thread, Ch 0000000a",
        _xid(45, "Ch 0000000a", pid=812, process="KMS thread"),
    ),
    (
        _A + "45, pid=812, name=ray::Worker,2, channel 0x0000000a",
        _xid(45, "channel 0x0000000a", pid=812, process="ray::Worker,2"),
    ),
    (
        _A + "119, pid=99, name=nvc:[driver], Timeout waiting for RPC",
        _xid(119, "Timeout waiting for RPC", pid=99, process="nvc:[driver]"),
    ),
    (
        _A + "45, pid=70111, name=train.py, Ch 0000000c caused by previous Xid 145",
        _xid(45, "Ch 0000000c", caused_by=145, **_WHO),
    ),
    ("NVRM: Xid (PCI:0000:6A:00.0): 79, pid=1", _xid(79, pid=1, function=0)),
    ("nvrm:  xid ( pci:0000:6a:00 ):  13, x", _xid(13, "x")),
    ("NVRM: Xid (PCI:10001:02:1c): 999999999", _xid(999999999) | {"pci": "10001:02:1c"}),
    ("nvidia_dev_xid: Xid (PCI:0000:6a:00.0): 48, x", _xid(48, "x", function=0)),
    # MIG
    (
        "NVRM: Xid (PCI:0000:6a:00 GPU-I:05): 94, pid=70111, name=train.py, Contained: CE User"
        " Channel (0x9). RST: No, D-RST: No",
        _xid(
            94,
            "Contained: CE User Channel (0x9). RST: No, D-RST: No",
            mig=Mig(5),
            severity="contained",
            unit="CE User Channel",
            reset=False,
            drain_reset=False,
            **_WHO,
        ),
    ),
    (
        "NVRM: Xid (PCI:0000:6a:00 GPU-I:03 GPU-CI:01): 13, Graphics Exception",
        _xid(13, "Graphics Exception", mig=Mig(3, 1)),
    ),
    # memory
    (
        _A + "48, pid='<unknown>', name=<unknown>, " + _DBE,
        _xid(48, _DBE, address="0x2ab1c3e0", unit="partition 11, subpartition 1"),
    ),
    (_A + "48, pid=70111, name=train.py, channel 0x00000002", _xid(48, "channel 0x00000002", **_WHO)),
    (
        _A + "63, Row Remapper: New row (0x000000002ab1c3e0) marked for remapping, reset gpu to"
        " activate.",
        _xid(
            63,
            "Row Remapper: New row (0x000000002ab1c3e0) marked for remapping, reset gpu to"
            " activate.",
            address="0x000000002ab1c3e0",
        ),
    ),
    (
        _A + "64, Row Remapper Error: (0x00000005d28c03a0) - All reserved rows for bank are remapped",
        _xid(
            64,
            "Row Remapper Error: (0x00000005d28c03a0) - All reserved rows for bank are remapped",
            address="0x00000005d28c03a0",
        ),
    ),
    (
        _A + "63, Dynamic Page Retirement: New retired page, reload the driver to activate."
        " (0x00000000001c52f6)",
        _xid(
            63,
            "Dynamic Page Retirement: New retired page, reload the driver to activate."
            " (0x00000000001c52f6)",
            address="0x00000000001c52f6",
        ),
    ),
    (
        _A + "92, Disabling ECC single-bit error interrupts in framebuffer at logical partition 3,"
        " due to high error rate",
        _xid(
            92,
            "Disabling ECC single-bit error interrupts in framebuffer at logical partition 3,"
            " due to high error rate",
            unit="logical partition 3",
        ),
    ),
    (
        _A + "95, pid=7062, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No",
        _xid(
            95,
            "Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No",
            pid=7062,
            severity="uncontained",
            unit="LTC TAG",
            reset=True,
            drain_reset=False,
        ),
    ),
    (
        _A + "94, Contained: FB DED (0x3,0x1) physAddr: 0x0012ab40. RST: No, D-RST: Yes",
        _xid(
            94,
            "Contained: FB DED (0x3,0x1) physAddr: 0x0012ab40. RST: No, D-RST: Yes",
            severity="contained",
            unit="FB DED",
            address="0x0012ab40",
            reset=False,
            drain_reset=True,
        ),
    ),
    (
        _A + "94, pid=70111, name=train.py, Contained ECC error.",
        _xid(94, "Contained ECC error.", severity="contained", **_WHO),
    ),
    (_A + "94, pid=70111, name=train.py, Ch 00000008", _xid(94, "Ch 00000008", **_WHO)),
    (
        _A + "140, An uncorrectable ECC error detected (possible firmware handling failure)"
        " DRAM:2, LTC:0, MMU:0, PCIE:0",
        _xid(
            140,
            "An uncorrectable ECC error detected (possible firmware handling failure)"
            " DRAM:2, LTC:0, MMU:0, PCIE:0",
            unit="DRAM:2, LTC:0, MMU:0, PCIE:0",
        ),
    ),
    (
        _A + "171, GDDR, Uncorrectable DRAM error in FBPA 2 subpartition 1 physAddr 0xe9b9107e0",
        _xid(
            171,
            "GDDR, Uncorrectable DRAM error in FBPA 2 subpartition 1 physAddr 0xe9b9107e0",
            unit="FBPA 2 subpartition 1",
            address="0xe9b9107e0",
        ),
    ),
    (
        _A + "156, Retiring TPC 4 from GPC 2 with a spare from the same GPC.",
        _xid(
            156, "Retiring TPC 4 from GPC 2 with a spare from the same GPC.", unit="TPC 4 from GPC 2"
        ),
    ),
    (
        _A + "157, Unable to retire TPC 7 from GPC 3 in MIG mode as there are no spare TPCs.",
        _xid(
            157,
            "Unable to retire TPC 7 from GPC 3 in MIG mode as there are no spare TPCs.",
            unit="TPC 7 from GPC 3",
        ),
    ),
    (
        _A + "160, Marking Channel 3 in FBPA 2 along with its pair for repair.",
        _xid(
            160,
            "Marking Channel 3 in FBPA 2 along with its pair for repair.",
            unit="Channel 3 in FBPA 2",
        ),
    ),
    # applications
    (
        _A + "13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 7, TPC 1,"
        " SM 0): Out Of Range Address",
        _xid(
            13,
            "Graphics SM Warp Exception on (GPC 7, TPC 1, SM 0): Out Of Range Address",
            unit="GPC 7, TPC 1, SM 0",
        ),
    ),
    (
        _A + "31, pid=70111, name=train.py, " + _MMU,
        _xid(31, _MMU, unit="GRAPHICS GPCCLIENT_T1_3", address="0x7e104c000000", **_WHO),
    ),
    (
        _A + "31, pid=70111, name=train.py, " + _CE,
        _xid(31, _CE, unit="CE2 HUBCLIENT_CE0", address="0x6f1c38000000", **_WHO),
    ),
    # firmware
    (_A + "119, pid=99, name=nvidia-smi, " + _RPC, _xid(119, _RPC, pid=99, process="nvidia-smi", unit="GSP_RM_CONTROL")),
    (
        _A + "120, pid=99, name=Xorg, GSP task exception: supervisor timer interrupt (cause:0x8)",
        _xid(
            120,
            "GSP task exception: supervisor timer interrupt (cause:0x8)",
            pid=99,
            process="Xorg",
        ),
    ),
    # NVLink
    (
        _A + "74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14(0x0, 0x0,"
        " 0x10000, 0x0, 0x0, 0x0, 0x0)",
        _xid(
            74,
            "NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
            link=14,
            registers=(0, 0, 0x10000, 0, 0, 0, 0),
        ),
    ),
    (
        _A + "74, NVLink: Failed to train link 3 to remote PCI:0000:C4:00",
        _xid(
            74,
            "NVLink: Failed to train link 3 to remote PCI:0000:C4:00",
            link=3,
            peer_pci="0000:c4:00",
        ),
    ),
    (
        _A + "136, NVLink: Link training failed for link 5(0x2a, x7)",
        _xid(136, "NVLink: Link training failed for link 5(0x2a, x7)", link=5, registers=(0x2A,)),
    ),
    (
        _A + "149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000 0x00000001)",
        _xid(
            149,
            "NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000 0x00000001)",
            unit="NETIR_LINK_EVT",
            severity="fatal",
            link=9,
            registers=(0x025525C6, 0, 1),
        ),
    ),
    (
        _A + "149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000)",
        _xid(
            149,
            "NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000)",
            unit="NETIR",
            severity="fatal",
            link=-1,
            registers=(0x000FE406, 0),
        ),
    ),
    (
        _A + "145, pid=5, name=ray::W, RLW_RXPIPE Nonfatal XC1 i0 Link 13 (0x0409a0c2 0x00000008",
        _xid(
            145,
            "RLW_RXPIPE Nonfatal XC1 i0 Link 13 (0x0409a0c2 0x00000008",
            pid=5,
            process="ray::W",
            unit="RLW_RXPIPE",
            severity="non-fatal",
            link=13,
            registers=(0x0409A0C2, 8),
        ),
    ),
    (
        _A + "146, TLW_RX/TLW_RX_PIPE0 Fatal XC 1 i 2 Link 01 [0x0000000a 0x00000004]",
        _xid(
            146,
            "TLW_RX/TLW_RX_PIPE0 Fatal XC 1 i 2 Link 01 [0x0000000a 0x00000004]",
            unit="TLW_RX/TLW_RX_PIPE0",
            severity="fatal",
            link=1,
            registers=(10, 4),
        ),
    ),
    # the driver's verdict
    (
        _A + "154, GPU recovery action changed from 0x4 (Drain and Reset) to 0x1 (GPU Reset Required)",
        _xid(
            154,
            "GPU recovery action changed from 0x4 (Drain and Reset) to 0x1 (GPU Reset Required)",
            recovery_action_from="Drain and Reset",
            recovery_action="GPU Reset Required",
        ),
    ),
    (
        _A + "154, GPU recovery action changed from 0x0 to 0x9",
        _xid(
            154,
            "GPU recovery action changed from 0x0 to 0x9",
            recovery_action_from="0x0",
            recovery_action="0x9",
        ),
    ),
    (_A + "154 (", _xid(154, "(")),
]  # fmt: skip

_SWITCH = {"pci": "0000:c7:00", "function": 0, "device": "nvidia-nvswitch2"}
_S = "nvidia-nvswitch2: SXid (PCI:0000:c7:00.0): "
_SXIDS: list[tuple[str, dict[str, Any]]] = [
    (
        _S + "20034, Fatal, Link 31 LTSSM Fault Up",
        {
            "code": 20034,
            "severity": "fatal",
            "link": 31,
            "message": "Fatal, Link 31 LTSSM Fault Up",
        },
    ),
    (
        _S + "12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
        {
            "code": 12028,
            "severity": "non-fatal",
            "link": 32,
            "message": "Non-fatal, Link 32 egress non-posted PRIV error (First)",
        },
    ),
    (
        _S + "11012, Correctable, Link 04 ingress ECC",
        {
            "code": 11012,
            "severity": "correctable",
            "link": 4,
            "message": "Correctable, Link 04 ingress ECC",
        },
    ),
    (_S + "20123, Unknown error", {"code": 20123, "message": "Unknown error"}),
    (_S + "00007", {"code": 7}),
    (
        _S + "12033, Severity 1 Engine instance 30 Sub-engine instance 00",
        {
            "code": 12033,
            "unit": "engine 30.00",
            "message": "Severity 1 Engine instance 30 Sub-engine instance 00",
        },
    ),
    (
        _S + "20034, Data {0x50610002, 0x10100030}",
        {
            "code": 20034,
            "registers": (0x50610002, 0x10100030),
            "message": "Data {0x50610002, 0x10100030}",
        },
    ),
]

_GPU = {"pci": "0000:6a:00", "function": 0}
_PROBE = (
    "The NVIDIA GPU 0000:6a:00.0 (PCI ID: 10de:2330) installed in this system has fallen off the"
    " bus and is not responding to commands."
)
_NVRMS: list[tuple[str, dict[str, Any]]] = [
    (
        "NVRM: GPU 0000:6a:00.0: GPU has fallen off the bus.",
        {"code": 79, **_GPU, "message": "GPU 0000:6a:00.0: GPU has fallen off the bus."},
    ),
    (
        "NVRM: GPU 6a:00.0: GPU has fallen off the bus.",
        {"code": 79, **_GPU, "message": "GPU 6a:00.0: GPU has fallen off the bus."},
    ),
    (
        "NVRM: The NVIDIA GPU 0000:6a:00.0\n               NVRM: (PCI ID: 10de:2330) installed in"
        " this system has\n               NVRM: fallen off the bus and is not responding to"
        " commands.",
        {**_GPU, "message": _PROBE},
    ),
    (
        "NVRM: The NVIDIA GPU 0000:6a:00.0#012NVRM: (PCI ID: 10de:2330) installed in this system"
        " has#012NVRM: fallen off the bus and is not responding to commands.",
        {**_GPU, "message": _PROBE},
    ),
    (
        "NVRM: GPU at PCI:0000:6a:00: GPU-0a1b2c3d-1111-2222-3333-444455556666",
        {
            "pci": "0000:6a:00",
            "uuid": "GPU-0a1b2c3d-1111-2222-3333-444455556666",
            "message": "GPU at PCI:0000:6a:00: GPU-0a1b2c3d-1111-2222-3333-444455556666",
        },
    ),
    (
        "NVRM: GPU Board Serial Number: 1322000000042",
        {"serial": "1322000000042", "message": "GPU Board Serial Number: 1322000000042"},
    ),
    ("NVRM: GPU Board Serial Number:", {"message": "GPU Board Serial Number:"}),
    (
        "NVRM: GPU 0000:6a:00.0: GPU serial number is 1322000000042.",
        {
            **_GPU,
            "serial": "1322000000042",
            "message": "GPU 0000:6a:00.0: GPU serial number is 1322000000042.",
        },
    ),
    (
        "NVRM: GPU 0000:6a:00.0: GPU is on Board .",
        {**_GPU, "message": "GPU 0000:6a:00.0: GPU is on Board ."},
    ),
    (
        "NVRM: GPU 0000:6a:00.0: RmInitAdapter failed! (0x62:0x0:2477)",
        {
            **_GPU,
            "unit": "RmInitAdapter",
            "registers": (0x62, 0, 2477),
            "message": "GPU 0000:6a:00.0: RmInitAdapter failed! (0x62:0x0:2477)",
        },
    ),
    (
        "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:6a:00 (printing 1 of every"
        " 30).  The GPU likely needs to be reset.",
        {
            "pci": "0000:6a:00",
            "rate_limited": True,
            "message": "Rate limiting GSP RPC error prints for GPU at PCI:0000:6a:00 (printing 1"
            " of every 30).  The GPU likely needs to be reset.",
        },
    ),
    (
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build  (b)",
        {
            "driver": "570.158.01",
            "message": "loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release"
            " Build  (b)",
        },
    ),
    (
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.144.03  Mon Dec 30 17:44:08 UTC 2024",
        {
            "driver": "550.144.03",
            "message": "loading NVIDIA UNIX x86_64 Kernel Module  550.144.03  Mon Dec 30 17:44:08"
            " UTC 2024",
        },
    ),
    ("NVRM: GPU4 RPC history (CPU -> GSP):", {"message": "GPU4 RPC history (CPU -> GSP):"}),
    (
        "NVRM: The NVIDIA probe routine failed for 1 device(s).",
        {"message": "The NVIDIA probe routine failed for 1 device(s)."},
    ),
    # a Xid from which no device or no code can be read accuses nobody
    ("NVRM: Xid : 32, pid=2280", {"message": "Xid : 32, pid=2280"}),
    ("NVRM: Xid 79", {"message": "Xid 79"}),
    ("NVRM: Xid (PCI:0000:6a:00): abc", {"message": "Xid (PCI:0000:6a:00): abc"}),
    ("NVRM: Xid (PCI:0000:6a:00): 12345678901", {"message": "Xid (PCI:0000:6a:00): 12345678901"}),
    ("NVRM: The NVIDIA GPU nonsense.0", {"message": "The NVIDIA GPU nonsense.0"}),
]

_PORT = {"pci": "0000:3a:01", "function": 0, "device": "pcieport"}
_P = "pcieport 0000:3a:01.0: "
_NIC = {"pci": "0000:5d:00", "function": 0, "device": "mlx5_core"}
_N = "mlx5_core 0000:5d:00.0: "
_K = KernelKind
_HOSTS: list[tuple[str, dict[str, Any]]] = [
    (
        _P + "AER: Uncorrected (Fatal) error received: id=3b00",
        {
            "kind": _K.AER,
            **_PORT,
            "severity": "fatal",
            "peer_pci": "0000:3b:00",
            "message": "AER: Uncorrected (Fatal) error received: id=3b00",
        },
    ),
    (
        _P + "AER: Multiple Uncorrectable (Non-Fatal) error message received from 0000:3b:00.0",
        {
            "kind": _K.AER,
            **_PORT,
            "severity": "non-fatal",
            "peer_pci": "0000:3b:00",
            "message": "AER: Multiple Uncorrectable (Non-Fatal) error message received from"
            " 0000:3b:00.0",
        },
    ),
    (
        _P + "AER: Corrected error received: 0000:3a:01.0",
        {
            "kind": _K.AER,
            **_PORT,
            "severity": "correctable",
            "message": "AER: Corrected error received: 0000:3a:01.0",
        },
    ),
    (
        _P + "PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)",
        {
            "kind": _K.AER,
            **_PORT,
            "severity": "fatal",
            "unit": "Transaction Layer",
            "message": "PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer,"
            " (Receiver ID)",
        },
    ),
    (
        _P + "  device [8086:2030] error status/mask=00000020/00100000",
        {
            "kind": _K.AER,
            **_PORT,
            "registers": (0x20, 0x100000),
            "message": "device [8086:2030] error status/mask=00000020/00100000",
        },
    ),
    (
        _P + "   [ 5] Surprise Down Error    (First)",
        {
            "kind": _K.AER,
            **_PORT,
            "registers": (5,),
            "unit": "Surprise Down Error",
            "message": "[ 5] Surprise Down Error    (First)",
        },
    ),
    (
        _P + "   [14] CmpltTO",
        {
            "kind": _K.AER,
            **_PORT,
            "registers": (14,),
            "unit": "CmpltTO",
            "message": "[14] CmpltTO",
        },
    ),
    (
        "nvidia 0000:3b:00.0: AER: can't recover (no error_detected callback)",
        {
            "kind": _K.AER,
            "pci": "0000:3b:00",
            "function": 0,
            "device": "nvidia",
            "message": "AER: can't recover (no error_detected callback)",
        },
    ),
    (
        "nvidia 0000:3b:00.0: device has no AER-aware driver",
        {
            "kind": _K.AER,
            "pci": "0000:3b:00",
            "function": 0,
            "device": "nvidia",
            "message": "device has no AER-aware driver",
        },
    ),
    (
        _P + "DPC: containment event, status:0x0005 source:0x3b00",
        {
            "kind": _K.DPC,
            **_PORT,
            "peer_pci": "0000:3b:00",
            "message": "DPC: containment event, status:0x0005 source:0x3b00",
        },
    ),
    (
        _P + "DPC: ERR_FATAL detected",
        {"kind": _K.DPC, **_PORT, "severity": "fatal", "message": "DPC: ERR_FATAL detected"},
    ),
    (
        _P + "pciehp: Slot(12): Link Down",
        {
            "kind": _K.PCIEHP,
            **_PORT,
            "unit": "Slot(12)",
            "message": "pciehp: Slot(12): Link Down",
        },
    ),
    (
        "pciehp 0000:3a:01.0:pcie004: Slot(12-1): Card not present",
        {
            "kind": _K.PCIEHP,
            **_PORT,
            "device": "pciehp",
            "unit": "Slot(12-1)",
            "message": "Slot(12-1): Card not present",
        },
    ),
    (
        "nvidia-gpu 0000:3b:00.3: Refused to change power state, currently in D3",
        {
            "kind": _K.NVRM,
            "pci": "0000:3b:00",
            "function": 3,
            "device": "nvidia-gpu",
            "message": "Refused to change power state, currently in D3",
        },
    ),
    (
        _N + "Port module event[error]: module 1, Cable error, High Temperature",
        {
            "kind": _K.MLX5,
            **_NIC,
            "port": 1,
            "message": "Port module event[error]: module 1, Cable error, High Temperature",
        },
    ),
    (
        _N + "poll_health:852:(pid 0): device's health compromised - reached miss count",
        {
            "kind": _K.MLX5,
            **_NIC,
            "unit": "poll_health",
            "message": "poll_health:852:(pid 0): device's health compromised - reached miss count",
        },
    ),
    (
        _N + "mlx5_cmd_check:777:(pid 102): SET_X(0x936) op_mod(0x0) failed, syndrome (0x8708c3)",
        {
            "kind": _K.MLX5,
            **_NIC,
            "unit": "mlx5_cmd_check",
            "pid": 102,
            "message": "mlx5_cmd_check:777:(pid 102): SET_X(0x936) op_mod(0x0) failed, syndrome"
            " (0x8708c3)",
        },
    ),
    (
        "mlx5_core 0000:5d:00.0 mlx5_3: Port: 1 Link ACTIVE",
        {
            "kind": _K.MLX5,
            **_NIC,
            "device": "mlx5_3",
            "port": 1,
            "message": "Port: 1 Link ACTIVE",
        },
    ),
    (
        "mlx5_core 0000:5d:00.0 ens7np0: NETDEV WATCHDOG: CPU: 5: transmit queue 0 timed out 5 ms",
        {
            "kind": _K.MLX5,
            **_NIC,
            "device": "ens7np0",
            "message": "NETDEV WATCHDOG: CPU: 5: transmit queue 0 timed out 5 ms",
        },
    ),
    (
        "NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 0 timed out",
        {
            "kind": _K.MLX5,
            "device": "eth0",
            "message": "NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 0 timed out",
        },
    ),
    (
        "infiniband mlx5_0: create_qp:3192:(pid 4323): Create QP type 2 failed",
        {
            "kind": _K.MLX5,
            "device": "mlx5_0",
            "unit": "create_qp",
            "pid": 4323,
            "message": "create_qp:3192:(pid 4323): Create QP type 2 failed",
        },
    ),
    (
        "infiniband rdmap16s27: Wait for completion (polling) timeout",
        {
            "kind": _K.EFA,
            "device": "rdmap16s27",
            "message": "Wait for completion (polling) timeout",
        },
    ),
    (
        "efa 0000:00:1d.0: Device isn't ready, abort com init",
        {
            "kind": _K.EFA,
            "pci": "0000:00:1d",
            "function": 0,
            "device": "efa",
            "message": "Device isn't ready, abort com init",
        },
    ),
    (
        "nvidia-peermem nv_mem_get_pages:471 ERROR error -22 while calling nvidia_p2p_get_pages()",
        {
            "kind": _K.PEERMEM,
            "unit": "nv_mem_get_pages",
            "message": "ERROR error -22 while calling nvidia_p2p_get_pages()",
        },
    ),
    (
        "EDAC MC3: 1 UE memory read error on CPU_SrcID#0_MC#3_Chan#0_DIMM#0 (channel:0 slot:0"
        " page:0x7e025e offset:0x400 grain:32)",
        {
            "kind": _K.MCE,
            "device": "MC3",
            "severity": "uncorrectable",
            "unit": "CPU_SrcID#0_MC#3_Chan#0_DIMM#0",
            "address": "0x7e025e",
            "message": "EDAC MC3: 1 UE memory read error on CPU_SrcID#0_MC#3_Chan#0_DIMM#0"
            " (channel:0 slot:0 page:0x7e025e offset:0x400 grain:32)",
        },
    ),
    (
        "EDAC MC0: 12 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (err)",
        {
            "kind": _K.MCE,
            "device": "MC0",
            "severity": "correctable",
            "unit": "CPU_SrcID#0_MC#0_Chan#1_DIMM#0",
            "message": "EDAC MC0: 12 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (err)",
        },
    ),
    (
        "mce: [Hardware Error]: Machine check events logged",
        {"kind": _K.MCE, "message": "mce: [Hardware Error]: Machine check events logged"},
    ),
    (
        "{2}[Hardware Error]: event severity: fatal",
        {
            "kind": _K.MCE,
            "severity": "fatal",
            "message": "{2}[Hardware Error]: event severity: fatal",
        },
    ),
    (
        "{2}[Hardware Error]:   device_id: 0000:3a:01.0",
        {
            "kind": _K.MCE,
            "pci": "0000:3a:01",
            "function": 0,
            "message": "{2}[Hardware Error]:   device_id: 0000:3a:01.0",
        },
    ),
    (
        "Memory failure: 0x7740C0: recovery action for dirty page: Recovered",
        {
            "kind": _K.MCE,
            "address": "0x7740c0",
            "message": "Memory failure: 0x7740C0: recovery action for dirty page: Recovered",
        },
    ),
    (
        "Memory cgroup out of memory: Killed process 51807 (ox (ide)) total-vm:412192kB",
        {
            "kind": _K.OOM,
            "pid": 51807,
            "process": "ox (ide)",
            "message": "Memory cgroup out of memory: Killed process 51807 (ox (ide))"
            " total-vm:412192kB",
        },
    ),
    (
        "Out of memory: Kill process 4242 (python) score 9 or sacrifice child",
        {
            "kind": _K.OOM,
            "pid": 4242,
            "process": "python",
            "message": "Out of memory: Kill process 4242 (python) score 9 or sacrifice child",
        },
    ),
    (
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python3,pid=4242,uid=1000",
        {
            "kind": _K.OOM,
            "pid": 4242,
            "process": "python3",
            "message": "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python3,"
            "pid=4242,uid=1000",
        },
    ),
    (
        "pt_data_worker invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0",
        {
            "kind": _K.OOM,
            "message": "pt_data_worker invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0",
        },
    ),
    (
        "python3[51807]: segfault at 7f3a8 ip 00007f3a1c2b sp 00007ffd3c1e error 4 in libc.so.6",
        {
            "kind": _K.SEGFAULT,
            "pid": 51807,
            "process": "python3",
            "message": "python3[51807]: segfault at 7f3a8 ip 00007f3a1c2b sp 00007ffd3c1e error 4"
            " in libc.so.6",
        },
    ),
    (
        "traps: pt_main_thread[7] general protection fault ip:7f3a sp:7ffd error:0 in libcuda.so",
        {
            "kind": _K.SEGFAULT,
            "pid": 7,
            "process": "pt_main_thread",
            "message": "traps: pt_main_thread[7] general protection fault ip:7f3a sp:7ffd error:0"
            " in libcuda.so",
        },
    ),
    (
        "INFO: task cache_mgr:event:620917 blocked for more than 362 seconds.",
        {
            "kind": _K.HUNG_TASK,
            "pid": 620917,
            "process": "cache_mgr:event",
            "message": "INFO: task cache_mgr:event:620917 blocked for more than 362 seconds.",
        },
    ),
]

_NOISE = [
    "usb 1-1.4: new high-speed USB device number 7 using xhci_hcd",
    "nvme 0000:c1:00.0: enabling device (0000 -> 0002)",
    "pci 0000:00:1f.2: [8086:a182] type 00 class 0x010601",
    "nvidia-nvswitch2: open (major=510)",
    "RIP: 0010:mlx5e_poll_ico_cq+0x8b/0x1a0 [mlx5_core]",
    "EDAC MC: Ver: 3.0.0",
    "NETDEV WATCHDOG: eth0 (ixgbe): transmit queue 0 timed out",
    "infiniband bnxt_re0: Failed to add GID",
    "Memory: 16316180K/16776704K available",
    "INFO: NMI handler took too long to run",
    'dcgm-monitor[881]: saw "NVRM: Xid (PCI:0000:6a:00): 79, GPU has fallen off the bus."',
    "Regular log text without Xid errors",
    "",
]


@pytest.mark.parametrize(("text", "expected"), _XIDS, ids=[text[:60] for text, _ in _XIDS])
def test_an_xid_line_gives_exactly_these_fields(text: str, expected: dict[str, Any]) -> None:
    assert parse_message(text) == expected


@pytest.mark.parametrize(("text", "expected"), _SXIDS, ids=[text[32:80] for text, _ in _SXIDS])
def test_an_sxid_line_gives_exactly_these_fields(text: str, expected: dict[str, Any]) -> None:
    assert parse_message(text) == {"kind": KernelKind.SXID, **_SWITCH, **expected}


def test_an_sxid_without_a_device_is_unreadable_and_kept() -> None:
    text = "nvidia-nvswitch0: SXid (invalid): some error"
    assert parse_message(text) == {
        "kind": KernelKind.UNREADABLE,
        "message": f"an SXid without device or code: {text}",
    }


@pytest.mark.parametrize(("text", "expected"), _NVRMS, ids=[text[6:60] for text, _ in _NVRMS])
def test_an_nvrm_line_gives_exactly_these_fields(text: str, expected: dict[str, Any]) -> None:
    assert parse_message(text) == {"kind": KernelKind.NVRM, **expected}


@pytest.mark.parametrize(("text", "expected"), _HOSTS, ids=[text[:60] for text, _ in _HOSTS])
def test_a_host_line_gives_exactly_these_fields(text: str, expected: dict[str, Any]) -> None:
    assert parse_message(text) == expected


@pytest.mark.parametrize("text", _NOISE)
def test_a_line_of_no_interest_is_other_and_keeps_its_text(text: str) -> None:
    expected = {"kind": KernelKind.OTHER} | ({"message": text} if text else {})
    assert parse_message(text) == expected


def test_a_message_of_several_lines_that_holds_an_xid_is_that_xid() -> None:
    text = (
        "NVRM: The NVIDIA GPU 0000:6a:00.0\nNVRM: fallen off the bus and is not responding to"
        " commands.\nNVRM: Xid (PCI:0000:6a:00.0): 79, pid=4410, GPU has fallen off the bus."
    )
    assert parse_message(text) == _xid(79, "GPU has fallen off the bus.", function=0, pid=4410)


@given(st.text())
def test_no_text_whatever_makes_the_grammar_raise(text: str) -> None:
    assert parse_message(text)["kind"] in KernelKind


@given(
    st.sampled_from([text for text, _ in _XIDS + _SXIDS + _NVRMS + _HOSTS]),
    st.integers(0, 200),
    st.text(max_size=8),
)
def test_a_damaged_line_never_raises(text: str, where: int, noise: str) -> None:
    assert parse_message(text[:where] + noise + text[where + 3 :])["kind"] in KernelKind
    assert parse_message(text[:where])["kind"] in KernelKind
