"""``ringfence import``: old logs and exports become history, each record once, bad lines named."""

import gzip
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

HOUR = timedelta(hours=1)
BEGIN = datetime(2026, 2, 1, tzinfo=UTC)

KERN_LOG = """\
Dec 31 23:59:58 vk-07 kernel: [8765.000001] NVRM: Xid (PCI:0000:4b:00): 63, pid=811, Row Remapper: New row marked for remapping, reset gpu to activate.
Dec 31 23:59:59 vk-07 kernel: [8766.100000] usb 2-1: new high-speed USB device number 5
Dec 31 23:59:59 vk-07 kernel: [8766.200000] NVRM: Xid (PCI:0000:4b:00): 31, pid=811, name=trainer, Ch 00000008
Dec 31 23:59:59 vk-07 kernel: [8766.200000] NVRM: Xid (PCI:0000:4b:00): 31, pid=811, name=trainer, Ch 00000008
Jan  1 00:00:04 vk-07 kernel: [8771.300000] NVRM: Xid (PCI:0000:4b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
"""  # noqa: E501

SMI_CSV = """\
timestamp, index, uuid, temperature.gpu, power.draw [W], ecc.errors.corrected.aggregate.total
2026/02/01 01:00:00.100, 0, GPU-7a1e0000-0000-4000-8000-000000000001, 41, 310.50 W, 4
2026/02/01 01:00:00.103, 1, GPU-7a1e0000-0000-4000-8000-000000000002, 44, 305.00 W, 0
2026/02/01 01:00:05.100, 0, GPU-7a1e0000-0000-4000-8000-000000000001, 42, 311.50 W, 9
2026/02/01 01:00:05.104, 1, GPU-7a1e0000-0000-4000-8000-000000000002, 45, [N/A], 0
"""


def _json(result: Any) -> dict[str, Any]:
    assert "Traceback" not in result.stderr
    return dict(json.loads(result.stdout))


def _kinds(result: Any) -> dict[str, tuple[int, int]]:
    return {kind: (one["new"], one["known"]) for kind, one in _json(result)["kinds"].items()}


def _rows(ringfence: Any, statement: str) -> list[dict[str, Any]]:
    result = ringfence("sql", statement, "--format", "json")
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def kern_log(tmp_path: Path) -> Path:
    path = tmp_path / "kern.log"
    path.write_text(KERN_LOG)
    return path


def test_a_kernel_log_becomes_history_with_its_own_times(ringfence: Any, kern_log: Path) -> None:
    result = ringfence("import", str(kern_log), "--year", "2025", "--json")
    assert result.exit_code == 0
    assert _kinds(result) == {"kernel": (4, 0)}
    rows = _rows(ringfence, "select host, code, pci, event_at from xid_events order by event_at")
    assert [(one["code"], one["event_at"][:19]) for one in rows] == [
        (63, "2025-12-31T23:59:58"), (31, "2025-12-31T23:59:59"),
        (31, "2025-12-31T23:59:59"), (79, "2026-01-01T00:00:04"),
    ]  # fmt: skip
    assert {(one["host"], one["pci"]) for one in rows} == {("vk-07", "0000:4b:00")}


def test_the_same_file_under_another_name_or_zipped_adds_nothing(
    ringfence: Any, kern_log: Path, tmp_path: Path
) -> None:
    ringfence("import", str(kern_log), "--year", "2025")
    zipped = tmp_path / "kern.log.4.gz"
    zipped.write_bytes(gzip.compress(KERN_LOG.encode()))
    for path in (kern_log, zipped):
        assert _kinds(ringfence("import", str(path), "--year", "2025", "--json")) == {
            "kernel": (0, 4)
        }


def test_files_that_overlap_in_the_middle_of_a_second_are_joined(
    ringfence: Any, kern_log: Path, tmp_path: Path
) -> None:
    rotated = tmp_path / "kern.log.1"
    rotated.write_text("".join(KERN_LOG.splitlines(keepends=True)[3:]))
    assert _kinds(ringfence("import", str(rotated), "--year", "2025", "--json")) == {
        "kernel": (2, 0)
    }
    assert _kinds(ringfence("import", str(kern_log), "--year", "2025", "--json")) == {
        "kernel": (2, 2)
    }


def test_lines_without_a_year_are_named_and_not_guessed(ringfence: Any, kern_log: Path) -> None:
    result = ringfence("import", str(kern_log))
    assert result.exit_code == 1
    assert "kern.log:1: the time has no year: give --year" in result.stderr
    assert _rows(ringfence, "select * from staging.kernel") == []


def test_seconds_since_boot_become_times_when_the_boot_is_told(
    ringfence: Any, tmp_path: Path
) -> None:
    path = tmp_path / "dmesg.txt"
    line = "NVRM: Xid (PCI:0000:4b:00): 79, pid='<unknown>', GPU has fallen off the bus."
    captures = f"[   12.500000] {line}\n[ 7212.250000] {line}\n"
    path.write_text(captures + captures)  # a capture appended to the one before
    result = ringfence("import", str(path), "--host", "vk-09")
    assert (result.exit_code, "give --boot-time" in result.stderr) == (1, True)
    flags = ("--host", "vk-09", "--boot-time", "2026-03-01T10:00:00", "--json")
    assert _kinds(ringfence("import", str(path), *flags)) == {"kernel": (2, 2)}
    rows = _rows(ringfence, "select host, event_at from xid_events order by event_at")
    assert [(one["host"], one["event_at"][:19]) for one in rows] == [
        ("vk-09", "2026-03-01T10:00:12"), ("vk-09", "2026-03-01T12:00:12"),
    ]  # fmt: skip


def test_a_journal_in_json_needs_neither(ringfence: Any, tmp_path: Path) -> None:
    entry = {
        "__REALTIME_TIMESTAMP": "1772600000250000", "_HOSTNAME": "vk-07", "_TRANSPORT": "kernel",
        "_BOOT_ID": "6f9a" * 8, "SYSLOG_IDENTIFIER": "kernel", "PRIORITY": "3",
        "MESSAGE": "NVRM: Xid (PCI:0000:4b:00): 48, pid=9, name=x, DBE (double bit error)",
    }  # fmt: skip
    path = tmp_path / "journal.json"
    path.write_text(json.dumps(entry) + "\n")
    assert _kinds(ringfence("import", str(path), "--json")) == {"kernel": (1, 0)}
    (row,) = _rows(ringfence, "select code, event_at from xid_events")
    assert (row["code"], row["event_at"][:22]) == (48, "2026-03-04T04:53:20.25")


def test_rows_of_nvidia_smi_have_the_time_that_stands_in_them(
    ringfence: Any, tmp_path: Path
) -> None:
    path = tmp_path / "vk-08.csv"
    path.write_text(SMI_CSV)
    result = ringfence("import", str(path), "--timezone", "Europe/Berlin", "--json")
    assert (result.exit_code, _kinds(result)) == (0, {"gpu": (4, 0)})
    rows = _rows(
        ringfence,
        "select host, index, event_at, temperature_c, power_w, unread, source "
        "from gpu_samples order by event_at",
    )
    assert [(one["event_at"][:23], one["index"], one["power_w"]) for one in rows] == [
        ("2026-02-01T00:00:00.100", 0, 310.5), ("2026-02-01T00:00:00.103", 1, 305.0),
        ("2026-02-01T00:00:05.100", 0, 311.5), ("2026-02-01T00:00:05.104", 1, None),
    ]  # fmt: skip
    assert {(one["host"], one["source"]) for one in rows} == {("vk-08", "nvidia-smi")}
    assert rows[3]["unread"] == [["power_w", "N/A"]]


def test_a_log_that_was_cut_in_a_round_of_cards_overlaps_exactly(
    ringfence: Any, tmp_path: Path
) -> None:
    lines = SMI_CSV.splitlines(keepends=True)
    path = tmp_path / "vk-08.csv"
    path.write_text("".join([lines[0], *lines[2:4]]))
    assert _kinds(ringfence("import", str(path), "--json")) == {"gpu": (2, 0)}
    path.write_text(SMI_CSV)
    assert _kinds(ringfence("import", str(path), "--json")) == {"gpu": (2, 2)}


def test_bad_rows_are_named_by_line_and_the_others_are_stored(
    ringfence: Any, tmp_path: Path
) -> None:
    lines = SMI_CSV.splitlines(keepends=True)
    lines[2] = "2026/02/01 01:00:00.103, 1, GPU-7a1e\n"
    lines[4] = "2026/02/01 01:00:05.104, 1, GPU-7a1e0000-0000-4000-8000-000000000002, 45, 30"
    path = tmp_path / "vk-08.csv"
    path.write_text("".join(lines))
    result = ringfence("import", str(path), "--json")
    told = _json(result)
    assert (result.exit_code, told["kinds"]["gpu"]["new"]) == (1, 2)
    assert [(one["line"], one["reason"]) for one in told["unread"]] == [
        (3, "the row does not fit its header"), (5, "the file ends in this row"),
    ]  # fmt: skip


def test_a_log_without_timestamps_is_refused_in_one_sentence(
    ringfence: Any, tmp_path: Path
) -> None:
    path = tmp_path / "vk-08.csv"
    path.write_text(
        "index, uuid, temperature.gpu\n0, GPU-7a1e0000-0000-4000-8000-000000000001, 4\n"
    )
    result = ringfence("import", str(path))
    assert result.exit_code == 1
    assert "vk-08.csv:1: the output has no timestamp: add it to --query-gpu" in result.stderr


def _labels(metric: str, gpu: int = 0) -> dict[str, str]:
    return {
        "__name__": f"DCGM_FI_DEV_{metric}", "gpu": str(gpu), "Hostname": "vk-11",
        "UUID": f"GPU-9c000000-0000-4000-8000-00000000000{gpu}", "modelName": "NVIDIA H100",
        "pci_bus_id": "00000000:19:00.0", "DCGM_FI_DRIVER_VERSION": "550.54.15",
        "job": "dcgm", "pod": "trainer-0",
    }  # fmt: skip


def _range(metric: str, values: list[float], gpu: int = 0) -> dict[str, Any]:
    begin = BEGIN.timestamp()
    pairs = [[begin + 60 * number, str(value)] for number, value in enumerate(values)]
    return {"metric": _labels(metric, gpu), "values": pairs}


def _answer(*results: dict[str, Any]) -> str:
    data = {"resultType": "matrix", "result": list(results)}
    return json.dumps({"status": "success", "data": data})


def test_metrics_of_several_files_become_one_sample(ringfence: Any, tmp_path: Path) -> None:
    folder = tmp_path / "exports"
    folder.mkdir()
    (folder / "temp.json").write_text(_answer(_range("GPU_TEMP", [51, 52, 53])))
    (folder / "ecc.json").write_text(
        _answer(
            _range("ECC_SBE_AGG_TOTAL", [7, 7, 9]),
            _range("ECC_DBE_AGG_TOTAL", [0, 0x7FFFFFFFFFFFFFF0, 0]),  # DCGM's blank
            {"metric": {"__name__": "up", "job": "dcgm"}, "values": [[BEGIN.timestamp(), "1"]]},
        )
    )
    result = ringfence("import", str(folder), "--json")
    assert (result.exit_code, _kinds(result)) == (0, {"gpu": (3, 0)})
    rows = _rows(
        ringfence,
        "select host, index, uuid, pci, name, driver, source, temperature_c, "
        "ecc_aggregate_corrected as c, ecc_aggregate_uncorrected as u "
        "from gpu_samples order by event_at",
    )
    assert [(one["temperature_c"], one["c"], one["u"]) for one in rows] == [
        (51, 7, 0), (52, 7, None), (53, 9, 0),
    ]  # fmt: skip
    assert {
        (one["host"], one["index"], one["pci"], one["name"], one["driver"]) for one in rows
    } == {("vk-11", 0, "0000:19:00", "NVIDIA H100", "550.54.15")}
    assert {one["source"] for one in rows} == {"dcgm"}
    assert _kinds(ringfence("import", str(folder), "--json")) == {"gpu": (0, 3)}


def test_lines_of_victoria_metrics_are_the_same_samples(ringfence: Any, tmp_path: Path) -> None:
    lines = []
    for metric, values in (("GPU_TEMP", [51, None, 53]), ("ROW_REMAP_FAILURE", [0, 0, 1])):
        at = [int(BEGIN.timestamp() * 1000) + 60_000 * number for number in range(3)]
        lines.append(json.dumps({"metric": _labels(metric), "values": values, "timestamps": at}))
    path = tmp_path / "export.ndjson"
    path.write_text("\n".join([lines[0], "{broken", lines[1], ""]))
    result = ringfence("import", str(path), "--json")
    told = _json(result)
    assert (result.exit_code, told["kinds"]["gpu"]["new"]) == (1, 3)
    assert [(one["file"], one["line"]) for one in told["unread"]] == [("export.ndjson", 2)]
    rows = _rows(
        ringfence, "select temperature_c, remap_failure from gpu_samples order by event_at"
    )
    assert [(one["temperature_c"], one["remap_failure"]) for one in rows] == [
        (51, False), (None, False), (53, True),
    ]  # fmt: skip


@pytest.mark.parametrize("shape", ["long", "wide"])
def test_csv_of_metrics_is_read_long_and_wide(ringfence: Any, tmp_path: Path, shape: str) -> None:
    uuid = "GPU-9c000000-0000-4000-8000-000000000000"
    if shape == "long":
        text = (
            "timestamp,metric,gpu,UUID,Hostname,value\n"
            f"1770000000,DCGM_FI_DEV_GPU_TEMP,0,{uuid},vk-11,61\n"
            f"1770000000,DCGM_FI_DEV_POWER_USAGE,0,{uuid},vk-11,412.5\n"
            "1770000060,DCGM_FI_DEV_GPU_TEMP\n"
        )
    else:
        text = (
            "time,Hostname,gpu,UUID,DCGM_FI_DEV_GPU_TEMP,DCGM_FI_DEV_POWER_USAGE\n"
            f"2026-02-02T02:40:00Z,vk-11,0,{uuid},61,412.5\n"
            "1770000060\n"
        )
    path = tmp_path / "metrics.csv"
    path.write_text(text)
    result = ringfence("import", str(path))
    assert result.exit_code == 1
    assert "the row does not fit its header" in result.stderr
    rows = _rows(ringfence, "select host, event_at, temperature_c, power_w from gpu_samples")
    assert [(one["event_at"][:19], one["temperature_c"], one["power_w"]) for one in rows] == [
        ("2026-02-02T02:40:00", 61, 412.5)
    ]


def test_an_answer_that_is_an_error_is_told(ringfence: Any, tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    path.write_text('{"status":"error","errorType":"timeout","error":"query timed out"}')
    result = ringfence("import", str(path))
    assert result.exit_code == 1
    assert "answer.json:1: Prometheus answered: query timed out" in result.stderr


def test_metrics_that_came_later_for_the_same_times_are_not_lost_silently(
    ringfence: Any, tmp_path: Path
) -> None:
    path = tmp_path / "one.json"
    path.write_text(_answer(_range("GPU_TEMP", [51, 52])))
    ringfence("import", str(path))
    path.write_text(_answer(_range("POWER_USAGE", [400, 401])))
    result = ringfence("import", str(path))
    assert result.exit_code == 1
    assert "give all metrics of one time in one call" in result.stderr


def test_a_dry_run_tells_kinds_spans_and_what_would_be_unread(
    ringfence: Any, kern_log: Path, tmp_path: Path
) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("call the vendor\n")
    result = ringfence("import", str(kern_log), str(other), "--year", "2025", "--dry-run", "--json")
    told = _json(result)
    assert (result.exit_code, told["dry_run"], told["files"]) == (1, True, 1)
    assert told["kinds"]["kernel"] == {
        "new": 4, "known": 0, "differs": 0, "first": "2025-12-31T23:59:58+00:00",
        "last": "2026-01-01T00:00:04+00:00",
    }  # fmt: skip
    assert [one["file"] for one in told["unread"]] == ["notes.txt"]
    assert not (tmp_path / "data" / "warehouse").exists()


def test_only_rubbish_is_unreadable_input(ringfence: Any, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("call the vendor\n")
    result = ringfence("import", str(path))
    assert result.exit_code == 2
    assert "nothing could be read" in result.stderr


def test_bounds_of_time_are_kept(ringfence: Any, kern_log: Path) -> None:
    flags = ("--year", "2025", "--since", "2026-01-01", "--json")
    assert _kinds(ringfence("import", str(kern_log), *flags)) == {"kernel": (1, 0)}


def test_the_history_answers_over_what_was_imported(ringfence: Any, tmp_path: Path) -> None:
    """A card whose errors grow over months, and its last hour in the kernel's words."""
    days = 120
    step = 6 * HOUR
    lines = []
    for gpu in range(4):
        at = [
            int((BEGIN - days * 24 * HOUR + step * one).timestamp() * 1000)
            for one in range(4 * days)
        ]
        late = 4 * (days - 56)
        count = [one // 13 + max(0, one - late) // 2 if gpu == 1 else 5 for one in range(4 * days)]
        for metric, values in (("ECC_SBE_AGG_TOTAL", count), ("GPU_UTIL", [90] * len(at))):
            lines.append(
                json.dumps({"metric": _labels(metric, gpu), "values": values, "timestamps": at})
            )
    export = tmp_path / "export.ndjson"
    export.write_text("\n".join(lines) + "\n")
    log = tmp_path / "kern.log"
    log.write_text(
        "2026-01-31T12:00:07.000001+00:00 vk-11 kernel: NVRM: Xid (PCI:0000:19:00): 79, pid=1, "
        "GPU has fallen off the bus.\n"
    )
    assert ringfence("import", str(export), str(log)).exit_code == 0
    growth = ringfence("ecc-growth", "--until", "2026-01-31", "--json")
    told = {one["gpu"][-1]: one["verdict"] for one in json.loads(growth.stdout)["results"]}
    assert (growth.exit_code, told["1"], told["0"]) == (1, "growing", "stable")
    uuid = "GPU-9c000000-0000-4000-8000-000000000001"
    flags = ("--around", "2026-01-31T12:00:00", "--window", "13h", "--json")
    seen = json.loads(ringfence("timeline", uuid, *flags).stdout)
    assert [one["what"] for one in seen["events"] if one["source"] == "kernel"] == ["xid 79"]
    assert list(seen["coverage"]) == [uuid]
