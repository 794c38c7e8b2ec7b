"""``agent --once``: the doctor of a new node, for people and for programs."""

import json
from pathlib import Path
from typing import Any

LINE = "Dec 24 05:06:07 r9-n4 kernel: [ 7.5] NVRM: Xid (PCI:0000:2a:00): 79, GPU is lost.\n"
QUIET = ("agent", "--once", "--no-kmsg", "--gpu", "none", "--no-fabric-sysfs", "--host", "r9-n4")


def test_a_node_where_all_works_is_told_so_in_the_last_line(ringfence: Any, tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.write_text(LINE)
    pattern = str(tmp_path / "{job}-{rank}.out")
    done = ringfence(*QUIET, "--json", "--kernel-file", str(log), "--nccl", pattern)
    *records, last = (json.loads(line) for line in done.stdout.splitlines())
    assert done.exit_code == 0
    assert [one["schema"] for one in records] == ["kernel/1", "inventory/1"]
    assert last["schema"] == "doctor/1"
    assert [(one["name"], one["state"], one["required"]) for one in last["doctor"]] == [
        ("kernel-files", "ok", True),
        ("nccl", "unavailable", False),
        ("inventory", "ok", True),
    ]
    first = last["doctor"][0]
    assert first["needs"] == [{"what": f"read access to {log}", "has": True}]
    assert json.loads(first["sample"])["code"] == 79


def test_a_source_that_is_missing_is_exit_code_one(ringfence: Any, tmp_path: Path) -> None:
    log = tmp_path / "none.log"
    done = ringfence(*QUIET, "--kernel-file", str(log))
    assert done.exit_code == 1
    assert f"read access to {log}: NO" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_broker_that_was_named_is_asked(ringfence: Any) -> None:
    done = ringfence(*QUIET, "--json", "--bootstrap", "127.0.0.1:1")
    assert done.exit_code == 1
    kafka = json.loads(done.stdout.splitlines()[-1])["doctor"][-1]
    assert (kafka["name"], kafka["state"]) == ("kafka", "error")
    assert kafka["reason"].startswith("127.0.0.1:1 does not answer")


def test_brokers_that_the_settings_name_are_asked_too(ringfence: Any, tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text('[kafka]\nbootstrap = "127.0.0.1:1"\n')
    done = ringfence("--config", str(file), *QUIET, "--json")
    assert done.exit_code == 1
    kafka = json.loads(done.stdout.splitlines()[-1])["doctor"][-1]
    assert (kafka["name"], kafka["state"]) == ("kafka", "error")


def test_a_place_comes_from_the_sites_files(ringfence: Any, tmp_path: Path) -> None:
    racks = tmp_path / "racks"
    racks.write_text("r9-n4 r9 leaf-2\n")
    pattern = r"(?P<pool>r\d)-n\d"
    done = ringfence(*QUIET, "--json", "--rack-file", str(racks), "--rack-pattern", pattern)
    inventory = json.loads(done.stdout.splitlines()[0])
    assert [inventory[name] for name in ("rack", "leaf", "pool")] == ["r9", "leaf-2", "r9"]
