"""Lines in which PyTorch's ranks compare notes: store, barriers, mismatches, desync, gloo.

Whoever prints that the store is lost is a victim of the process that hosted it.
"""

import re

from collectors.nccl.prefix import Prefixed
from collectors.nccl.shape import Fields, Shape, integers
from evidence.records import NcclKind

__all__ = ["DESYNC_SHAPES", "RENDEZVOUS_SHAPES"]

# `[c10d] recvValue failed on SocketImpl(fd=101, addr=[gpu7]:51876, remote=[gpu1]:43911): Failed to
# recv, got 0 bytes. Connection was likely closed.`
_STORE_SOCKET = re.compile(
    r"\[c10d\] (?P<call>\w+) failed on SocketImpl\(fd=-?\d+, addr=\[(?P<local>[^\]]{1,253})\]:\d+, "
    r"remote=\[(?P<peer>[^\]]{1,253})\]:(?P<port>\d{1,5})\)(?:: (?P<error>[^\n]{1,200}))?",
)
# `Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too ...`
_STORE_FLAG = re.compile(r'Failed to check the "should dump" flag on TCPStore')
# `[3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store
# by key '0', but store->get('0') got error: Connection reset by peer`
_STORE_UNIQUE_ID = re.compile(
    r"retrieving ncclUniqueId from \[\d{1,7}\][^\n]{0,200}got error: (?P<error>[^\n]{1,200})",
)
# `torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.`
_STORE_CLOSED = re.compile(r"Failed to recv, got 0 bytes[^\n]{0,99}")
# `The client socket has timed out after 60s while trying to connect to (gpu1, 29500).`
_STORE_CONNECT = re.compile(
    r"client socket has (?:timed out after (?P<n>\d{1,9})(?P<unit>ms|s)|failed)[^(\n]{0,99}"
    r"connect to \(?(?P<peer>[^\s:,()]{1,253})(?:, |:)(?P<port>\d{1,5})",
)
# `torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 1/3 clients
# joined.`
_CLIENTS = re.compile(
    r"Timed out after (?P<s>\d{1,9}) seconds waiting for (?:clients|workers)\. "
    r"(?P<joined>\d{1,7})/(?P<size>\d{1,7}) (?:clients|workers) joined",
)
# `wait timeout after 300000ms, keys: /default_pg/0//cuda//0`
_KEYS = re.compile(r"wait timeout after (?P<ms>\d{1,12})ms, keys: (?P<keys>\S{1,300})")

# `[Rank 0]: Ranks 4, 5, 6, 7 failed to pass monitoredBarrier in 2000000 ms`
_BARRIER = re.compile(
    r"Ranks? (?P<ranks>[\d, ]{1,9999}) failed to pass monitoredBarrier in (?P<ms>\d{1,12}) ms",
)
# `Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/...`
_BARRIER_REACHED = re.compile(r"Rank (?P<rank>\d{1,7}) successfully reached monitoredBarrier")

# `Rank 2 is running collective: CollectiveFingerPrint(SequenceNumber=1, OpType=ALLREDUCE,
# TensorShape=[4], ...), but Rank 1 is running collective: CollectiveFingerPrint(...)`
_FINGERPRINT = re.compile(
    r"Rank (?P<rank>\d{1,7}) is running (?:inconsistent )?collective: CollectiveFingerPrint\("
    r"(?:SequenceNumber=(?P<seq>\d{1,18}), ?)?OpType=(?P<op>\w{1,99})"
    r"(?:, TensorShape=\[(?P<shape>[\d, ]{0,200})\])?",
)

# ` - [7] finished collective #182, but didn't join collective #183 (count from 1)`
_NOT_JOINED = re.compile(
    r"\[(?P<ranks>[\d, ]{1,9999})\] finished collective #(?P<done>\d{1,18}),"
    r" but didn't join collective #(?P<seq>\d{1,18})",
)
# ` - [0, 2] joined but didn't finish collective #183 (count from 1)`
_NOT_FINISHED = re.compile(
    r"\[(?P<ranks>[\d, ]{1,9999})\] joined but didn't finish collective #(?P<seq>\d{1,18})",
)
# ` - To our best knowledge, ranks [3, 5] are the lagging ranks that caused this timeout.`
_LAGGING = re.compile(r"ranks \[(?P<ranks>[\d, ]{1,9999})\] are the lagging ranks")
# ` - [0] Timeout at collective: ALLREDUCE, #315`
_DESYNC_AT = re.compile(
    r"\[(?P<ranks>\d{1,7})\] Timeout at collective: (?P<op>\w{1,99}), #(?P<seq>\d+)"
)
# `AssertionError: Missing dump files from ranks {2}`, `... we missed FR dumps from ranks ({2})`
_NO_DUMP = re.compile(
    r"(?:Missing dump files|missed FR dumps) from ranks \(?\{(?P<ranks>[\d, ]+)\}"
)
# `[2026-04-02 09:13:51] PEER_DEAD: Process 4711 on node gpu7 managing GPU 1` (NCCL's RAS monitor)
_PEER_DEAD = re.compile(
    r"PEER_DEAD: Process (?P<pid>\d{1,10}) on node (?P<node>\S{1,253})",
)

# `[.../gloo/transport/tcp/pair.cc:561] Connection closed by peer [10.3.0.9]:18333. This is ...`
_GLOO_CLOSED = re.compile(r"Connection closed by peer \[(?P<peer>[^\]]{1,253})\]:\d+")
# `[.../pair.cc:545] Read error [10.3.0.9]:20715: Connection reset by peer. This is typically ...`
_GLOO_READ = re.compile(
    r"(?:Read|Write) error \[(?P<peer>[^\]]{1,253})\]:\d+: (?P<error>Connection \w[\w ]{1,60})",
)
# `[.../unbound_buffer.cc:81] Timed out waiting 30000ms for recv operation to complete`
_GLOO_TIMEOUT = re.compile(r"Timed out waiting (?P<ms>\d{1,12})ms for (?P<op>\w+) operation")


def _store_socket(found: re.Match[str], _: Prefixed) -> Fields:
    return {
        "kind": NcclKind.STORE_LOST,
        "phase": found["call"],
        "peer": found["peer"],
        "port": int(found["port"]),
        "hosts": (found["local"],),
        "_local": found["local"],
        "message": found["error"],
    }


def _store_flag(_found: re.Match[str], line: Prefixed) -> Fields:
    error = line.message.partition("with error: ")[2]
    return {"kind": NcclKind.STORE_LOST, "phase": "flag", "message": error[:200] or None}


def _store_unique_id(found: re.Match[str], _: Prefixed) -> Fields:
    return {"kind": NcclKind.STORE_LOST, "phase": "unique-id", "message": found["error"]}


def _store_closed(found: re.Match[str], _: Prefixed) -> Fields:
    return {"kind": NcclKind.STORE_LOST, "message": found[0]}


def _store_connect(found: re.Match[str], _: Prefixed) -> Fields:
    waited = found["n"]
    unit_ms = 1 if found["unit"] == "ms" else 1000
    return {
        "kind": NcclKind.STORE_LOST,
        "phase": "connect",
        "peer": found["peer"],
        "port": int(found["port"]),
        "timeout_ms": None if waited is None else int(waited) * unit_ms,
    }


def _clients(found: re.Match[str], _: Prefixed) -> Fields:
    return {
        "kind": NcclKind.STORE_CLIENTS,
        "timeout_ms": int(found["s"]) * 1000,
        "status": int(found["joined"]),
        "comm_size": int(found["size"]),
        "message": f"{found['joined']}/{found['size']} clients joined",
    }


def _keys(found: re.Match[str], _: Prefixed) -> Fields:
    fields: Fields = {"kind": NcclKind.STORE_CLIENTS, "phase": "keys", "message": found["keys"]}
    return fields | {"timeout_ms": int(found["ms"])}


def _barrier(found: re.Match[str], _: Prefixed) -> Fields:
    fields: Fields = {"kind": NcclKind.BARRIER_MISSING, "ranks": integers(found["ranks"])}
    return fields | {"timeout_ms": int(found["ms"])}


def _barrier_reached(found: re.Match[str], _: Prefixed) -> Fields:
    fields: Fields = {"kind": NcclKind.BARRIER_MISSING, "phase": "reached"}
    return fields | {"comm_rank": int(found["rank"])}


def _fingerprint(found: re.Match[str], line: Prefixed) -> Fields:
    """Both sides: ``ranks`` is (reporter, the other one), ``message`` what each is running."""
    sides = list(_FINGERPRINT.finditer(line.message[found.start() :]))[:2]
    words = [f"rank {side['rank']}: {side['op']} [{side['shape'] or ''}]" for side in sides]
    return {
        "kind": NcclKind.MISMATCH,
        "comm_rank": int(found["rank"]),
        "ranks": tuple(int(side["rank"]) for side in sides),
        "seq": None if found["seq"] is None else int(found["seq"]),
        "op": found["op"],
        "message": "; ".join(words),
    }


def _not_joined(found: re.Match[str], _: Prefixed) -> Fields:
    fields: Fields = {"kind": NcclKind.DESYNC, "phase": "not-joined", "seq": int(found["seq"])}
    return fields | {"ranks": integers(found["ranks"]), "last_completed": int(found["done"])}


def _not_finished(found: re.Match[str], _: Prefixed) -> Fields:
    fields: Fields = {"kind": NcclKind.DESYNC, "phase": "not-finished", "seq": int(found["seq"])}
    return fields | {"ranks": integers(found["ranks"])}


def _lagging(found: re.Match[str], line: Prefixed) -> Fields:
    phase = "never-joined" if "never joined" in line.message else "lagging"
    fields: Fields = {"kind": NcclKind.DESYNC, "phase": phase}
    return fields | {"ranks": integers(found["ranks"])}


def _desync_at(found: re.Match[str], _: Prefixed) -> Fields:
    fields: Fields = {"kind": NcclKind.DESYNC, "phase": "timeout", "op": found["op"]}
    return fields | {"seq": int(found["seq"]), "ranks": integers(found["ranks"])}


def _no_dump(found: re.Match[str], _: Prefixed) -> Fields:
    fields: Fields = {"kind": NcclKind.FLIGHT_RECORDER, "phase": "incomplete"}
    return fields | {"ranks": integers(found["ranks"])}


def _peer_dead(found: re.Match[str], _: Prefixed) -> Fields:
    fields: Fields = {"kind": NcclKind.RAS, "phase": "peer-dead", "hosts": (found["node"],)}
    return fields | {"pid": int(found["pid"]), "message": found[0]}


def _gloo_closed(found: re.Match[str], _: Prefixed) -> Fields:
    peer = found["peer"]
    return {"kind": NcclKind.PEER_CLOSED, "phase": "gloo", "peer": peer, "message": "closed"}


def _gloo_read(found: re.Match[str], _: Prefixed) -> Fields:
    fields: Fields = {"kind": NcclKind.PEER_CLOSED, "phase": "gloo", "peer": found["peer"]}
    return fields | {"message": found["error"]}


def _gloo_timeout(found: re.Match[str], _: Prefixed) -> Fields:
    fields: Fields = {"kind": NcclKind.TIMEOUT, "phase": "gloo", "op": found["op"]}
    return fields | {"timeout_ms": int(found["ms"])}


DESYNC_SHAPES = (
    Shape("but didn't join", _NOT_JOINED, _not_joined),
    Shape("but didn't finish", _NOT_FINISHED, _not_finished),
    Shape("lagging ranks", _LAGGING, _lagging),
    Shape("Timeout at collective", _DESYNC_AT, _desync_at),
)

#: What store, barriers, collective checks and gloo print, most particular first.
RENDEZVOUS_SHAPES = (
    Shape("[c10d] ", _STORE_SOCKET, _store_socket),
    Shape("on TCPStore", _STORE_FLAG, _store_flag),
    Shape("retrieving ncclUniqueId", _STORE_UNIQUE_ID, _store_unique_id),
    Shape("Failed to recv, got 0", _STORE_CLOSED, _store_closed),
    Shape("client socket has", _STORE_CONNECT, _store_connect),
    Shape(" joined", _CLIENTS, _clients),
    Shape("wait timeout after", _KEYS, _keys),
    Shape("failed to pass monitoredBarrier", _BARRIER, _barrier),
    Shape("reached monitoredBarrier", _BARRIER_REACHED, _barrier_reached),
    Shape("CollectiveFingerPrint", _FINGERPRINT, _fingerprint),
    *DESYNC_SHAPES,
    Shape(" from ranks ", _NO_DUMP, _no_dump),
    Shape("PEER_DEAD", _PEER_DEAD, _peer_dead),
    Shape("Connection closed by peer", _GLOO_CLOSED, _gloo_closed),
    Shape(" error [", _GLOO_READ, _gloo_read),
    Shape("Timed out waiting", _GLOO_TIMEOUT, _gloo_timeout),
)
