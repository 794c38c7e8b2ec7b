"""Messages of several lines: torchrun's root cause and rank map, fr_trace output, RAS reports.

Lines of other processes may stand in between; they pass through and do not end the block.
"""

import re

from collectors.nccl.prefix import Prefixed
from collectors.nccl.ras_text import open_ras
from collectors.nccl.rendezvous import DESYNC_SHAPES
from collectors.nccl.shape import Block, Fields, Take, first_match, integers
from evidence.records import NcclKind

__all__ = ["open_block"]

#: Lines after which a block is taken to be over, whatever comes.
_LINES_MAX = 2000


def open_block(line: Prefixed) -> Block | None:
    """The block that begins with this line, if one does."""
    message = line.message
    if line.c10d:
        told = "Stack trace of the failed collective" in message and "not found" not in message
        return _Stack(message) if told else None
    if "Rendezvous complete for workers" in message:
        return _RankMap(line)
    if message.startswith(("Failures:", "Root Cause (first")) or _FAILURE_BEGINS.match(message):
        return _RootCause(line)
    return open_ras(message) or _open_analysis(line)


def _open_analysis(line: Prefixed) -> Block | None:
    if "ollective" in line.message and (report := _FR_HEADER.search(line.message)):
        return _FlightRecorder(report)
    return _Desync(line) if _DESYNC.search(line.message) else None


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


# `Stack trace of the failed collective: `, then `#0 all_reduce from /opt/torch/c10d.py:2501`
_FRAME = re.compile(r"#\d{1,4} (?P<name>[^\n]{1,200}) from (?P<place>[^\n]{1,300}:\d{1,7})\s*$")
_FRAMES_MAX = 16


class _Stack:
    """Where Python called the collective that timed out, as the watchdog prints it."""

    def __init__(self, message: str) -> None:
        self._frames: list[str] = []
        self._lines = 0
        self._add(message)

    def take(self, line: Prefixed) -> Take:
        self._lines += 1
        if self._lines > _LINES_MAX or line.c10d or not self._add(line.message):
            return Take.CLOSED
        return Take.TAKEN

    def _add(self, message: str) -> bool:
        found = _FRAME.search(message)
        if found is not None and len(self._frames) < _FRAMES_MAX:
            self._frames.append(f"{found['place']} {found['name']}")
        return found is not None

    def fields(self) -> list[Fields]:
        if not self._frames:
            return []
        frames = tuple(self._frames)
        fields: Fields = {"kind": NcclKind.FLIGHT_RECORDER, "phase": "stack", "frames": frames}
        return [fields | {"message": frames[0]}]


# ` - To our best knowledge, ranks [3] are the lagging ranks that caused this timeout.`
# ` - [7] finished collective #182, but didn't join collective #183 (count from 1)`
_DESYNC = re.compile(
    r"To our best knowledge, |\] finished collective #\d+, but didn't|\] joined but didn't finish"
)
# `   #183 started ranks:`, then `     [0, 1, 2] started ALLREDUCE`
_STATE = re.compile(r"\s+#(?P<seq>\d{1,18}) (?:started|finished) ranks:\s*$")
_STATE_RANKS = re.compile(
    r"\s+\[(?P<ranks>[\d, ]{1,9999})\] (?P<state>started|finished) (?P<op>\w{1,99})\s*$"
)


class _Desync:
    """PyTorch's desync report: who is said to lag, and where each rank of the group was."""

    def __init__(self, line: Prefixed) -> None:
        self._found: list[Fields] = []
        self._seq: int | None = None
        self._lines = 0
        self.take(line)

    def take(self, line: Prefixed) -> Take:
        self._lines += 1
        if self._lines > _LINES_MAX or line.c10d:
            return Take.CLOSED
        message = line.message
        if state := _STATE.match(message):
            self._seq = int(state["seq"])
        elif ranks := _STATE_RANKS.match(message):
            self._found.append(self._state(ranks))
        elif fields := first_match(DESYNC_SHAPES, line):
            self._found.append(fields)
        elif "Snapshot of ranks" not in message and not _DESYNC.search(message):
            return Take.CLOSED
        return Take.TAKEN

    def _state(self, ranks: re.Match[str]) -> Fields:
        fields: Fields = {"kind": NcclKind.DESYNC, "phase": ranks["state"], "seq": self._seq}
        return fields | {"ranks": integers(ranks["ranks"]), "op": ranks["op"]}

    def fields(self) -> list[Fields]:
        return self._found


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
