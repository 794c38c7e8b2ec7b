"""Builds flight recorder dumps as PyTorch writes them: its pickler's opcodes, and its JSON."""

import json
import struct
from typing import Any

__all__ = ["dump", "entry", "to_json", "to_pickle"]

NS = 1_780_000_000_000_000_000


def entry(
    number: int,
    seq: int,
    *,
    state: str = "completed",
    op: str = "nccl:all_reduce",
    group: tuple[str, str] = ("0", "default_pg"),
    local: int = 0,
    **more: Any,
) -> dict[str, Any]:
    return {
        "frames": FRAMES,
        "record_id": number,
        "pg_id": local,
        "process_group": group,
        "thread_name": "pt_main_thread",
        "thread_id": "139",
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": op,
        "time_created_ns": NS + number * 1_000_000_000,
        "input_sizes": [[4, 1024]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[4, 1024]],
        "output_dtypes": ["BFloat16"],
        "state": state,
        "time_discovered_started_ns": None if state == "scheduled" else NS + number * 1_000_000_001,
        "time_discovered_completed_ns": NS if state == "completed" else None,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": False,
    } | more


FRAMES = [
    {"name": "all_reduce", "filename": "/opt/torch/distributed_c10d.py", "line": 2810},
    {"name": "step", "filename": "/srv/train.py", "line": 412},
]


def dump(entries: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "version": "2.10",
        "comm_lib_version": "2.27.5",
        "pg_config": {
            "0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(16)))},
            "37": {"name": "37", "desc": "TENSOR_GROUP", "ranks": "[3, 7, 11, 15]"},
        },
        "pg_status": {
            "0": {
                "last_enqueued_collective": 9,
                "last_started_collective": 9,
                "last_completed_collective": 8,
            },
            "4": {
                "last_enqueued_collective": 210,
                "last_started_collective": 209,
                "last_completed_collective": 208,
            },
        },
        "entries": entries,
    } | more


def to_json(content: dict[str, Any]) -> bytes:
    """The JSON form: no frames, counters as strings, a missing time as 0."""
    entries = [
        {k: (0 if v is None else v) for k, v in one.items() if k != "frames"}
        for one in content["entries"]
    ]
    status = {
        local: {name: str(value) for name, value in told.items()}
        for local, told in content["pg_status"].items()
    }
    return json.dumps(content | {"entries": entries, "pg_status": status}).encode()


def to_pickle(content: Any) -> bytes:
    """What torch's own pickler writes: protocol 2, strings and shared containers memoized."""
    return b"\x80\x02" + _Pickler(content).push(content) + b"."


class _Pickler:
    def __init__(self, content: Any) -> None:
        self._memo: dict[Any, int] = {}
        self._uses: dict[int, int] = {}
        self._count(content)

    def _count(self, value: Any) -> None:
        self._uses[id(value)] = self._uses.get(id(value), 0) + 1
        if self._uses[id(value)] == 1 and isinstance(value, (list, tuple, dict)):
            for one in value.values() if isinstance(value, dict) else value:
                self._count(one)

    def push(self, value: Any) -> bytes:
        if isinstance(value, str):
            if value in self._memo:
                return _get(self._memo[value])
            raw = value.encode()
            return b"X" + struct.pack("<I", len(raw)) + raw + self._put(value)
        if not isinstance(value, (list, tuple, dict)):
            return _scalar(value)
        if self._uses[id(value)] < 2:
            return self._container(value)
        if ("shared", id(value)) in self._memo:
            return _get(self._memo["shared", id(value)])
        return self._container(value) + self._put(("shared", id(value)))

    def _container(self, value: Any) -> bytes:
        if isinstance(value, dict):
            inner = b"".join(self.push(k) + self.push(v) for k, v in value.items())
            return b"}(" + inner + b"u"
        inner = b"".join(self.push(one) for one in value)
        return b"](" + inner + b"e" if isinstance(value, list) else b"(" + inner + b"t"

    def _put(self, key: Any) -> bytes:
        number = self._memo[key] = len(self._memo)
        return b"q" + bytes([number]) if number < 256 else b"r" + struct.pack("<I", number)


def _get(number: int) -> bytes:
    return b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number)


def _scalar(value: Any) -> bytes:
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if 0 <= value < 1 << 8:
        return b"K" + bytes([value])
    if 0 <= value < 1 << 16:
        return b"M" + struct.pack("<H", value)
    if abs(value) < 1 << 31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)
