"""What a PyTorch flight recorder dump holds, read from its pickle or JSON form and bounded.

Field names and both forms: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp (versions 1 to
2.10). The JSON form writes the counters of ``pg_status`` as strings and a missing time as 0.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from collectors.nccl.flight_recorder_pickle import (
    CONTAINERS_MAX,
    OPCODES_MAX,
    PickleError,
    TruncatedError,
    load,
)
from evidence.records import FlightEntry

__all__ = ["Dump", "DumpError", "Group", "IncompleteError", "read_dump"]

#: Entries looked at; PyTorch's ring holds 2,000 unless told otherwise.
_ENTRIES_MAX = 200_000
#: Process groups looked at: tensor, pipeline, expert and data groups of one rank are a few dozen.
_GROUPS_MAX = 1000
#: Kept of each group: the oldest operations that are not completed, and the newest that are.
_OLDEST, _NEWEST = 8, 4
_FRAMES_MAX, _WORDS_MAX, _SIZES_MAX = 16, 300, 120
_RANKS_CHARS = 2_000_000
_TENSORS_MAX, _DIMENSIONS_MAX = 64, 16
_INT_MAX = 2**63 - 1
_DIGITS = re.compile(r"\d{1,9}")


class DumpError(ValueError):
    """Not a dump that can be read; the message is one sentence."""


class IncompleteError(DumpError):
    """The dump ends early: it is still being written, or its writer died."""


@dataclass(slots=True)
class Group:
    """One process group as one rank saw it; counters are None where the dump has none of it."""

    name: str | None
    desc: str | None = None
    members: tuple[int, ...] = ()
    last_enqueued: int | None = None
    last_started: int | None = None
    last_completed: int | None = None
    total: int = 0
    incomplete: int = 0
    #: The newest completed ones before the first that is not, and the oldest that are not.
    entries: tuple[FlightEntry, ...] = ()
    oldest: FlightEntry | None = None
    frames: tuple[str, ...] = ()
    #: The same as they stand in the dump.
    _done: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_NEWEST))
    _open: list[dict[str, Any]] = field(default_factory=list)

    def add(self, raw: dict[str, Any]) -> None:
        """Take one more entry, in the order of the dump."""
        self.total += 1
        if raw.get("state") != "completed":
            self.incomplete += 1
            if len(self._open) < _OLDEST:
                self._open.append(raw)
        elif not self._open:
            self._done.append(raw)

    def finish(self) -> None:
        """Read the entries that are kept."""
        waiting = [entry for raw in self._open if (entry := _entry(raw)) is not None]
        done = [entry for raw in self._done if (entry := _entry(raw)) is not None]
        self.entries = (*done, *waiting)
        self.oldest = waiting[0] if waiting else None
        self.frames = _frames(self._open[0].get("frames")) if self._open else ()


@dataclass(slots=True)
class Dump:
    """One rank's dump; ``unnamed`` counts local groups whose counters no entry gives a name."""

    version: str
    library: str | None = None
    groups: list[Group] = field(default_factory=list)
    total: int = 0
    unnamed: int = 0

    @property
    def world_size(self) -> int | None:
        """How many ranks the job has: the default group's, else up to the highest one named."""
        for group in self.groups:
            if group.members and (group.desc == "default_pg" or group.name == "0"):
                return len(group.members)
        return max((max(group.members) + 1 for group in self.groups if group.members), default=None)


def read_dump(data: bytes) -> Dump:
    """Read one whole dump, pickle or JSON; nothing in it is executed.

    Raises IncompleteError when its end is missing, DumpError when it is no dump.
    """
    content = _json(data) if data.lstrip()[:1] == b"{" else _pickle(data)
    if not isinstance(content, dict) or not ({"entries", "pg_status", "pg_config"} & set(content)):
        raise DumpError("it holds no flight recorder entries")
    dump = Dump(
        version=_words(content.get("version")) or "unknown",
        library=_words(content.get("comm_lib_version") or content.get("nccl_version")),
    )
    _read_groups(dump, content)
    return dump


def _json(data: bytes) -> Any:  # noqa: ANN401 (somebody's JSON)
    # Each empty object costs the memory of hundreds of bytes.
    if data.count(b"{") + data.count(b"[") > CONTAINERS_MAX:
        raise DumpError(f"its JSON holds more than {CONTAINERS_MAX} containers")
    if data.count(b",") > OPCODES_MAX:
        raise DumpError(f"its JSON holds more than {OPCODES_MAX} values")
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if "truncated" in str(error):
            raise IncompleteError("its JSON is not complete") from error
        raise DumpError(f"its JSON cannot be read: {str(error)[:200]}") from error


def _pickle(data: bytes) -> Any:  # noqa: ANN401 (somebody's data)
    try:
        return load(data)
    except TruncatedError as error:
        raise IncompleteError(str(error)) from error
    except PickleError as error:
        raise DumpError(str(error)) from error


def _read_groups(dump: Dump, content: dict[str, Any]) -> None:
    groups: dict[tuple[str | None, str | None], Group] = {}
    names: dict[int, tuple[str | None, str | None]] = {}
    for group in _configured(content.get("pg_config")):
        groups[group.name, group.desc] = group
    for raw in _some(content.get("entries"), _ENTRIES_MAX):
        if not isinstance(raw, dict):
            continue
        dump.total += 1
        key = _group_of(raw)
        local = _integer(raw.get("pg_id"))
        if local is not None:
            names[local] = key
        if key not in groups and len(groups) < _GROUPS_MAX:
            groups[key] = Group(*key)
        if key in groups:
            groups[key].add(raw)
    for group in groups.values():
        group.finish()
    _add_counters(dump, content.get("pg_status"), groups, names)
    dump.groups = list(groups.values())


def _configured(config: Any) -> Iterator[Group]:  # noqa: ANN401 (somebody's data)
    if not isinstance(config, dict):
        return
    for place, (name, told) in enumerate(config.items()):
        if place >= _GROUPS_MAX:
            return
        if isinstance(told, dict):
            ranks = told.get("ranks")
            yield Group(
                name=_words(told.get("name")) or _words(name),
                desc=_desc(told.get("desc")),
                members=_ranks(ranks),
            )


def _ranks(told: Any) -> tuple[int, ...]:  # noqa: ANN401 (somebody's data)
    """Ranks as printed (``"[0, 1, 2]"``) or as a list."""
    if isinstance(told, str):
        return tuple(map(int, _DIGITS.findall(told[:_RANKS_CHARS])))
    numbers = (_integer(one) for one in _some(told, _ENTRIES_MAX))
    return tuple(one for one in numbers if one is not None and one >= 0)


def _group_of(raw: dict[str, Any]) -> tuple[str | None, str | None]:
    told = raw.get("process_group")
    if isinstance(told, (list, tuple)) and told:
        return _words(told[0]), _desc(told[1]) if len(told) > 1 else None
    # Version 1 names a group by its local number alone.
    local = _integer(raw.get("pg_id"))
    return (None if local is None else str(local)), None


def _entry(raw: dict[str, Any]) -> FlightEntry | None:
    p2p = raw.get("is_p2p") is True
    seq = _integer(raw.get("p2p_seq_id" if p2p else "collective_seq_id"))
    if seq is None:
        seq = _integer(raw.get("seq_id"))
    if seq is None:
        return None
    op = _words(raw.get("profiling_name"))
    dtypes = [_words(one) or "?" for one in _some(raw.get("input_dtypes"), _TENSORS_MAX)]
    return FlightEntry(
        seq=seq,
        op=None if op is None else op.removeprefix("nccl:"),
        state=_words(raw.get("state")),
        p2p=p2p,
        retired=raw.get("retired") is True,
        sizes_in=_sizes(raw.get("input_sizes")),
        sizes_out=_sizes(raw.get("output_sizes")),
        numel_in=_numel(raw.get("input_sizes")),
        numel_out=_numel(raw.get("output_sizes")),
        dtype=",".join(dict.fromkeys(dtypes))[:_SIZES_MAX] or None,
        timeout_ms=_integer(raw.get("timeout_ms")),
        created_at=_time(raw.get("time_created_ns")),
        started_at=_time(raw.get("time_discovered_started_ns")),
        completed_at=_time(raw.get("time_discovered_completed_ns")),
    )


def _frames(told: Any) -> tuple[str, ...]:  # noqa: ANN401 (somebody's data)
    """``file:line name`` of the innermost calls, innermost first as PyTorch writes them."""
    return tuple(
        f"{_words(one.get('filename')) or '?'}:{_integer(one.get('line')) or 0}"
        f" {_words(one.get('name')) or '?'}"
        for one in _some(told, _FRAMES_MAX)
        if isinstance(one, dict)
    )


def _add_counters(
    dump: Dump,
    status: Any,  # noqa: ANN401 (somebody's data)
    groups: dict[tuple[str | None, str | None], Group],
    names: dict[int, tuple[str | None, str | None]],
) -> None:
    """Give each group its counters; they stand under its local number, which entries resolve."""
    if not isinstance(status, dict):
        return
    default = next((key for key in groups if "default_pg" in key), None)
    for place, (local, told) in enumerate(status.items()):
        number = _integer(local)
        if place >= _GROUPS_MAX or number is None or not isinstance(told, dict):
            continue
        key = names.get(number)
        # The first group of a process is the default one.
        if key is None and number == 0:
            key = default
        group = None if key is None else groups.get(key)
        if group is None:
            dump.unnamed += 1
            continue
        group.last_enqueued = _integer(told.get("last_enqueued_collective"))
        group.last_started = _integer(told.get("last_started_collective"))
        group.last_completed = _integer(told.get("last_completed_collective"))


def _some(told: Any, most: int) -> Iterable[Any]:  # noqa: ANN401 (somebody's data)
    return told[:most] if isinstance(told, (list, tuple)) else ()


def _integer(told: Any) -> int | None:  # noqa: ANN401 (somebody's data)
    if isinstance(told, str) and len(told) < 20 and told.removeprefix("-").isdecimal():  # noqa: PLR2004
        told = int(told)
    if isinstance(told, bool) or not isinstance(told, int) or abs(told) > _INT_MAX:
        return None
    return told


def _words(told: Any) -> str | None:  # noqa: ANN401 (somebody's data)
    return told[:_WORDS_MAX] if isinstance(told, str) and told else None


def _desc(told: Any) -> str | None:  # noqa: ANN401 (somebody's data)
    """A group's description; PyTorch writes ``undefined`` where none was given."""
    words = _words(told)
    return None if words == "undefined" else words


def _sizes(told: Any) -> str | None:  # noqa: ANN401 (somebody's data)
    shapes = [_shape(one) for one in _some(told, _TENSORS_MAX)]
    text = ", ".join(str([-1 if n is None else n for n in shape]) for shape in shapes)
    return f"[{text}]"[:_SIZES_MAX] if isinstance(told, (list, tuple)) else None


def _shape(told: Any) -> list[int | None]:  # noqa: ANN401 (somebody's data)
    return [_integer(one) for one in _some(told, _DIMENSIONS_MAX)]


def _numel(told: Any) -> int | None:  # noqa: ANN401 (somebody's data)
    """Elements of all tensors together, as the watchdog counts them; None when not known."""
    if not isinstance(told, (list, tuple)) or len(told) > _TENSORS_MAX:
        return None
    total = 0
    for tensor in told:
        numel = 1
        for size in _shape(tensor):
            if size is None or size < 0 or numel > _INT_MAX:
                return None
            numel *= size
        total += numel
    return total if total <= _INT_MAX else None


def _time(told: Any) -> datetime | None:  # noqa: ANN401 (somebody's data)
    number = _integer(told)
    if not number or number < 0:
        return None
    try:
        return datetime.fromtimestamp(number / 1e9, UTC)
    except (OverflowError, OSError, ValueError):
        return None
