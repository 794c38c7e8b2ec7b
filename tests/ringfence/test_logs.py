import gzip
import io
import tarfile
from pathlib import Path

import pytest

from ringfence.logs import Log, LogKind, Unread, find

DMESG = b"[  811.120031] NVRM: Xid (PCI:0000:9a:00): 79, GPU has fallen off the bus.\n"
RANK = b"[rank4]:[E207 11:12:13.000000004 ProcessGroupNCCL.cpp:629] [Rank 4] Watchdog caught ...\n"


def recognise(head: list[bytes]) -> tuple[LogKind, ...]:
    text = b"".join(head)
    marks = {LogKind.KERNEL: b"NVRM", LogKind.NCCL: b"rank"}
    return tuple(kind for kind, mark in marks.items() if mark in text)


def logs(path: Path) -> list[tuple[str, str, LogKind, bytes]]:
    found = [one for one in find(path, recognise) if isinstance(one, Log)]
    return [(one.file, one.host, one.kind, b"".join(one.lines())) for one in found]


def test_the_host_is_the_folder_directly_under_the_path(tmp_path: Path) -> None:
    for host in ("n1", "n2"):
        (tmp_path / host / "var").mkdir(parents=True)
        (tmp_path / host / "var" / "dmesg.txt").write_bytes(DMESG)
    (tmp_path / "rank4.log").write_bytes(RANK)
    assert logs(tmp_path) == [
        ("n1/var/dmesg.txt", "n1", LogKind.KERNEL, DMESG),
        ("n2/var/dmesg.txt", "n2", LogKind.KERNEL, DMESG),
        ("rank4.log", "rank4", LogKind.NCCL, RANK),
    ]


def test_compressed_files_and_archives_are_read_as_they_are(tmp_path: Path) -> None:
    zipped = tmp_path / "n3.log.gz"
    zipped.write_bytes(gzip.compress(DMESG))
    archive = tmp_path / "bundle.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, data in (
            ("incident/n1/dmesg", DMESG),
            ("incident/n2/kern.log.gz", gzip.compress(DMESG)),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    assert logs(zipped) == [("n3.log.gz", "n3", LogKind.KERNEL, DMESG)]
    assert [(host, data) for _, host, _, data in logs(archive)] == [("n1", DMESG), ("n2", DMESG)]


def test_what_cannot_be_read_is_named_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "a-empty.log").write_bytes(b"")
    (tmp_path / "b-cut.log.gz").write_bytes(gzip.compress(DMESG * 999)[:60])
    (tmp_path / "c-photo.bin").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "d-not-a.tar.gz").write_bytes(b"\x1f\x8bnothing of the kind")
    found = list(find(tmp_path, recognise))
    assert all(isinstance(one, Unread) for one in found)
    reasons = {one.file: one.reason for one in found if isinstance(one, Unread)}
    assert reasons["a-empty.log"] == "empty"
    assert "EOFError" in reasons["b-cut.log.gz"]
    assert reasons["c-photo.bin"].startswith("neither a kernel log nor")
    assert reasons["d-not-a.tar.gz"]


@pytest.mark.parametrize("size", [(1 << 20) - 1, 1 << 20, (1 << 20) + 1, 10_000_000])
def test_an_endless_line_is_cut_and_counts_as_one(tmp_path: Path, size: int) -> None:
    (tmp_path / "n1.log").write_bytes(DMESG + b"x" * size + b"\n" + DMESG)
    (log,) = (one for one in find(tmp_path, recognise) if isinstance(one, Log))
    first, long, last = log.lines()
    assert (first, last) == (DMESG, DMESG)
    assert long.rstrip(b"\n") == b"x" * min(size, 1 << 20)
