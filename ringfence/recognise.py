"""Says by its first lines what a file of an incident is, by asking the parsers."""

import re
from datetime import UTC, datetime

from collectors import nvidia_smi
from collectors.fabric import text as fabric_text
from collectors.kernel.stream import KernelStream
from collectors.nccl.stream import NcclStream
from evidence.records import KernelKind
from ringfence import sieve
from ringfence.logs import READ_ERRORS, Log, LogKind
from ringfence.reading import training

__all__ = ["may_be_kernel", "recognise"]

# kern  :warn  : 2026-02-03T04:05:06,789012+00:00 nvidia-peermem ...
# [  811.120031] pcieport ... / Feb  3 04:05:06 n1 kernel: ... / <4>nvme nvme0: ...
# [Tue Feb  3 04:05:06 2026] pcieport ...
_KERNEL_SHAPE = re.compile(
    rb"^(?:kern\s*:\w+\s*:|\[\s*\d+\.\d{6}\]|<\d+>|\d{4}-\d\d-\d\dT[\d:]+[,.]\d+[+-]\d\d:?\d\d )"
    rb"|^\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\] |\bkernel: "
)
# \x80\x02}q\x00(X\x07\x00\x00\x00entriesq ... (pickle protocol 2 to 5)
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
#: Of a kernel log whose first lines do not look like one, each holds one of these.
_KERNEL_WORDS = (b"NVRM", b"Xid", b"kernel: ", b"pcieport")
_DUMP_WORDS = (b"pg_config", b"pg_status", b"collective_seq_id", b"comm_lib_version")
# {"nccl_version": "2.29.2", ..., "communicators": [...]}
_RAS_WORDS = (b'"communicators"', b'"nccl_version"')


def recognise(head: list[bytes]) -> tuple[LogKind, ...]:
    """What a file is, a kind for each that its first lines are of; nothing for one not of text.

    A kernel log may begin with pages of noise: then the shape of its lines tells. What nvidia-smi
    printed into the log of a job is not read: of which host it speaks is not sure there. NCCL and
    CUDA use some of its words, so its own lines do not count for them.
    """
    whole = b"".join(head)
    if document := _document(whole):
        return (document,)
    now = datetime.now(UTC)
    others = [line for line in head if not nvidia_smi.recognise([line])]
    kinds = [LogKind.GPU] if len(others) < len(head) else []
    kinds += [LogKind.FABRIC] if fabric_text.recognise(head) else []
    made = {
        LogKind.KERNEL: _kernel(whole, now),
        LogKind.NCCL: _nccl(whole if len(others) == len(head) else b"".join(others), now),
    }
    kind = max(made, key=made.__getitem__)
    if kind is LogKind.NCCL and made[kind] > len(kinds):
        return (kind,)
    if made[kind]:
        return (kind, *kinds)
    if kinds:
        return tuple(kinds)
    if any(map(_KERNEL_SHAPE.search, head)):
        return (LogKind.KERNEL,)
    return () if b"\0" in whole else (LogKind.TEXT,)


def may_be_kernel(log: Log) -> bool:
    """Whether a text whose first lines tell nothing is worth reading as a kernel log."""
    try:
        return any(word in block for block in log.blocks() for word in _KERNEL_WORDS)
    except READ_ERRORS:
        return False


def _document(whole: bytes) -> LogKind | None:
    """A file that is one document: a flight recorder's dump, or a RAS report in JSON."""
    brace = whole.lstrip()[:1] == b"{"
    if (brace or _PICKLE.match(whole)) and any(word in whole for word in _DUMP_WORDS):
        return LogKind.FLIGHT_RECORDER
    if brace and all(word in whole for word in _RAS_WORDS):
        return LogKind.RAS
    return None


def _kernel(whole: bytes, now: datetime) -> int:
    """How many kernel records the lines give."""
    stream = KernelStream(host=None, clock=lambda: now, keep_other=False)
    for lines in sieve.candidates([whole], sieve.KERNEL):
        stream.lines(lines)
    return sum(record.kind is not KernelKind.OTHER for record in stream.settle())


def _nccl(whole: bytes, now: datetime) -> int:
    """How many records of a training log the lines give."""
    stream = NcclStream(job="")
    return sum(1 for _ in training(stream, [whole], now)) + len(stream.flush(now))
