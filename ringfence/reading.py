"""Reads a log of any kind into records, each with its topic and key.

Kernel and training logs go through the sieve: only lines that may matter reach the parser, which
then gives the records that it gives for the whole file.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path

from msgspec.structs import replace

from collectors import nvidia_smi
from collectors.fabric import text as fabric_text
from collectors.kernel.stream import KernelStream
from collectors.nccl.flight_recorder import MAX_BYTES, rank_in_name
from collectors.nccl.flight_recorder_dump import Dump, DumpError, read_dump
from collectors.nccl.flight_recorder_records import Origin, records_of
from collectors.nccl.ras_json import ReportError, read_report
from collectors.nccl.stream import NcclStream, Position
from evidence.identity import digest
from evidence.records import FabricRecord, GpuFrame, KernelKind, KernelRecord, NcclRecord
from ringfence import sieve
from ringfence.logs import READ_ERRORS, Log, LogKind, NotReadable
from rules.stage import reckonable

__all__ = ["Found", "Record", "records", "training"]

Record = KernelRecord | NcclRecord | GpuFrame | FabricRecord
#: A record with its topic and key.
Found = tuple[str, str, Record]

#: Bytes of a training log's line that are read.
_LINE_MAX = 65536
#: No collective is waited for longer than a day.
_LONGEST_MS = 86_400_000
#: The files do not say which subnet they are of.
_SUBNET = "default"


def records(log: Log, now: datetime) -> Iterator[Found]:
    """Each record of a log, in its order.

    Raises NotReadable (an OSError) for a dump or report that is none, and one of READ_ERRORS where
    the log breaks off, after the records of what came before.
    """
    return _READERS[log.kind](log, now)


def _kernel(log: Log, now: datetime) -> Iterator[Found]:
    stream = KernelStream(
        host=log.host, clock=lambda: now, file=log.file, keep_other=False, coalesce=True
    )
    broken: Exception | None = None
    try:
        for lines in sieve.candidates(log.blocks(), sieve.KERNEL):
            stream.lines(lines)
            for record in stream.take():
                yield from _of_interest(record, log)
    except READ_ERRORS as error:
        broken = error
    for record in stream.settle():
        yield from _of_interest(record, log)
    if broken is not None:
        raise broken


def _of_interest(record: KernelRecord, log: Log) -> Iterator[Found]:
    if record.kind is not KernelKind.OTHER:
        yield "kernel", record.host or log.host, record


def _nccl(log: Log, now: datetime) -> Iterator[Found]:
    stream = NcclStream(job=log.job, host=log.host, file=log.file)
    broken: Exception | None = None
    try:
        for said in training(stream, log.blocks(), now):
            yield "nccl", said.job, said
    except READ_ERRORS as error:
        broken = error
    for said in stream.flush(now):
        yield "nccl", said.job, said
    if broken is not None:
        raise broken


def training(stream: NcclStream, blocks: Iterable[bytes], now: datetime) -> Iterator[NcclRecord]:
    """What `collectors.nccl.parse_stream` does, but lines that surely say nothing in one step."""
    offset = number = 0
    for block in blocks:
        starts = sieve.NCCL.starts(block)
        waiting = None if starts is None else iter((*starts, len(block)))
        following = 0 if waiting is None else next(waiting)
        at, size = 0, len(block)
        while at < size:
            if waiting is not None and not stream.pending:
                while following < at:
                    following = next(waiting)
                if at < following:
                    passed = block.count(b"\n", at, following)
                    stream.idle(b"", passed)
                    number, at = number + passed, following
                    continue
            end = block.find(b"\n", at) + 1 or size
            line = block[at:end]
            number += 1
            if len(line) > _LINE_MAX or not stream.idle(line):
                yield from _feed(stream, line, Position(offset + at, number), now)
            at = end
        offset += size + (block[-1:] != b"\n")


def _feed(stream: NcclStream, line: bytes, at: Position, now: datetime) -> Iterator[NcclRecord]:
    """One line; progress bars leave several behind one carriage return each."""
    start = at.offset
    for piece in line.removesuffix(b"\n").removesuffix(b"\r").split(b"\r"):
        where = Position(start, at.number)
        yield from stream.feed(piece[:_LINE_MAX], where, now, cut=len(piece) > _LINE_MAX)
        start += len(piece) + 1


def _gpu(log: Log, now: datetime) -> Iterator[Found]:
    for frame in nvidia_smi.parse_stream(log.lines(), host=log.host, now=now, file=log.file):
        yield "gpu", frame.host, _answering(frame)


def _answering(frame: GpuFrame) -> GpuFrame:
    """The frame without GPUs that were only listed: a lost one is listed like any other."""
    if not any("status" in gpu.unread for tick in frame.ticks for gpu in tick.gpus):
        return frame
    ticks = tuple(
        replace(tick, gpus=tuple(gpu for gpu in tick.gpus if "status" not in gpu.unread))
        for tick in frame.ticks
    )
    return replace(frame, ticks=ticks)


def _fabric(log: Log, now: datetime) -> Iterator[Found]:
    for port in fabric_text.parse_stream(log.lines(), subnet=_SUBNET, now=now, file=log.file):
        yield "fabric", port.subnet, port


def _flight_recorder(log: Log, now: datetime) -> Iterator[Found]:
    content = _content(log)
    try:
        dump = read_dump(content)
    except DumpError as error:
        raise NotReadable(f"not a whole flight recorder dump: {error}") from error
    origin = Origin(
        job=log.job,
        host=log.folder,
        file=log.file,
        rank=rank_in_name(Path(log.file)),
        attempt=0,
        content=hashlib.blake2b(content, digest_size=16).hexdigest(),
        written_at=_written(dump),
    )
    for record in records_of(dump, origin, now):
        yield "nccl", record.job, record


def _written(dump: Dump) -> datetime | None:
    """When the rank gave up and wrote the dump, as far as that tells: a copied file has lost it."""
    times = []
    for entry in (entry for group in dump.groups for entry in group.entries):
        times += [at for at in (entry.started_at, entry.completed_at) if at is not None]
        if entry.created_at is not None:
            waited_ms = 0 if entry.state == "completed" else entry.timeout_ms or 0
            waited = min(max(waited_ms, 0), _LONGEST_MS)
            times.append(reckonable(entry.created_at) + timedelta(milliseconds=waited))
    return max(times, default=None)


def _ras(log: Log, now: datetime) -> Iterator[Found]:
    try:
        told = read_report(_content(log))
    except ReportError as error:
        raise NotReadable(str(error)) from error
    for place, fields in enumerate(told):
        record = NcclRecord(
            id=digest("ras", log.folder, log.file, place),
            observed_at=now,
            raw=fields["message"],
            job=log.job,
            host=log.folder,
            source="ras",
            file=log.file,
            offset=place,
            **fields,
        )
        yield "nccl", record.job, record


def _content(log: Log) -> bytes:
    """All of a file that is one document. Raises NotReadable when it is too large for one."""
    blocks, size = [], 0
    for block in log.chunks():
        blocks.append(block)
        size += len(block)
        if size > MAX_BYTES:
            raise NotReadable(f"larger than {MAX_BYTES} bytes")
    return b"".join(blocks)


_READERS: Mapping[LogKind, Callable[[Log, datetime], Iterator[Found]]] = {
    LogKind.KERNEL: _kernel,
    LogKind.NCCL: _nccl,
    LogKind.GPU: _gpu,
    LogKind.FABRIC: _fabric,
    LogKind.FLIGHT_RECORDER: _flight_recorder,
    LogKind.RAS: _ras,
}
