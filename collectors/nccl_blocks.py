"""Messages of several lines: torchrun's root cause and rank map, RAS reports, fr_trace output.

Lines of other processes may stand in between; they pass through and do not end the block.
"""

import re
from enum import Enum
from typing import Protocol

from collectors.nccl_prefix import Prefixed
from collectors.nccl_shape import Fields, integers
from evidence.records import NcclKind

__all__ = ["Block", "Take", "open_block"]

#: Lines after which a block is taken to be over, whatever comes.
_LINES_MAX = 2000


class Take(Enum):
    """What a block did with a line: took it, took it as its last, let it pass, or ended before."""

    TAKEN = 1
    LAST = 2
    PASSED = 3
    CLOSED = 4


class Block(Protocol):
    """An open message of several lines."""

    def take(self, line: Prefixed) -> Take:
        """Look at the next line."""

    def fields(self) -> list[Fields]:
        """What the message says, one dict a record; called once, at its end."""


def open_block(line: Prefixed) -> Block | None:
    """The block that begins with this line, if one does."""
    message = line.message
    if "Rendezvous complete for workers" in message:
        return _RankMap(line)
    if "#" in message and (ras := _RAS_HEADER.match(message)):
        return _Ras(ras["comm"], ras["status"])
    if bare := _RAS_BARE.match(message):
        return _Ras(None, bare["status"])
    if "ollective" in message and (report := _FR_HEADER.search(message)):
        return _FlightRecorder(report)
    if message.startswith(("Failures:", "Root Cause (first")) or _FAILURE_BEGINS.match(message):
        return _RootCause(line)
    return None


# `[7]:`, `  exitcode  : -6 (pid: 3437)  (SIGABRT)`, `  rank      : 7 (local_rank: 7)`
_FAILURE_BEGINS = re.compile(r"\s*(?:\[\d{1,7}\]:|(?:exitcode|rank)\s+: -?\d{1,7} \()")
_FAILURE_ITEM = re.compile(r"\s*\[(\d{1,7})\]:\s*$")
# `  host      : gpu7`, `  traceback : Signal 9 (SIGKILL) received by PID 31518`
_FAILURE_FIELD = re.compile(
    r"\s+(?P<name>time|host|rank|exitcode|error_file|traceback)\s*: (?P<v>.*)"
)
_RANK = re.compile(r"(\d{1,7}) \(local_rank: (\d{1,4})\)")
_EXIT = re.compile(r"(-?\d{1,5}) \(pid: (\d{1,10})\)")


class _RootCause:
    """torchrun's failure summary: one record a failed worker, the root cause as its own kind."""

    def __init__(self, line: Prefixed) -> None:
        self._items: list[dict[str, str]] = [{}]
        self._root = -1
        self._lines = 0
        self._ended = False
        self.take(line)

    def take(self, line: Prefixed) -> Take:
        self._lines += 1
        message = line.message
        if line.c10d or line.elastic or line.host is not None or self._lines > _LINES_MAX:
            return Take.PASSED if self._lines <= _LINES_MAX else Take.CLOSED
        if message.startswith("Root Cause (first"):
            self._begin()
            self._root = len(self._items) - 1
        elif _FAILURE_ITEM.match(message):
            self._begin()
        elif field := _FAILURE_FIELD.match(message):
            self._items[-1][field["name"]] = field["v"].strip()
        elif message.startswith("====") and self._root >= 0:
            return Take.LAST
        elif "traceback" in self._items[-1] and message.startswith("  "):
            if message.strip():
                self._items[-1]["last"] = message.strip()
        elif message.strip() and not message.startswith(("Failures:", "----", "====")):
            return Take.CLOSED
        return Take.TAKEN

    def _begin(self) -> None:
        if self._items[-1]:
            self._items.append({})

    def fields(self) -> list[Fields]:
        return [
            _worker(item) | ({"kind": NcclKind.ROOT_CAUSE} if at == self._root else {})
            for at, item in enumerate(self._items)
            if "exitcode" in item or "rank" in item
        ]


def _worker(item: dict[str, str]) -> Fields:
    fields: Fields = {"kind": NcclKind.WORKER_EXIT, "phase": "failure"}
    if rank := _RANK.match(item.get("rank", "")):
        fields |= {"rank": int(rank[1]), "local_rank": int(rank[2])}
    if code := _EXIT.match(item.get("exitcode", "")):
        fields |= {"exit_code": int(code[1]), "pid": int(code[2])}
    message = item.get("last") or item.get("traceback")
    host, time = item.get("host"), item.get("time")
    return fields | {"host": host, "message": message and message[:400], "_time": time}


# `  global_ranks=[8, 9, 10, 11]`
_KEY_VALUE = re.compile(r"\s*(\w+)=(.*)$")


class _RankMap:
    """torchrun's rendezvous result: which global ranks this agent runs, at which restart."""

    def __init__(self, line: Prefixed) -> None:
        self._agent_pid = line.agent_pid
        self._lines = 0
        self._values: dict[str, str] = {}

    def take(self, line: Prefixed) -> Take:
        self._lines += 1
        found = _KEY_VALUE.match(line.message)
        if self._lines > _LINES_MAX or (found is None and line.agent_pid == self._agent_pid):
            return Take.CLOSED
        if found is None or line.agent_pid != self._agent_pid:
            return Take.PASSED
        self._values[found[1]] = found[2].strip()
        return Take.TAKEN

    def fields(self) -> list[Fields]:
        values = self._values
        ranks = integers(values.get("global_ranks", ""))
        if not ranks:
            return []
        locals_ = integers(values.get("local_ranks", ""))
        sizes = integers(values.get("global_world_sizes", ""))
        port, restart = values.get("master_port", ""), values.get("restart_count", "")
        node = values.get("group_rank", "")
        return [
            {
                "kind": NcclKind.RANK_MAP,
                "ranks": ranks,
                "pid": self._agent_pid,
                "comm_size": sizes[0] if sizes else None,
                "peer": values.get("master_addr"),
                "port": int(port) if port.isdecimal() else None,
                "message": f"group_rank={node} local_ranks={list(locals_)}",
                "_restart_count": int(restart) if restart.isdecimal() else None,
                "_local_ranks": locals_,
            }
        ]


# `#0-0 (c07b1e55d2a94f38) MISMATCH`
_RAS_HEADER = re.compile(r"\s*#\d{1,7}-\d{1,7} \((?P<comm>[0-9a-f]{1,32})\) (?P<status>[A-Z]+)\s*$")
# `INCOMPLETE`, `DEAD`
_RAS_BARE = re.compile(r"(?P<status>INCOMPLETE|DEAD)\s*$")
# `  Rank 12 -- GPU 4 (NVML 4) managed by process 4711 on node gpu7`
_RAS_RANK = re.compile(
    r"Rank (?P<rank>\d{1,7})\b.* managed by process \d{1,10} on node (?P<node>\S+)"
)
# `  Process 4711 on node gpu7 managing GPU 5`
_RAS_PROCESS = re.compile(r"Process (?P<pid>\d{1,10}) on node (?P<node>\S+) managing GPU")
# `  Communicator ranks have different AllGather operation counts`
_RAS_OP = re.compile(r"have different (?P<op>\w+) operation counts")


class _Ras:
    """One paragraph of a RAS report; ``ranks`` are ranks of that communicator."""

    def __init__(self, comm: str | None, status: str) -> None:
        self._comm, self._status = comm, status
        self._lines: list[str] = []

    def take(self, line: Prefixed) -> Take:
        if not line.message.startswith("  ") or len(self._lines) >= _LINES_MAX:
            return Take.CLOSED
        self._lines.append(line.message.strip())
        return Take.TAKEN

    def fields(self) -> list[Fields]:
        text = "\n".join(self._lines)
        ranks = list(_RAS_RANK.finditer(text))
        named = ranks + list(_RAS_PROCESS.finditer(text))
        operation = _RAS_OP.search(text)
        return [
            {
                "kind": NcclKind.RAS,
                "phase": self._status.lower(),
                "comm": None if self._comm is None else f"0x{self._comm}",
                "op": None if operation is None else operation["op"],
                "ranks": tuple(int(rank["rank"]) for rank in ranks),
                "hosts": tuple(dict.fromkeys(one["node"] for one in named)),
                "message": "; ".join(self._lines)[:1000],
            }
        ]


# `Not all ranks joining collective, sequence number: 6` (older: a colon instead of the comma)
# `Collective sequence number: 6 has errors`, `Collective 39 at entry 38 errors`
_FR_HEADER = re.compile(
    r"(?P<missing>Not all ranks joining collective)[,:] sequence number: (?P<seq>\d{1,18})"
    r"|Collective (?:sequence number: (?P<seq2>\d{1,18}) has"
    r"|(?P<seq3>\d{1,18}) at entry \d{1,18}) errors",
)
_FR_CULPRIT = re.compile(r"Culprit rank (\d{1,7})")
# `collective: nccl:all_reduce`, `missing ranks: {2}`, `group info: 0:default_pg`
_FR_FIELD = re.compile(
    r"(?P<name>group info|collective|missing ranks|world size|error msg|internal record id"
    r"|(?:in|out)put sizes|expected ranks|collective state|collective stack trace): ?(?P<v>.*)",
    re.DOTALL,
)


class _FlightRecorder:
    """One finding of PyTorch's flight recorder analyzer, which takes its first rank as innocent."""

    def __init__(self, header: re.Match[str]) -> None:
        self._seq = int(header["seq"] or header["seq2"] or header["seq3"])
        self._missing = header["missing"] is not None
        self._values: dict[str, str] = {}

    def take(self, line: Prefixed) -> Take:
        found = _FR_FIELD.match(line.message)
        if found is None:
            return Take.CLOSED
        self._values[found["name"]] = found["v"].strip()
        return Take.LAST if found["name"] == "collective stack trace" else Take.TAKEN

    def fields(self) -> list[Fields]:
        values = self._values
        group, _, desc = values.get("group info", "").partition(":")
        error = values.get("error msg", "")
        size = values.get("world size", "")
        if self._missing:
            ranks = integers(values.get("missing ranks", ""))
        else:
            ranks = tuple(map(int, _FR_CULPRIT.findall(error)))
        return [
            {
                "kind": NcclKind.FLIGHT_RECORDER,
                "phase": "missing" if self._missing else "mismatch",
                "seq": self._seq,
                "group": group or None,
                "group_desc": desc or None,
                "op": values.get("collective", "").removeprefix("nccl:") or None,
                "ranks": ranks,
                "comm_size": int(size) if size.isdecimal() else None,
                "message": error[:1000] or values.get("collective state"),
            }
        ]
