"""Takes the prefixes off a training log line: launcher, NCCL, c10d, process group.

``[rankN]:`` is the global rank, ``[Rank r]`` and the Rank in ``[PG ...]`` are ranks inside a group.
"""

import re
from dataclasses import dataclass

__all__ = ["Prefixed", "begins_anew", "read_prefix"]

# `\x1b[36m(Worker pid=4711)\x1b[0m`: Ray and rich colour what they print.
_COLOUR = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07)")

# `[2026-04-02 09:13:51] gpu7:811:902 [3] transport/nvls.cc:379 (nvlsBind) NCCL WARN text`
# `gpu7:811:902 [3] include/socket.h 398 NCCL WARN text`, `gpu7:811:902 [3] NCCL INFO text`
_NCCL = re.compile(
    r"(?:(?P<host>[A-Za-z0-9][\w.\-]{0,252}):(?P<pid>\d{1,10})(?::\d{1,10})? "
    r"\[(?P<dev>-?\d{1,4})\] )?"
    r"(?:(?P<file>[\w./\-]{1,200}\.\w{1,9})[: ]\d{1,9}(?: \(\w{1,99}\))? )?"
    r"NCCL (?P<level>WARN|INFO) ?(?P<message>.*)",
    re.DOTALL,
)

# `[rank5]:[E402 09:13:51.118204771 ProcessGroupNCCL.cpp:632] text`
# `[E ProcessGroupNCCL.cpp:916] text`
_GLOG = re.compile(
    r"\[[IWEF](?:\d{3,4})? ?(?:\d\d:\d\d:\d\d(?:\.\d{1,9})? )?"
    r"(?P<file>\w{1,99}\.\w{1,9}):\d{1,9}\] ?(?P<message>.*)",
    re.DOTALL,
)

# `W0402 09:13:51.118000 4711 torch/distributed/elastic/agent/server/api.py:719] text`
# `WARNING:torch.distributed.elastic.multiprocessing.api:text`
# `[2026-04-02 09:13:51,118] torch.distributed.elastic.multiprocessing.api: [ERROR] text`
_ELASTIC = re.compile(
    r"(?:[IWEF]\d{4} [\d:.]+ (?P<pid>\d+) \S+\.py:\d+\] ?"
    r"|(?:INFO|WARNING|ERROR):torch\.distributed[\w.]*:"
    r"|torch\.distributed[\w.]*: \[(?:INFO|WARNING|ERROR)\] ?)(?P<message>.*)",
    re.DOTALL,
)

# `[rank5]: Traceback (most recent call last):`, `[rank5]:[E402 ...`
_RANK = re.compile(r"\[rank(\d{1,7})\]: ?")

# `(Worker pid=4711, ip=10.3.0.9) text`, `(PolicyWorker[rank=9] pid=4711) text`
_RAY = re.compile(
    r"\([\w.]{1,99}(?:\[rank=(?P<rank>\d{1,7})\]| rank=(?P<rank2>\d{1,7}))? pid=(?P<pid>\d{1,10})"
    r"(?:, ip=(?P<ip>[\w.:\-]+))?\) ?",
)

# `text [repeated 15x across cluster]`
_REPEATED = re.compile(r"\[repeated (\d{1,6})x across cluster\]")

# `12: text` (srun --label), `gpu7: text` (pdsh, DeepSpeed); `mlx5: ` is a library
_LABEL = re.compile(r"\s*(\d{1,6}|(?!mlx\d|rank)[a-z][a-z\-.]{0,250}\d[\w.\-]{0,250}): ")

# `[default3]:text` (torchrun --tee), `[1,12]<stderr>:text` (OpenMPI --tag-output)
_TEE = re.compile(r"\[default(\d{1,4})\]:")
_MPI = re.compile(r"\[\d+,(\d{1,7})\]<std(?:out|err)>:")

# `[PG ID 5 PG GUID 37(TENSOR_MODEL_PARALLEL_GROUP) Rank 1]`, `[PG GUID 0(default_pg) Rank 6]`
# `[PG 0 (default_pg) Rank 3]`, `[PG 1 Rank 0]`
_GROUP = re.compile(
    r"\[PG (?:(?:ID \d+ ?PG )?GUID ?(?P<guid>[^\s(\]]+)|(?P<number>\d+)) ?"
    r"(?:\((?P<desc>[^)]*)\))? ?Rank ?(?P<rank>\d{1,7})\] ?",
)

# `[Rank 1] Watchdog caught collective operation timeout: ...`
_GROUP_RANK = re.compile(r"\[Rank (\d{1,7})\]:? ?")


@dataclass(frozen=True, slots=True)
class Prefixed:
    """One line, its prefixes read and taken off.

    ``text`` is the whole line without colours, ``message`` what the program said. ``dev`` is the
    CUDA device current in the printing thread, which is not always the rank's own. ``source`` is
    the C++ file that printed, ``level`` NCCL's (WARN, INFO) or None. ``label`` is a launcher's word
    in front of the line: a node's name, a task's number, or somebody's line number.
    """

    text: str
    message: str
    host: str | None = None
    pid: int | None = None
    dev: int | None = None
    source: str | None = None
    level: str | None = None
    c10d: bool = False
    elastic: bool = False
    rank: int | None = None
    local_rank: int | None = None
    comm_rank: int | None = None
    group: str | None = None
    group_desc: str | None = None
    ip: str | None = None
    repeated: int = 0
    label: str | None = None
    agent_pid: int | None = None


def begins_anew(text: str) -> bool:
    """Whether the line has a prefix of its own and so does not continue the line before."""
    return any(pattern.search(text) for pattern in _BEGINNINGS)


_BEGINNINGS = (
    _RANK,
    _NCCL,
    _GLOG,
    _ELASTIC,
    _RAY,
    # What c10d prints after its message, on lines of their own.
    re.compile(
        r"^\s*(?:Exception raised from|frame #|what\(\):|terminate called|Traceback|\.\.\.)"
    ),
    re.compile(r"^\s*(?:[\w.]+(?:Error|Exception)\b|srun:|slurmstepd:|CUDA kernel errors)"),
    re.compile(r"^\[?\d{4}[-/]\d\d[-/]\d\d[ T]"),
)


def read_prefix(text: str) -> Prefixed:
    """Read what stands in front of the message; anything missing is None."""
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    fields: dict[str, str | int | bool | None] = {}
    message = text
    if not text.startswith("[") and (label := _LABEL.match(text)):
        fields["label"] = label[1]
        message = text[label.end() :]
    if "pid=" in text and (ray := _RAY.search(text)):
        fields |= {"pid": int(ray["pid"]), "ip": ray["ip"]}
        if rank := ray["rank"] or ray["rank2"]:
            fields["rank"] = int(rank)
        message = text[ray.end() :]
    if "repeated" in text and (repeated := _REPEATED.search(text)):
        fields["repeated"] = int(repeated[1])
        message = message.replace(repeated[0], "").rstrip()
    if "]<std" in text and (mpi := _MPI.search(text)):
        fields["rank"] = int(mpi[1])
        message = text[mpi.end() :]
    if "[default" in text and (tee := _TEE.search(text)):
        fields["local_rank"] = int(tee[1])
        message = text[tee.end() :]
    if "[rank" in message and (rank_found := _RANK.search(message)):
        fields["rank"] = int(rank_found[1])
        message = message[rank_found.end() :]
    message = _program_prefix(message, fields)
    message = _group_prefix(message, fields)
    return Prefixed(text=text, message=message, **fields)  # type: ignore[arg-type]


def _program_prefix(message: str, fields: dict[str, str | int | bool | None]) -> str:
    if "NCCL WARN" in message or "NCCL INFO" in message:
        found = _NCCL.search(message)
        if found is not None:
            fields |= {"source": found["file"], "level": found["level"]}
            if found["host"]:
                fields |= {
                    "host": found["host"],
                    "pid": int(found["pid"]),
                    "dev": int(found["dev"]),
                }
            return found["message"]
    if ".cpp:" in message and (glog := _GLOG.search(message)):
        fields |= {"source": glog["file"], "c10d": True}
        return glog["message"]
    if ("torch" in message or ".py:" in message) and (elastic := _ELASTIC.search(message)):
        fields["elastic"] = True
        if elastic["pid"]:
            fields["agent_pid"] = int(elastic["pid"])
        return elastic["message"]
    return message


def _group_prefix(message: str, fields: dict[str, str | int | bool | None]) -> str:
    # Torch 2.8 prints the group twice in one line; NCCL and old torch print `[Rank r]` alone.
    while "[PG " in message and (group := _GROUP.search(message)):
        fields |= {"group": group["guid"] or group["number"], "comm_rank": int(group["rank"])}
        if group["desc"] and group["desc"] != "undefined":
            fields["group_desc"] = group["desc"]
        message = message[: group.start()] + message[group.end() :]
    if "[Rank " in message and (rank := _GROUP_RANK.search(message)):
        fields.setdefault("comm_rank", int(rank[1]))
    return message
