"""Triage of what somebody looked up after the incident: nvidia-smi, and whole bug reports."""

import gzip
from datetime import UTC, datetime
from pathlib import Path

import pytest

from evidence.decisions import Cause, DomainKind, Says, Status, Witness
from ringfence import bug_report
from ringfence.logs import LogKind, find
from ringfence.triage import Triage, triage
from rules.tables import load

NOW = datetime(2026, 9, 10, 11, 12, 13, tzinfo=UTC)

XID_79 = (
    "[Thu Sep 10 09:30:01 2026] NVRM: Xid (PCI:0000:3a:00): 79, pid='<unknown>', "
    "name=<unknown>, GPU has fallen off the bus.\n"
)
XID_48 = (
    "[Thu Sep 10 09:30:01 2026] NVRM: Xid (PCI:0000:3a:00): 48, pid=4411, name=python3, An "
    "uncorrectable double bit error (DBE) has been detected on GPU\n"
)
LOST = (
    "Unable to determine the device handle for GPU 0000:3A:00.0: GPU is lost.  Reboot the "
    "system to recover this GPU\n"
)
LIST = "".join(
    f"GPU {index}: NVIDIA H100 80GB HBM3 (UUID: GPU-0000000{index}-aaaa-bbbb-cccc-0123456789ab)\n"
    for index in range(2)
)


def query(
    *,
    failure: str = "No",
    threshold: str = "No",
    dram: int = 0,
    at: str = "Thu Sep 10 10:00:00 2026",
) -> str:
    stamp = f"Timestamp                                 : {at}\n" if at else ""
    return f"""
==============NVSMI LOG==============

{stamp}Driver Version                            : 550.54.15

Attached GPUs                             : 1
GPU 00000000:3A:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Serial Number                         : 1650000000042
    GPU UUID                              : GPU-3a3a3a3a-aaaa-bbbb-cccc-0123456789ab
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : 0
            DRAM Correctable              : 0
            DRAM Uncorrectable            : {dram}
        Aggregate
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : 0
            DRAM Correctable              : 0
            DRAM Uncorrectable            : {dram}
            SRAM Threshold Exceeded       : {threshold}
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 1
        Pending                           : No
        Remapping Failure Occurred        : {failure}
    Temperature
        GPU Current Temp                  : 40 C
"""


def judge(path: Path, **files: str) -> Triage:
    for name, text in files.items():
        file = path / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return triage(path, load(), NOW)


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (query(failure="Yes"), Cause.GPU_MEMORY),
        (query(threshold="Yes"), Cause.GPU_MEMORY),
        (LOST, Cause.GPU_LOST),
    ],
    ids=["remap failure", "SRAM threshold", "lost"],
)
def test_one_look_at_a_card_is_enough_for_a_hard_fact(
    tmp_path: Path, said: str, cause: Cause
) -> None:
    found = judge(tmp_path, n1__smi=said)
    (verdict,) = found.verdicts
    assert (verdict.status, verdict.cause) == (Status.LOCALIZED, cause)
    assert (verdict.domain.kind, verdict.domain.host) == (DomainKind.GPU, "n1")
    assert verdict.domain.pci == "0000:3a:00"
    assert verdict.domain.index in (0, None)
    (command,) = found.commands
    assert command.domain_id.startswith("gpu:")
    assert found.read == {"n1/smi": 1}
    assert [one.file for one in verdict.evidence] == ["n1/smi"]


def test_a_long_series_of_looks_that_say_the_same_is_thinned_and_a_change_is_not(
    tmp_path: Path,
) -> None:
    head = "timestamp, index, pci.bus_id, temperature.gpu, remapped_rows.failure\n"
    rows = "".join(
        f"2026/09/10 09:{second // 60:02d}:{second % 60:02d}.000, 0, 00000000:3A:00.0, 91, "
        f"{'Yes' if second == 1807 else 'No'}\n"
        for second in range(3600)
    )
    found = judge(tmp_path, n1__series=head + rows)
    assert found.read == {"n1/series": 3600}
    causes = {one.cause: one for one in found.verdicts}
    failed = causes[Cause.GPU_MEMORY]
    assert any("09:30:07" in str(one.at) for one in failed.evidence)
    # Above 85 C for ten minutes is read off the thinned series too.
    assert any("too hot" in verdict.reason for verdict in found.verdicts)


def test_counts_that_were_there_at_first_sight_are_no_fault(tmp_path: Path) -> None:
    found = judge(tmp_path, n1__smi=query(dram=5000))
    assert (found.verdicts, found.commands, found.unread) == ([], [], [])


def test_the_growth_between_two_looks_is(tmp_path: Path) -> None:
    later = query(dram=5200, at="Thu Sep 10 10:30:00 2026")
    found = judge(tmp_path, n1__a=query(dram=5000), n1__b=later)
    (verdict,) = found.verdicts
    assert (verdict.status, verdict.cause) == (Status.LOCALIZED, Cause.GPU_MEMORY)
    assert "200 uncorrectable ECC errors" in verdict.reason


@pytest.mark.parametrize(
    "dmesg", [XID_48, "[  811.120031] " + XID_48.split("] ", 1)[1]], ids=["wall clock", "uptime"]
)
@pytest.mark.parametrize("at", ["Thu Sep 10 09:30:02 2026", ""], ids=["timed", "untimed"])
def test_a_kernel_log_and_a_look_of_the_same_host_speak_of_one_card(
    tmp_path: Path, dmesg: str, at: str
) -> None:
    found = judge(tmp_path, n1__dmesg=dmesg, n1__smi=query(failure="Yes", at=at))
    verdict = found.verdicts[0]
    assert (verdict.status, verdict.domain.pci) == (Status.LOCALIZED, "0000:3a:00")
    assert verdict.domain.uuid == "GPU-3a3a3a3a-aaaa-bbbb-cccc-0123456789ab"
    says = {one.witness: one.says for one in verdict.testimony}
    assert (says[Witness.KERNEL], says[Witness.HEALTH]) == (Says.ACCUSES, Says.ACCUSES)
    assert len({one.domain_id for one in found.commands}) == 1


def test_a_look_hours_later_speaks_of_the_same_card(tmp_path: Path) -> None:
    later = query(failure="Yes", at="Thu Sep 10 16:00:00 2026")
    found = judge(tmp_path, n1__dmesg=XID_48, n1__smi=later)
    assert found.verdicts[0].status is Status.LOCALIZED
    assert {one.domain.pci for one in found.verdicts} == {"0000:3a:00"}
    assert len({one.domain_id for one in found.commands}) == 1


def test_a_list_of_cards_does_not_make_a_lost_one_well(tmp_path: Path) -> None:
    found = judge(tmp_path, n1__a_smi=LOST, n1__b_list=LIST)
    assert [one.status for one in found.verdicts] == [Status.LOCALIZED]


def test_what_nvidia_smi_printed_into_a_jobs_log_is_not_laid_at_a_hosts_door(
    tmp_path: Path,
) -> None:
    lines = "".join(
        f"[rank{rank}]:[E910 09:40:0{rank}.000000001 ProcessGroupNCCL.cpp:629] [Rank {rank}] "
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4100, OpType=ALLREDUCE, "
        "NumelIn=65536, NumelOut=65536, Timeout(ms)=600000) ran for 600020 milliseconds before "
        "timing out.\n"
        for rank in range(3)
    )
    (tmp_path / "job.log").write_text(LOST + lines)
    found = triage(tmp_path, load(), NOW)
    assert not any(one.domain.pci for one in found.verdicts)
    assert found.commands == []


def test_a_kernel_log_with_a_table_in_it_is_read_as_both(tmp_path: Path) -> None:
    found = judge(tmp_path, n1__notes=XID_79 + "\n" + LOST)
    verdict = found.verdicts[0]
    says = {one.witness: one.says for one in verdict.testimony}
    assert (says[Witness.KERNEL], says[Witness.HEALTH]) == (Says.ACCUSES, Says.ACCUSES)
    assert found.read == {"n1/notes": 2}


FABRIC = """\
Errors for 0x248a0703008a85d0 "MF0;leaf-07:SB7800/U1"
   GUID 0x248a0703008a85d0 port 12: [SymbolErrorCounter == 65535] [LinkDownedCounter == 3] \
[PortRcvErrors == 9]
"""


def test_text_of_the_fabrics_tools_is_read(tmp_path: Path) -> None:
    found = judge(tmp_path, n1__ibqueryerrors=FABRIC)
    assert found.unread == []
    assert found.read == {"n1/ibqueryerrors": 1}


# --- nvidia-bug-report.log ----------------------------------------------------------------------

LINE = "____________________________________________\n\n"
REPORT = (
    LINE
    + """Start of NVIDIA bug report log file.  Please include this file, along
with a detailed description of your problem.

nvidia-bug-report.sh Version: 34801020

Date: Thu Sep 10 10:00:00 UTC 2026
uname: Linux gpu-c17 5.15.0-102-generic #112-Ubuntu SMP x86_64 GNU/Linux
command line flags:

"""
    + LINE
    + """*** /etc/issue
*** ls: -rw-r--r-- 1 root root 26 2026-01-01 00:00:00.000000000 +0000 /etc/issue
Ubuntu 22.04.4 LTS

"""
    + LINE
    + """Scanning kernel log files for NVIDIA kernel messages:

  journalctl -b -0:
Sep 10 09:00:00 gpu-c17 kernel: nvidia-nvlink: Nvlink Core is being initialized
Sep 10 09:30:01 gpu-c17 kernel: NVRM: Xid (PCI:0000:3a:00): 48, pid=4411, name=python3, An \
uncorrectable double bit error (DBE) has been detected on GPU

"""
    + LINE
    + """dmesg:

[   12.000000] nvidia-nvlink: Nvlink Core is being initialized
[ 1813.000000] NVRM: Xid (PCI:0000:3a:00): 48, pid=4411, name=python3, An uncorrectable double \
bit error (DBE) has been detected on GPU
[ 1813.250000] pcieport 0000:39:00.0: AER: Uncorrectable (Fatal) error message received from \
0000:3a:00.0
"""
    + LINE
    + """*** /proc/cmdline
BOOT_IMAGE=/vmlinuz

"""
    + LINE
    + "/usr/bin/nvidia-smi --query\n\n"
    + query(failure="Yes", at="Thu Sep 10 09:30:20 2026")
    + "\n/usr/bin/nvidia-smi --query --unit\n\n"
    + LINE
    + "Skipping nvidia-debugdump output (nvidia-debugdump not found)\n\n"
    + LINE
    + "End of NVIDIA bug report log file.\n"
)


def test_a_bug_report_is_what_the_kernel_and_nvidia_smi_said(tmp_path: Path) -> None:
    data = REPORT.encode()
    middle = len(data) // 2
    # The script appends a gzip member a section.
    zipped = gzip.compress(data[:middle]) + gzip.compress(data[middle:])
    (tmp_path / "nvidia-bug-report.log.gz").write_bytes(zipped)
    found = triage(tmp_path, load(), NOW)
    verdict = found.verdicts[0]
    assert (verdict.status, verdict.cause) == (Status.LOCALIZED, Cause.GPU_MEMORY)
    assert (verdict.domain.host, verdict.domain.pci) == ("gpu-c17", "0000:3a:00")
    says = {one.witness: one.says for one in verdict.testimony}
    assert (says[Witness.KERNEL], says[Witness.HEALTH]) == (Says.ACCUSES, Says.ACCUSES)
    assert {one.host for one in found.verdicts} == {"gpu-c17"}
    assert found.unread == []
    # An Xid, an AER and a snapshot: what stands in it twice counts once.
    assert found.read == {"nvidia-bug-report.log.gz": 3}


def test_a_line_of_dmesg_gets_the_time_that_the_journal_tells() -> None:
    lines = REPORT.encode().splitlines(keepends=True)
    kept = list(bug_report.kernel_lines(lines))
    assert len(kept) == len(lines)
    told = [line for line in kept if b"kernel:" in line or line.startswith(b"[")]
    assert told == [
        b"Sep 10 09:00:00 gpu-c17 kernel: nvidia-nvlink: Nvlink Core is being initialized\n",
        b"Sep 10 09:30:01 gpu-c17 kernel: NVRM: Xid (PCI:0000:3a:00): 48, pid=4411, "
        b"name=python3, An uncorrectable double bit error (DBE) has been detected on GPU\n",
        b"Sep 10 09:30:01 gpu-c17 kernel: [1813.250000] pcieport 0000:39:00.0: AER: "
        b"Uncorrectable (Fatal) error message received from 0000:3a:00.0\n",
    ]
    number = lines.index(next(line for line in lines if b"pcieport" in line))
    assert b"pcieport" in kept[number]


def test_without_a_journal_the_uptimes_stay() -> None:
    lines = [b"_" * 44 + b"\n", b"\n", b"dmesg:\n", b"\n", b"[    1.500000] NVRM: hello\n"]
    assert list(bug_report.kernel_lines(lines))[-1] == lines[-1]


def test_of_several_boots_the_last_gives_the_time() -> None:
    lines = (
        LINE
        + "Scanning kernel log files for NVIDIA kernel messages:\n"
        + "  journalctl -b -0:\n"
        + "Mar 02 10:00:05 n1 kernel: NVRM: loading now\n"
        + "  journalctl -b -1:\n"
        + "Mar 01 10:00:05 n1 kernel: NVRM: loading then\n"
        + LINE
        + "dmesg:\n"
        + "[    5.000000] NVRM: loading now\n"
        + "[    5.000000] NVRM: loading then\n"
        + "[    6.000000] NVRM: ready\n"
    )
    kept = list(bug_report.kernel_lines(lines.encode().splitlines(keepends=True)))
    assert kept[-1] == b"Mar 02 10:00:06 n1 kernel: [6.000000] NVRM: ready\n"


def test_sections_that_nvidia_smi_did_not_write_tell_nothing_of_cards() -> None:
    text = (
        LINE + "*** /srv/notes\n" + LOST + LINE + "Skipping nvidia-smi output (not found)\n" + LOST
    )
    lines = text.encode().splitlines(keepends=True)
    assert b"".join(bug_report.gpu_lines(lines)).strip() == b""


def test_the_host_of_a_report_without_uname_is_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "n9").mkdir()
    (tmp_path / "n9" / "report.log").write_text(REPORT.replace("uname: Linux", "uname: N/A"))
    found = list(find(tmp_path, lambda _: ()))
    assert [(one.host, one.kind) for one in found if hasattr(one, "kind")] == [
        ("n9", LogKind.KERNEL),
        ("n9", LogKind.GPU),
    ]
