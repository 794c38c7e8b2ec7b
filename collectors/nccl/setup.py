"""What NCCL says of itself while a job starts: its addresses, adapters, versions and delays.

These lines are no symptoms. They join others: the peer of a broken connection is an address that
its own process printed here, and an adapter is often named by its place in this list only.
"""

import re
from contextlib import suppress

from collectors.nccl.prefix import Prefixed
from collectors.nccl.shape import Fields, Shape
from evidence.identity import bus_id_to_pci
from evidence.records import NcclKind

__all__ = ["SETUP_SHAPES", "VERSION_SHAPE", "tells"]

# The NCCL lines that can mean anything; the other INFO lines are many thousands at each start.
_TELLING = re.compile(
    r"NCCL (?:WARN|version|INFO (?:Boot|NET/|Init|MNNVL b|RAS |NCCL v|(?:nccl\w+ )?comm 0|\[Rank"
    r"|\[Service|[\w./\-]+:\d+ ?(?:\(\w+\) )?-> ))"
)

# `Bootstrap : Using eth0:10.3.0.7<0>` (2.25: no blank before the colon)
_BOOTSTRAP = re.compile(
    r"Bootstrap ?: Using (?P<interface>[^:\s]{1,64}):(?P<address>[^<\s]{1,64})<\d{1,5}>"
)
# `NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB ib0:10.3.0.7<0>`
# `NET/Socket : Using [0]eth0:10.3.0.7<0>`, `NET/IBext_v8 : Using ...`
_USING = re.compile(
    r"NET/(?P<net>\w{1,40}) ?: Using (?P<list>\[[^\n;]{1,4000})(?:; OOB (?P<oob>.*))?"
)
_ADAPTER = re.compile(r"\[(\d{1,3})\]([\w.\-+]{1,64}:\d{1,3})/(?:IB|RoCE)")
_INTERFACE = re.compile(r"(?P<interface>[^:\s\]]{1,64}):(?P<address>[^<\s]{1,64})<\d{1,5}>")
# `NET/IB : Made virtual device [4] name=mlx5_0+mlx5_1 speed=400000 ndevs=2`
_VIRTUAL = re.compile(r"Made virtual device \[(?P<index>\d{1,3})\] name=(?P<name>[\w.\-+]{1,200})")
# `comm 0x55 rank 3 nRanks 16 nNodes 2 localRanks 8 localRank 3 MNNVL 0`
_LAYOUT = re.compile(
    r"comm (?P<comm>0x[0-9a-f]+) rank (?P<rank>\d{1,7}) nRanks (?P<size>\d{1,7})"
    r" nNodes (?P<nodes>\d{1,7}) localRanks \d{1,4} localRank (?P<local>\d{1,4})"
)
# `Init timings - ncclCommInitRank: rank 3 nranks 16 total 42.31 (kernels 0.22, bootstrap 39.83)`
_TIMINGS = re.compile(
    r"Init timings - \w{1,60}: rank (?P<rank>\d{1,7}) nranks (?P<size>\d{1,7})"
    r" total (?P<total>\d{1,7}(?:\.\d{1,6})?)(?P<rest>[^\n]{0,300})"
)
# `MNNVL busId 0x5d000 fabric UUID 7c11.2a04 cliqueId 0x1 state 3 healthMask 0x2`
_MNNVL = re.compile(
    r"MNNVL busId (?:0x)?(?P<bus>[0-9a-f]{1,12}) fabric UUID \S{1,80} cliqueId \S{1,20}"
    r" state (?P<state>\d{1,3}) healthMask (?P<health>0x[0-9a-f]{1,8}|\d{1,8})"
)
# `RAS client listening socket at ::1<28028>`
_RAS = re.compile(r"RAS client listening socket at (?P<address>[^<\s]{1,64})<(?P<port>\d{1,5})>")
# `NCCL version 2.27.3+cuda12.9`
_VERSION = re.compile(r"^NCCL version (?P<version>\d{1,3}\.\d{1,3}\.\d{1,3}\S{0,40})")
# `transport/net_ib.cc:1105 -> 6`, 2.30: `src/transport/net_ib.cc:1105 (ncclIbTest) -> 6`
_RETURN = re.compile(r"^[\w./\-]{1,200}\.\w{1,4}:\d{1,7} ?(?:\(\w{1,99}\) )?-> (?P<code>[1-6])\b")


def tells(text: str) -> bool:
    """Whether one of the NCCL lines in a text can mean anything (its WARN lines always do)."""
    return _TELLING.search(text) is not None


def _setup(phase: str, message: str) -> Fields:
    return {"kind": NcclKind.SETUP, "phase": phase, "message": message[:400]}


def _bootstrap(found: re.Match[str], _: Prefixed) -> Fields:
    return _setup("bootstrap", found["interface"]) | {"address": _address(found["address"])}


def _using(found: re.Match[str], _: Prefixed) -> Fields:
    adapters = {int(index): name for index, name in _ADAPTER.findall(found["list"])}
    interface = _INTERFACE.search(found["oob"] or found["list"].partition("]")[2])
    return _setup("network", f"NET/{found['net']}") | {
        "hcas": tuple(adapters.values()),
        "address": None if interface is None else _address(interface["address"]),
        "_adapters": adapters,
    }


def _virtual(found: re.Match[str], _: Prefixed) -> Fields:
    adapters = {int(found["index"]): found["name"]}
    fields = _setup("virtual-device", found[0]) | {"_adapters": adapters}
    return fields | {"hcas": tuple(found["name"].split("+"))}


def _layout(found: re.Match[str], _: Prefixed) -> Fields:
    return _setup("layout", f"{found['nodes']} nodes") | {
        "comm_rank": int(found["rank"]),
        "comm_size": int(found["size"]),
        "local_rank": int(found["local"]),
        "_pointer": found["comm"],
    }


def _timings(found: re.Match[str], _: Prefixed) -> Fields:
    return _setup("timings", found["rest"].strip(" ()")) | {
        "comm_rank": int(found["rank"]),
        "comm_size": int(found["size"]),
        "elapsed_ms": round(float(found["total"]) * 1000),
    }


def _mnnvl(found: re.Match[str], _: Prefixed) -> Fields:
    fields = _setup("mnnvl", found[0]) | {"status": int(found["health"], 0)}
    with suppress(ValueError):
        fields["pci"] = bus_id_to_pci(found["bus"])
    return fields | {"state": found["state"]}


def _ras(found: re.Match[str], _: Prefixed) -> Fields:
    return _setup("ras", found[0]) | {"address": found["address"], "port": int(found["port"])}


def _version(found: re.Match[str], _: Prefixed) -> Fields:
    return _setup("version", found["version"])


def _return(found: re.Match[str], line: Prefixed) -> Fields | None:
    """The first code of a process is closest to the cause; on the way up it can change."""
    if line.level != "INFO":
        return None
    return {"kind": NcclKind.WARN, "phase": "return", "status": int(found["code"])}


def _address(printed: str) -> str:
    return printed.partition("%")[0]  # fe80::1%eth0


VERSION_SHAPE = Shape("NCCL version", _VERSION, _version)

#: What NCCL prints at INFO while it starts, and its way back from an error.
SETUP_SHAPES = (
    Shape("Bootstrap", _BOOTSTRAP, _bootstrap),
    Shape(": Using [", _USING, _using),
    Shape("Made virtual device", _VIRTUAL, _virtual),
    Shape("localRank ", _LAYOUT, _layout),
    Shape("Init timings", _TIMINGS, _timings),
    Shape("healthMask", _MNNVL, _mnnvl),
    Shape("RAS client", _RAS, _ras),
    VERSION_SHAPE,
    Shape(" -> ", _RETURN, _return),
)
