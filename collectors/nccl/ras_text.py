"""The text of an NCCL RAS report (`ncclras`, or the RAS socket), as blocks of lines.

Numbers of operations are launched, not completed; the ranks it lists are the smaller set, which
may as well be ahead as behind. Shapes: nccl/src/ras/client_support.cc, 2.24 to 2.30.
"""

import re

from collectors.nccl.prefix import Prefixed
from collectors.nccl.shape import Block, Fields, Take
from evidence.records import NcclKind

__all__ = ["RESULT_CODES", "comm_id", "open_ras"]

#: Lines after which a paragraph is taken to be over, whatever comes.
_LINES_MAX = 2000
_WORDS_MAX = 1000

#: NCCL's words for its result codes (nccl.h), as a RAS report prints them.
RESULT_CODES = {
    "Unhandled CUDA error": 1,
    "System error": 2,
    "Internal error": 3,
    "Invalid argument": 4,
    "Invalid usage": 5,
    "Remote process error": 6,
}

# `#0-0 (c07b1e55d2a94f38) MISMATCH`
_HEADER = re.compile(r"\s*#\d{1,7}-\d{1,7} \((?P<comm>[0-9a-f]{1,32})\) (?P<status>[A-Z]+)\s*$")
# `INCOMPLETE`, `DEAD`, `TIMEOUT`
_BARE = re.compile(r"(?P<status>INCOMPLETE|DEAD|TIMEOUT)\s*$")
# `  Rank 12 -- GPU 4 (NVML 4) managed by process 4711 on node 10.3.0.9`
# `  Rank 12 has launched up to operation 640 -- [process information not found]`
_RANK = re.compile(
    r"Rank (?P<rank>\d{1,7})\b[^\n]{0,200} -- (?:GPU [^\n]{1,60} managed by process"
    r" (?P<pid>\d{1,10}) on node (?P<node>\S{1,253})|\[process information)"
)
# `  Process 4711 on node 10.3.0.9 managing GPUs 4,5 (NVML 0,1)`
_PROCESS = re.compile(r"Process (?P<pid>\d{1,10}) on node (?P<node>\S{1,253}) managing GPU")
# `  Communicator ranks have different AllGather operation counts`, `... have different status`
_DIFFERENT = re.compile(
    r"Communicator ranks have different (?:(?P<op>\w+) operation counts|status)"
)
# `  30 ranks have launched up to operation 640`, `  2 ranks have not launched any operations`
# `  Rank 12 has launched up to operation 641 -- GPU 4 managed by ...`
_LAUNCHED = re.compile(
    r"(?:(?P<count>\d{1,7}) ranks have|Rank \d{1,7} has) "
    r"(?:launched up to operation (?P<number>\d{1,18})|not launched any operations)"
)
# `  2 ranks reported Remote process error`, `  Rank 7 reported System error -- GPU 7 managed ...`
_REPORTED = re.compile(r"(?:\d{1,7} ranks|Rank \d{1,7}) reported (?P<what>[A-Z][\w ]{1,40}\w)")

# `NCCL version 2.29.2 compiled with CUDA 12.9`
_VERSION = re.compile(r"NCCL version (\S{1,40}) compiled with CUDA")
# What stands above and between the tables of a report.
_HEADS = re.compile(
    r"(?:Errors|Warnings|Job summary|=+|CUDA runtime version .*|Communicators\.\.\..*"
    r"|\s*(?:Group|Nodes|Processes|\(total\)|per node|per process|# )[^\n]{0,99})?\s*$"
)
# What stands between the parts of a report; the open part takes it, so that the next is not
# passed over, whose first line says little.
_BETWEEN = re.compile(r"(?:Errors|Warnings|=+)?\s*$")

# `    0         1         4         8        32        32   RUNNING  MISMATCH`
_ROW = re.compile(
    r"\s*\d{1,7}\s+(?P<comms>\d{1,9})\s+(?P<nodes>\d{1,7})\s+\d{1,7}(?:-\d{1,7})?\s+"
    r"(?P<size>\d{1,9})\s+(?P<ranks>\d{1,9})\s+(?P<state>[A-Z]+)\s+(?P<errors>[A-Z,]+)\s*$"
)
# `      4          8            1         32       32`, under `  Nodes  Processes  GPUs ...`
_JOB_ROW = re.compile(
    r"\s*(?P<nodes>\d{1,7})\s+\d{1,7}\s+\d{1,7}\s+(?P<processes>\d{1,9})\s+(?P<gpus>\d{1,9})\s*$"
)


def open_ras(message: str) -> Block | None:
    """The part of a report that begins with this line, if one does."""
    if "#" in message and (header := _HEADER.match(message)):
        return _Paragraph(header["comm"], header["status"])
    if bare := _BARE.match(message):
        return _Paragraph(None, bare["status"])
    if "compiled with CUDA" in message and _VERSION.match(message):
        return _Head(message)
    if message[-1:].isupper() and _ROW.match(message):
        return _Head(message)
    return None


def comm_id(text: str) -> str:
    """A communicator's id as the Init lines of its ranks print it: hex without leading zeros."""
    return f"0x{text.removeprefix('0x').lstrip('0') or '0'}"


class _Paragraph:
    """One error or warning; ``ranks`` are ranks of that communicator."""

    def __init__(self, comm: str | None, status: str) -> None:
        self._comm = None if comm is None else comm_id(comm)
        self._status = status.lower()
        self._lines: list[str] = []
        self._blank = False

    def take(self, line: Prefixed) -> Take:
        message = line.message
        if len(self._lines) >= _LINES_MAX:
            return Take.CLOSED
        if _BETWEEN.match(message):
            self._blank = True  # the next operation whose counts differ may follow
            return Take.TAKEN
        if not message.startswith("  ") or (self._blank and not _DIFFERENT.match(message.strip())):
            return Take.CLOSED
        self._blank = False
        self._lines.append(message.strip())
        return Take.TAKEN

    def fields(self) -> list[Fields]:
        parts: list[list[str]] = [[]]
        for line in self._lines:
            if _DIFFERENT.match(line) and parts[-1]:
                parts.append([])
            parts[-1].append(line)
        return [self._part(lines) for lines in parts]

    def _part(self, lines: list[str]) -> Fields:
        text = "\n".join(lines)
        ranks = list(_RANK.finditer(text))
        named = [one for one in (*ranks, *_PROCESS.finditer(text)) if one["node"]]
        different, reported = _DIFFERENT.search(text), _REPORTED.search(text)
        return {
            "kind": NcclKind.RAS,
            "phase": self._status,
            "comm": self._comm,
            "op": None if different is None else different["op"],
            "ranks": tuple(int(rank["rank"]) for rank in ranks),
            "hosts": tuple(dict.fromkeys(one["node"] for one in named)),
            "pid": int(named[0]["pid"]) if len(named) == 1 else None,
            "status": None if reported is None else RESULT_CODES.get(reported["what"]),
            "launched": tuple(
                (int(one["number"] or 0), int(one["count"] or 1))
                for one in _LAUNCHED.finditer(text)
            ),
            "message": "; ".join(lines)[:_WORDS_MAX],
        }


class _Head:
    """The head of a report and its tables: one record a row, and the version of NCCL."""

    def __init__(self, message: str) -> None:
        self._version = _VERSION.match(message)
        self._rows: list[re.Match[str]] = []
        self._lines = 0
        self._add(message)

    def take(self, line: Prefixed) -> Take:
        self._lines += 1
        if self._lines > _LINES_MAX or not (self._add(line.message) or _HEADS.match(line.message)):
            return Take.CLOSED
        return Take.TAKEN

    def _add(self, message: str) -> bool:
        row = _ROW.match(message) or _JOB_ROW.match(message)
        if row is not None:
            self._rows.append(row)
        return row is not None

    def fields(self) -> list[Fields]:
        rows = [self._row(row.groupdict()) for row in self._rows]
        if self._version is None:
            return rows
        version = {"kind": NcclKind.SETUP, "phase": "version", "message": self._version[1]}
        return [version, *rows]

    def _row(self, row: dict[str, str]) -> Fields:
        fields: Fields = {"kind": NcclKind.RAS}
        if "gpus" in row:
            message = f"{row['nodes']} nodes, {row['processes']} processes, {row['gpus']} GPUs"
            return fields | {"phase": "job", "comm_size": int(row["gpus"]), "message": message}
        message = (
            f"{row['comms']} communicators of {row['size']} ranks on {row['nodes']} nodes:"
            f" {row['state']}, {row['errors']}"
        )
        size = int(row["size"])
        return fields | {
            "phase": "summary",
            "comm_size": size,
            "state": row["state"].lower(),
            "message": message,
        }
