"""Each kind of file that an incident leaves behind is known by its content and read."""

import gzip
import json
import resource
import subprocess
import sys
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from evidence.decisions import Cause, Status
from ringfence.logs import NEITHER, LogKind
from ringfence.reading import records
from ringfence.recognise import recognise
from ringfence.triage import triage
from rules.tables import load

NOW = datetime(2026, 9, 10, 11, 12, 13, tzinfo=UTC)
XID_79 = (
    "[Thu Sep 10 09:30:01 2026] NVRM: Xid (PCI:0000:3a:00): 79, pid='<unknown>', "
    "name=<unknown>, GPU has fallen off the bus.\n"
)
WATCHDOG = (
    "[rank3]:[E910 09:40:03.000000001 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE, NumelIn=6, NumelOut=6, "
    "Timeout(ms)=600000) ran for 600020 milliseconds before timing out.\n"
)
STEP = "iteration {0} | loss: 2.25 | grad norm: 0.16 | learning rate 2.9E-04 | samples: 123456789\n"
MLXLINK = {
    "status": {"code": 0, "message": "success"},
    "result": {
        "output": {
            "Operational Info": {"State": "Active", "Physical state": "LinkUp", "Width": "4x"},
            "Module Info": {
                "Temperature [C]": "81 [-5..75]",
                "Rx Power Current [dBm]": "-13.1,1.9,1.8,1.7 [-10.41..6]",
            },
        }
    },
}
RAS = {
    "nccl_version": "2.29.2",
    "ras": {"timeouts_count": 0},
    "communicators": [
        {
            "hash": "0xc07b1e55d2a94f38",
            "size": 4,
            "ranks": [{"rank": rank, "host": f"n{rank}", "pid": 70 + rank} for rank in range(3)],
            "missing_ranks": [
                {
                    "rank": 3, "host": "n3", "pid": 73,
                    "status": {"unresponsive": True, "considered_dead": True},
                }
            ],
        }
    ],
}  # fmt: skip


def dump(rank: int) -> dict[str, Any]:
    entry = {
        "record_id": 1, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 9,
        "p2p_seq_id": 0, "op_id": 9, "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_789_031_000_000_000_000, "input_sizes": [[4]], "output_sizes": [[4]],
        "input_dtypes": ["Float"], "output_dtypes": ["Float"], "state": "scheduled",
        "time_discovered_started_ns": 0, "time_discovered_completed_ns": 0, "retired": False,
        "timeout_ms": 600_000, "is_p2p": False,
    }  # fmt: skip
    status = {"last_enqueued_collective": "9", "last_completed_collective": str(8 - rank % 2)}
    return {
        "version": "2.10",
        "nccl_version": "2.27.5",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}},
        "pg_status": {"0": status},
        "entries": [entry],
    }


def pickled(rank: int) -> bytes:
    """As PyTorch writes it; it is built in a process of its own, since no module here unpickles."""
    code = "import json,pickle,sys; sys.stdout.buffer.write(pickle.dumps(json.load(sys.stdin), 2))"
    text = json.dumps(dump(rank)).encode()
    return subprocess.run(
        [sys.executable, "-c", code], input=text, capture_output=True, check=True
    ).stdout


def place(folder: Path, **files: str | bytes) -> Path:
    for name, data in files.items():
        file = folder / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data.encode() if isinstance(data, str) else data)
    return folder


def test_every_kind_is_known_by_its_first_lines() -> None:
    told = {
        LogKind.KERNEL: XID_79,
        LogKind.NCCL: WATCHDOG,
        LogKind.GPU: "GPU 0: NVIDIA H100 (UUID: GPU-00000000-aaaa-bbbb-cccc-0123456789ab)\n",
        LogKind.FABRIC: json.dumps(MLXLINK),
        LogKind.FLIGHT_RECORDER: json.dumps(dump(1)),
        LogKind.RAS: json.dumps(RAS, indent=1),
        LogKind.TEXT: STEP,
    }
    for kind, text in told.items():
        assert recognise(text.encode().splitlines(keepends=True)) == (kind,), kind
    assert recognise([pickled(1)]) == (LogKind.FLIGHT_RECORDER,)
    assert recognise([b"\x00\x01photo"]) == ()
    assert recognise([b'{"some": "settings"}\n']) == (LogKind.TEXT,)


@pytest.mark.parametrize("form", ["json", "pickle", "gzip", "tar"])
def test_flight_recorder_dumps_are_read_with_their_ranks(tmp_path: Path, form: str) -> None:
    for rank in range(4):
        data = pickled(rank) if form == "pickle" else json.dumps(dump(rank)).encode()
        place(tmp_path, **{f"d__n{rank}__nccl_trace_rank_{rank}": data})
        if form == "gzip":
            (tmp_path / f"d/n{rank}/nccl_trace_rank_{rank}").unlink()
            place(tmp_path, **{f"d__n{rank}__nccl_trace_rank_{rank}.gz": gzip.compress(data)})
    path = tmp_path / "d"
    if form == "tar":
        path = tmp_path / "d.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            archive.add(tmp_path / "d", "dumps")
    from ringfence.logs import Log, find  # noqa: PLC0415

    logs = [one for one in find(path, recognise) if isinstance(one, Log)]
    found = [record for log in logs for _, _, record in records(log, NOW)]
    said: Any = [one for one in found if getattr(one, "phase", None) == "group"]
    assert [(one.rank, one.host, one.source) for one in said] == [
        (rank, f"n{rank}", "flight-recorder") for rank in range(4)
    ]
    assert [(one.last_enqueued, one.last_completed) for one in said] == [(9, 8), (9, 7)] * 2
    # The time is when the operation timed out, not that of a copied file.
    assert {one.at for one in said} == {datetime(2026, 9, 10, 9, 13, 20, tzinfo=UTC)}
    result = triage(path, load(), NOW)
    assert result.unread == []
    assert set(result.read.values()) == {2}
    assert result.commands == []


def test_a_dump_that_was_cut_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    place(tmp_path, nccl_trace_rank_0=json.dumps(dump(0)), nccl_trace_rank_1=pickled(1)[:-40])
    found = triage(tmp_path, load(), NOW)
    (missed,) = found.unread
    assert missed.file == "nccl_trace_rank_1"
    assert missed.reason.startswith("not a whole flight recorder dump: ")
    assert found.read["nccl_trace_rank_0"] == 2


def test_a_ras_report_is_read_as_text_and_as_json(tmp_path: Path) -> None:
    text = (
        "NCCL version 2.27.3 compiled with CUDA 12.9\n\nErrors\n======\n\n"
        "#0-0 (c07b1e55d2a94f38) INCOMPLETE\n"
        "  Missing communicator data from 1 job process\n"
        "  Process 4711 on node 10.3.0.9 managing GPUs 4\n\n"
    )
    found = triage(place(tmp_path, ras_txt=text, ras_json=json.dumps(RAS)), load(), NOW)
    assert found.unread == []
    assert found.read["ras_txt"] >= 1
    assert found.read["ras_json"] >= 2
    assert found.commands == []


def test_a_ras_report_that_was_cut_is_named(tmp_path: Path) -> None:
    found = triage(place(tmp_path, ras=json.dumps(RAS)[:-9]), load(), NOW)
    assert found.unread[0].reason.startswith("the RAS report cannot be read")


@pytest.mark.parametrize("indent", [None, 2])
def test_what_mlxlink_says_in_json_is_read(tmp_path: Path, indent: int | None) -> None:
    place(tmp_path, **{"n1__mlx5_0.json": json.dumps(MLXLINK, indent=indent)})
    found = triage(tmp_path, load(), NOW)
    assert (found.unread, found.read) == ([], {"n1/mlx5_0.json": 1})


def test_a_rank_that_trained_for_hours_before_it_spoke_is_heard(tmp_path: Path) -> None:
    hours = "".join(map(STEP.format, range(20_000)))
    assert len(hours) > 1 << 20
    place(tmp_path, rank3=hours + WATCHDOG, rank4=hours, notes="nothing to see here\n")
    found = triage(tmp_path, load(), NOW)
    assert found.read == {"rank3": 1}
    assert {one.file: one.reason for one in found.unread} == {"rank4": NEITHER, "notes": NEITHER}
    assert any(ref.line == 20_001 for one in found.verdicts for ref in one.evidence)


def test_a_kernel_log_of_an_unknown_shape_is_read_where_it_speaks_of_the_driver(
    tmp_path: Path,
) -> None:
    shape = "n7|warn|{0}|nothing of interest happened here again and again\n"
    noise = "".join(map(shape.format, range(8_000)))
    found = triage(place(tmp_path, n7=noise + XID_79), load(), NOW)
    (verdict,) = found.verdicts
    assert (verdict.status, verdict.cause) == (Status.LOCALIZED, Cause.GPU_LOST)
    assert (verdict.domain.host, verdict.evidence[-1].line) == ("n7", 8_001)


def test_dmesg_without_wall_clock_times_is_judged_alone(tmp_path: Path) -> None:
    text = "[  811.120031] " + XID_79.split("] ", 1)[1]
    (verdict,) = triage(place(tmp_path, n9=text), load(), NOW).verdicts
    assert (verdict.status, verdict.domain.host) == (Status.LOCALIZED, "n9")


def test_the_host_is_the_lines_then_the_folders_then_the_files(tmp_path: Path) -> None:
    syslog = "Sep 10 09:30:01 gpu-c1 kernel: " + XID_79.split("] ", 1)[1]
    place(tmp_path, folder__a=syslog, n2__dmesg=XID_79, **{"n3.dmesg.txt": XID_79})
    found = triage(tmp_path, load(), NOW)
    assert sorted(str(one.domain.host) for one in found.verdicts) == ["gpu-c1", "n2", "n3"]


def test_an_unsure_verdict_tells_what_to_run_next(tmp_path: Path) -> None:
    found = triage(place(tmp_path, rank3=WATCHDOG), load(), NOW).as_json()
    assert found["verdicts"] != []
    for verdict in found["verdicts"]:
        assert verdict["status"] in ("insufficient", "suspected")
        assert all({"command", "why"} <= step.keys() for step in verdict["next"])
        assert verdict["next"] != []


_MEASURED = """
import resource, sys
from datetime import UTC, datetime
from pathlib import Path
from ringfence.triage import triage
from rules.tables import load
found = triage(Path(sys.argv[1]), load(), datetime(2026, 9, 10, 11, 12, 13, tzinfo=UTC))
print(len(found.verdicts), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def _peak_mib(path: Path) -> int:
    told = subprocess.run(
        [sys.executable, "-c", _MEASURED, str(path)], capture_output=True, text=True, check=True
    )
    verdicts, peak = map(int, told.stdout.split())
    assert verdicts == 1
    return peak


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    line = b"[ 1000.000000] usb 1-1: new high-speed USB device number 2 using xhci_hcd\n"
    xid = XID_79.encode()
    (tmp_path / "small").write_bytes(line * 4_000 + xid)
    with (tmp_path / "large").open("wb") as file:
        for _ in range(160):
            file.write(line * 14_000)
        file.write(xid)
    assert (tmp_path / "large").stat().st_size > 150 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 0
    assert _peak_mib(tmp_path / "large") < _peak_mib(tmp_path / "small") + 24
