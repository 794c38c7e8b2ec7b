"""``parse``, ``triage`` and ``agent --once``: what they print of a log, in the promised shape."""

import gzip
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

# One memory fault and what the application says of it afterwards, on one card.
FAULT = """\
kern  :warn  : 2026-03-02T05:41:17,220101+00:00 NVRM: Xid (PCI:0000:4f:00): 48, pid='<unknown>', \
name=<unknown>, An uncorrectable double bit error (DBE) has been detected on GPU in the \
framebuffer at physAddr 0x10c2fa3e80 partition 2, subpartition 1.
kern  :warn  : 2026-03-02T05:41:17,251907+00:00 NVRM: Xid (PCI:0000:4f:00): 63, pid='<unknown>', \
name=<unknown>, Row Remapper: New row (0x00000010c2fa3e80) marked for remapping, reset gpu to \
activate.
kern  :warn  : 2026-03-02T05:41:17,260440+00:00 NVRM: Xid (PCI:0000:4f:00): 94, pid=81422, \
name=python3, Ch 00000009
"""
# A kernel of the application reached outside its memory.
APPLICATION = """\
[Mon Mar  2 05:41:17 2026] NVRM: Xid (PCI:0000:4f:00): 31, pid=7141, name=train, Ch 00000010, \
intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_8 faulted @ 0x7f2a_1c000000. Fault is of \
type FAULT_PDE ACCESS_TYPE_VIRT_WRITE
[Mon Mar  2 05:41:17 2026] NVRM: Xid (PCI:0000:4f:00): 43, pid=7141, name=train, Ch 00000010
"""
QUIET = """\
[Mon Mar  2 05:40:01 2026] systemd[1]: Started Daily apt download activities.
[Mon Mar  2 05:40:02 2026] nvidia-nvlink: Nvlink Core is being initialized, major device number 511
"""


# The fields of a kernel record that the command line promises, whatever the line.
PROMISED = {
    "kind", "at", "host", "raw", "code", "pci", "pid", "process", "message", "mig", "caused_by",
    "link", "severity", "reset", "drain_reset", "recovery_action", "uuid",
}  # fmt: skip
CARD = "GPU-1c7f0a52-93d1-4c0e-8f6e-2b9d7a54c310"
# A line, and those of the promised fields that it fills (kind, raw and message apart).
KERNEL_LINES: list[tuple[str, str, dict[str, Any]]] = [
    (
        f"[Thu Oct 16 04:31:07 2025] NVRM: GPU at PCI:0000:4f:00: {CARD}",
        "nvrm",
        {"at": "2025-10-16T04:31:07Z", "pci": "0000:4f:00", "uuid": CARD},
    ),
    (
        "kern  :warn  : 2025-10-16T04:31:08,120044+00:00 NVRM: Xid (PCI:0000:4f:00 GPU-I:05): 94, "
        "pid=7194, name=python3, Contained: CE User Channel (0x9). RST: No, D-RST: Yes",
        "xid",
        {
            "at": "2025-10-16T04:31:08.120044Z", "code": 94, "pci": "0000:4f:00", "pid": 7194,
            "process": "python3", "mig": {"gi": 5, "ci": None}, "severity": "contained",
            "reset": False, "drain_reset": True, "uuid": CARD,
        },
    ),
    (
        "2025-10-16T04:31:09.004512+00:00 trn-07 kernel: NVRM: Xid (PCI:0000:4f:00): 45, pid=7194, "
        "name=python3, Ch 00000011 caused by previous Xid 94",
        "xid",
        {
            "at": "2025-10-16T04:31:09.004512Z", "host": "trn-07", "code": 45, "pci": "0000:4f:00",
            "pid": 7194, "process": "python3", "caused_by": 94,
        },
    ),
    (
        "[ 9121.000001] NVRM: Xid (PCI:0000:4f:00): 154, GPU recovery action changed from 0x0 "
        "(None) to 0x2 (Node Reboot Required)",
        "xid",
        {
            "code": 154, "pci": "0000:4f:00", "recovery_action": "Node Reboot Required",
            "uuid": CARD,
        },
    ),
    (
        "[ 9122.100000] NVRM: Xid (PCI:0000:4f:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 "
        "(0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
        "xid",
        {"code": 149, "pci": "0000:4f:00", "link": 9, "severity": "fatal", "uuid": CARD},
    ),
    (
        "[ 9123.100000] nvidia-nvswitch2: SXid (PCI:0000:87:00.0): 20034, Fatal, Link 41 LTSSM "
        "Fault Up",
        "sxid",
        {"code": 20034, "pci": "0000:87:00", "link": 41, "severity": "fatal"},
    ),
    ("[ 9126.100000] usb 1-1: new high-speed USB device number 2 using xhci_hcd", "other", {}),
]  # fmt: skip


def records(result: Result) -> list[dict[str, Any]]:
    assert result.stderr == ""
    assert result.exit_code == 0
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("way", ["stdin", "file", "gzip"])
def test_parse_kernel_prints_every_field_of_every_line(
    ringfence: Any, tmp_path: Path, way: str
) -> None:
    text = "".join(f"{line}\n" for line, _, _ in KERNEL_LINES).encode()
    file = tmp_path / "kern.log"
    file.write_bytes(gzip.compress(text) if way == "gzip" else text)
    result = (
        ringfence("parse", "kernel", stdin=text)
        if way == "stdin"
        else ringfence("parse", "kernel", str(file))
    )
    found = records(result)
    assert len(found) == len(KERNEL_LINES)
    for record, (line, kind, filled) in zip(found, KERNEL_LINES, strict=True):
        assert record.keys() >= PROMISED
        told = {name: record[name] for name in PROMISED - {"message"}}
        empty = dict.fromkeys(PROMISED - {"message"})
        assert told == empty | {"kind": kind, "raw": line} | filled


def test_parse_kernel_prints_a_storm_line_by_line_or_with_its_count(ringfence: Any) -> None:
    storm = b"".join(
        b"[%d.000000] NVRM: Xid (PCI:0000:4f:00): 94, pid=7194, name=python3, Ch %08x\n" % (9, at)
        for at in range(40)
    )
    assert len(records(ringfence("parse", "kernel", stdin=storm))) == 40
    coalesced = records(ringfence("parse", "kernel", "--coalesce", stdin=storm))
    assert len(coalesced) < 40
    assert sum(one["count"] for one in coalesced) == 40


def test_parse_nccl_prints_who_waited_for_what(ringfence: Any) -> None:
    line = (
        "[rank13]:[E302 05:52:09.481907118 ProcessGroupNCCL.cpp:629] [Rank 13] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=8127, OpType=ALLREDUCE, NumelIn=4194304, "
        "NumelOut=4194304, Timeout(ms)=600000) ran for 600061 milliseconds before timing out."
    )
    (record,) = records(ringfence("parse", "nccl", "--job", "j7", stdin=line.encode()))
    wanted = {
        "kind": "timeout", "job": "j7", "rank": 13, "seq": 8127, "op": "ALLREDUCE",
        "timeout_ms": 600_000, "elapsed_ms": 600_061, "raw": line,
    }  # fmt: skip
    assert {name: record[name] for name in wanted} == wanted


def judged(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout)
    assert found.keys() >= {"verdicts", "commands", "unread"}
    assert (result.exit_code, result.stderr) == (1 if found["verdicts"] else 0, "")
    return found


def test_triage_of_a_quiet_log_is_0(ringfence: Any, tmp_path: Path) -> None:
    (tmp_path / "n1.log").write_text(QUIET)
    found = judged(ringfence("triage", str(tmp_path / "n1.log"), "--json"))
    assert found["verdicts"] == found["commands"] == found["unread"] == []
    assert ringfence("triage", str(tmp_path / "n1.log")).stdout == "Nothing at fault in 1 log.\n"


def test_triage_of_an_application_fault_is_software_and_commands_nothing(
    ringfence: Any, tmp_path: Path
) -> None:
    (tmp_path / "n1.log").write_text(APPLICATION)
    found = judged(ringfence("triage", str(tmp_path / "n1.log"), "--json"))
    assert [one["status"] for one in found["verdicts"]] == ["software"]
    assert found["commands"] == []


def test_triage_json_has_every_field_of_a_verdict_its_evidence_and_its_command(
    ringfence: Any, tmp_path: Path
) -> None:
    (tmp_path / "hgx-31.log").write_text(QUIET + FAULT)
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8\xff\xe0" + bytes(range(256)))
    found = judged(ringfence("triage", str(tmp_path), "--json"))
    (verdict,) = found["verdicts"]
    assert verdict.keys() >= {
        "status", "cause", "domain", "confidence", "reason", "action", "evidence",
    }  # fmt: skip
    place = {"kind": "gpu", "host": "hgx-31", "pci": "0000:4f:00"}
    unknown = dict.fromkeys(("uuid", "index", "rank", "link", "switch", "port", "rack"))
    assert verdict["domain"] == place | unknown
    assert (verdict["status"], verdict["cause"]) == ("localized", "gpu-memory")
    assert verdict["action"] == "drain-and-reset-gpu"
    assert 0.5 < verdict["confidence"] <= 1
    assert [
        (one["source"], one["file"], one["line"], one["at"], one["text"].split(": ")[-1][:2])
        for one in verdict["evidence"]
    ] == [
        ("kernel", "hgx-31.log", 3, "2026-03-02T05:41:17.220101Z", "48"),
        ("kernel", "hgx-31.log", 4, "2026-03-02T05:41:17.251907Z", "Ne"),
        ("kernel", "hgx-31.log", 5, "2026-03-02T05:41:17.260440Z", "94"),
    ]
    (command,) = found["commands"]
    assert (command["action"], command["level"]) == ("isolate", "drain")
    assert command["domain"]["pci"] == "0000:4f:00"
    assert (command["dry_run"], command["held"]) == (True, None)
    assert [one["file"] for one in found["unread"]] == ["photo.jpg"]
    assert "neither a kernel log nor" in found["unread"][0]["reason"]


def test_triage_marks_what_the_budget_holds_and_what_the_policy_enforces(
    ringfence: Any, tmp_path: Path
) -> None:
    for host in ("n1", "n2"):
        (tmp_path / "logs" / host).mkdir(parents=True)
        (tmp_path / "logs" / host / "dmesg").write_text(FAULT)
    policy = tmp_path / "policy.toml"
    policy.write_text('isolation.mode = { value = "enforce", why = "w", source = "s" }\n')
    path = str(tmp_path / "logs")
    archive = tmp_path / "logs.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(path, "logs")
    by_file = judged(ringfence("triage", path, "--json", "--policy", str(policy)))
    by_tar = judged(ringfence("triage", str(archive), "--json", "--policy", str(policy)))
    for found in (by_file, by_tar):
        first, second = found["commands"]
        assert {first["domain"]["host"], second["domain"]["host"]} == {"n1", "n2"}
        assert (first["dry_run"], second["dry_run"]) == (False, False)
        assert first["held"] is None
        assert second["held"].startswith("Budget:")


def test_an_address_on_the_screen_is_the_address(ringfence: Any, tmp_path: Path) -> None:
    # `:ab:` and `:m:` are pictures to rich.
    (tmp_path / "n1.log").write_text(FAULT.replace("0000:4f:00", "0000:ab:00"))
    shown = ringfence("triage", str(tmp_path / "n1.log")).stdout
    assert "gpu 0000:ab:00 on n1" in shown
    assert shown.isascii()


def test_an_agent_shows_one_round_without_kafka(ringfence: Any, tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.write_text(FAULT)
    result = ringfence(
        "agent", "--once", "--json", "--no-kmsg", "--gpu", "none", "--host", "n1",
        "--kernel-file", str(log),
    )  # fmt: skip
    found = records(result)
    assert [one["code"] for one in found if one["schema"] == "kernel/1"] == [48, 63, 94]
    assert [one["host"] for one in found if one["schema"] == "inventory/1"] == ["n1"]
