"""Every subcommand's promise: 0 done, 1 what was asked about is bad, 2 and one sentence."""

import gzip
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result

from ringfence.cli import main
from ringfence.embedded import free_port
from warehouse.files import prepare

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


def sentence(result: Result) -> str:
    """The one sentence of a call that failed; click's two lines of usage may stand before it."""
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(("Usage: ", "Try '"))]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("Error: ")
    return lines[0].removeprefix("Error: ")


def commands(group: click.Group, path: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}"


# What is asked for, and what the sentence says. {folder} is the test's own.
WRONG = [
    ("nothing-of-the-kind", "No such command"),
    ("--log-level shouting sql select", "is not one of 'debug'"),
    ("--config {folder}/none.toml isolate node:n1", "none.toml: .*No such file"),
    ("--config {folder} isolate node:n1", "Is a directory"),
    ("--config {folder}/typo.toml isolate node:n1", r"\[kafka\] has no setting 'bootstrp'"),
    ("--config {folder}/typo.toml demo --seed x", "'x' is not a valid integer"),
    ("--config {folder}/number.toml isolate node:n1", r"\[kafka\] Expected `str`, got `int`"),
    ("demo --keep {folder}/file", "file cannot be used: File exists"),
    ("demo --within nan", "'nan' is not a number"),
    ("demo --within 0", "not in the range"),
    ("up --bootstrap 127.0.0.1:kafka", r"\[kafka\] bootstrap: '127.0.0.1:kafka' is not HOST:PORT"),
    ("--data {folder}/file up", "file cannot be used: File exists"),
    ('up --exec "drain-it \'now"', "is no command line: No closing quotation"),
    ("agent --once --gpu radeon", "'radeon'"),
    ("agent --once --gpu recording", "gpu_recording names no file"),
    (
        "--config {folder}/agent.toml agent --once",
        r"\[agent\] has no setting 'kernel_file'; it has",
    ),
    ("--config {folder}/worker.toml worker", r"\[worker\] Expected `float`, got `str`"),
    ("sink --bootstrap 127.0.0.1:70000", "'127.0.0.1:70000' is not HOST:PORT"),
    ("scheduler exec", "Missing argument 'PROGRAM...'"),
    ("scheduler exec --timeout nan /bin/true", "'nan' is not a number"),
    ("scheduler exec --bootstrap , /bin/true", "'' is not HOST:PORT"),
    ("parse fabric", "'fabric' is not one of 'kernel', 'nccl'"),
    ("parse kernel {folder}/none.log", "none.log.*No such file"),
    ("parse kernel {folder}", "Is a directory"),
    ("parse nccl {folder}/cut.gz", "cut.gz: broke off"),
    ("triage {folder}/none", "none: no such file or folder"),
    ("triage {folder}/empty", "empty: nothing readable"),
    ("triage {folder}/nothing.bin", "nothing.bin: nothing readable"),
    ("triage {folder}/cut.gz", "cut.gz: nothing readable"),
    ("triage {folder}/file --policy {folder}/none.toml", "none.toml: cannot be read"),
    ("triage {folder}/file --policy {folder}/typo.toml", "typo.toml"),
    ("triage {folder}/file --thresholds {folder}/file", "is not TOML"),
    ("sql 'select 1'", "there is no warehouse at .*/data/warehouse"),
    ("why 4f1e", "there is no warehouse at"),
    ("announce party --host n1", "'party' is nothing that can be announced; known: allocation"),
    ("announce reboot", "Missing option '--host'"),
    ("announce gpu-reset --host n1 --gpu 4f", "'4f'"),
    ("announce reboot --host n1 --for inf", "not in the range"),
    ("announce reboot --host n1 --for -3", "not in the range"),
    ("isolate card:n1", "'card:n1' is no domain: gpu:HOST/0000:3b:00"),
    ("isolate node:n1 --level hard", "'hard' is not one of 'cordon', 'drain', 'evict'"),
    ("release gpu:n1/zz", "'zz'"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files that the wrong calls name."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("[no TOML, no log, and no folder\n")
    (tmp_path / "nothing.bin").write_bytes(bytes(range(256)) * 64)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(FAULT.encode() * 20)[:120])
    for name, text in (
        ("typo", '[kafka]\nbootstrp = "127.0.0.1:9"\n'),
        ("number", "[kafka]\nbootstrap = 9092\n"),
        ("agent", '[agent]\nkernel_file = "/var/log/kern.log"\n'),
        ("worker", '[worker]\ntick_s = "often"\n'),
    ):
        (tmp_path / f"{name}.toml").write_text(text)
    return tmp_path


@pytest.mark.parametrize(("line", "said"), WRONG)
def test_a_wrong_call_ends_with_2_and_one_sentence(
    ringfence: Any, folder: Path, line: str, said: str
) -> None:
    result = ringfence(*shlex.split(line.replace("{folder}", str(folder))))
    assert result.exit_code == 2
    assert re.search(said, sentence(result))
    assert result.stdout == ""


def test_every_command_is_called_wrongly_above() -> None:
    called = [shlex.split(line) for line, _ in WRONG]
    missing = [
        name
        for name in commands(main)
        if not any(" ".join(words).find(name) >= 0 for words in called)
    ]
    assert missing == []


def test_where_no_kafka_answers_every_part_says_so_in_one_sentence(tmp_path: Path) -> None:
    nowhere = f"127.0.0.1:{free_port(None)}"
    calls = {
        name: [*name.split(), "--bootstrap", nowhere, *rest]
        for name, rest in {
            "demo": ["--within", "1"],
            "up": [],
            "worker": [],
            "sink": [],
            "scheduler exec": ["/bin/true"],
            "announce": ["reboot", "--host", "n1"],
            "isolate": ["node:n1"],
            "release": ["node:n1"],
        }.items()
    }

    def call(name: str) -> subprocess.CompletedProcess[str]:
        data = str(tmp_path / name.replace(" ", "-"))
        return subprocess.run(
            [sys.executable, "-m", "ringfence", "--data", data, *calls[name]],
            env=os.environ | {"RINGFENCE_KAFKA_START_WITHIN_S": "1"},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    with ThreadPoolExecutor(2) as pool:
        ended = dict(zip(calls, pool.map(call, calls), strict=True))
    said = {name: (one.returncode, one.stderr) for name, one in ended.items()}
    assert said == dict.fromkeys(calls, (2, f"Error: No Kafka answers at {nowhere} within 1 s.\n"))


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
    assert ringfence("triage", str(tmp_path / "n1.log")).stdout == "Nothing at fault in 1 logs.\n"


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


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """A warehouse in which nothing is stored yet, where the calls look for it."""
    root = tmp_path / "data" / "warehouse"
    prepare(root)
    return root


@pytest.mark.usefixtures("warehouse")
@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("selec 1", "syntax error"),
        ("select nothing from xids", '"nothing" not found'),
        ("select 1; select 2", "one statement at a time"),
        ("drop view xids", "only read"),
        ("copy (select 1) to '/tmp/x.csv'", "only read"),
        ("", "one statement at a time"),
        ("select * from read_csv('/etc/passwd')", "(?i)permission|disabled"),
    ],
)
def test_sql_that_cannot_be_answered_is_one_sentence(
    ringfence: Any, statement: str, said: str
) -> None:
    result = ringfence("sql", statement)
    assert result.exit_code == 2
    assert re.search(said, sentence(result))


@pytest.mark.usefixtures("warehouse")
def test_sql_answers_as_a_table_or_as_json(ringfence: Any) -> None:
    assert records(ringfence("sql", "select 7 as one, null as other", "--json")) == [
        {"one": 7, "other": None}
    ]
    assert "one" in ringfence("sql", "select 7 as one").stdout
    assert records(ringfence("sql", "select * from xids", "--json")) == []


@pytest.mark.usefixtures("warehouse")
def test_why_of_a_command_that_nobody_gave_is_one_sentence(ringfence: Any) -> None:
    result = ringfence("why", "5f0f745cbcc7ff1ed8cd7028")
    assert result.exit_code == 2
    assert sentence(result) == "no command '5f0f745cbcc7ff1ed8cd7028' in the warehouse"


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
