"""Makes the record of a classified line: whose it is, when it was said, where it stands."""

from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from pathlib import PurePath

from collectors.nccl.labels import Labels
from collectors.nccl.memory import Process, Processes
from collectors.nccl.prefix import Prefixed
from collectors.nccl.shape import Fields
from collectors.nccl.times import line_time
from collectors.nccl.waits import Held
from evidence.identity import digest
from evidence.records import NcclKind, NcclRecord

__all__ = ["RecordMaker"]

_RAW_CHARS = 2000

#: Kinds whose lines a launcher or a tool prints about ranks that are not its own.
_ABOUT_OTHERS = frozenset(
    {
        NcclKind.EXTERNAL_STOP,
        NcclKind.FLIGHT_RECORDER,
        NcclKind.RANK_MAP,
        NcclKind.RAS,
        NcclKind.ROOT_CAUSE,
        NcclKind.WORKER_EXIT,
    }
)
_TEACHING = (NcclKind.COMM_INIT, NcclKind.SETUP)
_COMM_KINDS = (NcclKind.COMM_INIT, NcclKind.COMM_ABORT, NcclKind.COMM_DESTROY)


@dataclass(slots=True)
class RecordMaker:
    """What one log file is, as far as its name tells, and what it has told of its processes.

    ``new_process`` is true when the last record showed a known rank in a new process.
    """

    job: str
    host: str | None
    file: str | None
    rank: int | None
    attempt: int
    tz: tzinfo
    trust_host: bool
    processes: Processes
    labels: Labels = field(default_factory=Labels)
    new_process: bool = False

    def record(self, held: Held, now: datetime) -> NcclRecord:
        """Return the record of a message; learns from it what it tells of processes."""
        line, position = held.line, held.position
        fields = {name: value for name, value in held.fields.items() if name[0] != "_"}
        kind: NcclKind = fields.pop("kind")
        host = self._host(fields.pop("host", None), line) or _label(held.fields.get("_local"))
        pid = fields.pop("pid", None)
        if pid is None:
            pid = line.pid
        self.new_process = False
        if host and pid and kind in _TEACHING:
            self._learn(kind, host, pid, held.fields)
        for name in ("comm_rank", "group", "group_desc", "local_rank"):
            if fields.get(name) is None:
                fields[name] = getattr(line, name)
        # The thread that watches for InfiniBand events never sets a device.
        device = None if kind is NcclKind.IB_ASYNC else line.dev
        process = self.processes.of_pid(host, pid)
        fields["rank"] = self._rank(kind, fields, line, process, device)
        if process is None and pid is None:
            process = self.processes.of_rank(fields["rank"])
        if process is not None and kind not in _ABOUT_OTHERS:
            pid = process.pid
            if line.host is None:
                host = process.host
            _fill(fields, process, held.fields, device)
        first = held.raw.partition("\n")[0][:_RAW_CHARS]
        at = (self.host, self.file, position.stamp, position.offset)
        return NcclRecord(
            id=digest("nccl", *at, kind, held.part, first),
            kind=kind,
            observed_at=now,
            raw=held.raw[:_RAW_CHARS],
            job=self.job or self.processes.world or _folder(self.file),
            attempt=self.attempt + self.processes.restarts,
            host=host,
            pid=pid,
            at=line_time(held.fields.get("_time") or line.text, tz=self.tz, now=now),
            file=self.file,
            line=position.number,
            offset=position.offset,
            count=max(held.count, line.repeated),
            repeated=line.repeated > 0,
            **fields,
        )

    def _learn(self, kind: NcclKind, host: str, pid: int, fields: Fields) -> None:
        if kind is NcclKind.COMM_INIT:
            self.new_process = self.processes.learn(host, pid, fields)
        elif fields.get("_adapters"):
            self.processes.learn_adapters(host, pid, fields["_adapters"])

    def _host(self, told: str | None, line: Prefixed) -> str | None:
        host = told or line.host or self.labels.host(line)
        if host is None or host in ("localhost", "127.0.0.1"):
            return self.host or host
        if self.host is not None and (self.trust_host and told is None):
            return self.host
        # NCCL cuts the host name at its first dot.
        if self.host is not None and self.host.partition(".")[0] == host:
            return self.host
        return host

    def _rank(
        self,
        kind: NcclKind,
        fields: Fields,
        line: Prefixed,
        process: Process | None,
        device: int | None,
    ) -> int | None:
        """The global rank a record is about, from the line, its process, or the file's name."""
        rank: int | None = fields.get("rank")
        if rank is None and kind in _COMM_KINDS:
            return self._comm_rank(kind, fields, process)
        if rank is None:
            rank = line.rank
            # In a sorted group nobody's place is above its global rank: under Ray, `[rankN]` can
            # be the rank of another world than the group's.
            if rank is not None and line.comm_rank is not None and line.comm_rank > rank:
                return self.rank
        if rank is None:
            rank = self.processes.rank(process, device)
        if rank is None and fields.get("local_rank") is not None:
            rank = self.processes.local_ranks.get(fields["local_rank"])
        if rank is None and kind not in _ABOUT_OTHERS:
            rank = self.rank
        return rank

    def _comm_rank(self, kind: NcclKind, fields: Fields, process: Process | None) -> int | None:
        """The global rank of a communicator's line, whose rank is the one inside it."""
        inner: int | None = fields.get("comm_rank")
        size = fields.get("comm_size")
        world = size is not None and size >= self.processes.world_size
        if world and kind is not NcclKind.COMM_INIT:
            return inner
        # The line names its own device, whatever is current in the thread that prints it.
        return self.processes.rank(process, fields.get("cuda_dev"))


def _label(name: str | None) -> str | None:
    """The host's short name, as NCCL prints it; None for an address."""
    label = (name or "").partition(".")[0]
    return label if label[:1].isalpha() and ":" not in label and label != "localhost" else None


def _fill(fields: Fields, process: Process, told: Fields, device: int | None) -> None:
    """Add the card, and the shared names of what the line names by its address or number."""
    own = told.get("cuda_dev")
    card = process.card(device if own is None else own)
    if fields.get("cuda_dev") is None and not process.shared:
        fields["cuda_dev"] = process.cuda_dev
    for name in ("pci", "nvml_dev"):
        if fields.get(name) is None:
            fields[name] = getattr(card, name)
    pointer, adapter = told.get("_pointer"), process.adapters.get(told.get("_adapter", -1))
    if fields.get("comm") is None and pointer is not None:
        fields["comm"] = process.comms.get(pointer)
    if fields.get("hca") is None and adapter is not None:
        name, _, port = adapter.partition(":")
        fields |= {"hca": name, "port": int(port) if port else None}


def _folder(file: str | None) -> str:
    """What stands for a job that nothing names: logs of one job are mostly in one folder."""
    return "unnamed" if file is None else str(PurePath(file).parent)
