"""Lines of a log become records: prefixes, joining, coalescing, counting, ids."""

# ruff: noqa: E501 (log lines are quoted whole)

import gzip
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from collectors.kernel import parse_stream
from collectors.kernel.noise import loud_lines
from collectors.kernel.stream import MAX_LINE
from evidence.identity import digest
from evidence.records import KernelKind, KernelRecord
from evidence.wire import decode, encode

NOW = datetime(2026, 3, 9, 12, 0, tzinfo=UTC)
XID = "NVRM: Xid (PCI:0000:6a:00): 79, pid=4410, GPU has fallen off the bus."


def records(*lines: str | bytes, **options: Any) -> list[KernelRecord]:
    raw = [line.encode() if isinstance(line, str) else line for line in lines]
    given: dict[str, Any] = {"host": "n1", "now": NOW} | options
    return list(parse_stream(raw, **given))


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type, misc]


_PREFIXES: list[tuple[str, dict[str, Any]]] = [
    ("", {}),
    ("[  966.503025] ", {"uptime_s": 966.503025}),
    ("[1084456.074562] ", {"uptime_s": 1084456.074562}),
    ("[   12.000001][  T412] ", {"uptime_s": 12.000001}),
    ("[   12.000001] [ T412] ", {"uptime_s": 12.000001}),
    ("[...] ", {}),
    ("[  +0.000123] ", {}),
    ("<3>[6085126.134786] ", {"priority": 3, "facility": 0, "uptime_s": 6085126.134786}),
    ("<12>", {"priority": 4, "facility": 1}),
    ("[Mon Aug  5 03:54:13 2024] ", {"at": at(2024, 8, 5, 3, 54, 13)}),
    ("2024-11-15T05:39:15,491363+00:00 ", {"at": at(2024, 11, 15, 5, 39, 15, 491363)}),
    ("2024-11-15T05:39:15,491363+01:00 ", {"at": at(2024, 11, 15, 4, 39, 15, 491363)}),
    (
        "kern  :warn  : 2025-01-21T04:41:44,283575+00:00 ",
        {"at": at(2025, 1, 21, 4, 41, 44, 283575), "priority": 4, "facility": 0},
    ),
    ("kern  :err   : [   12.000001] ", {"uptime_s": 12.000001, "priority": 3, "facility": 0}),
    ("local0:err   : [   12.000001] ", {"uptime_s": 12.000001, "priority": 3, "facility": 16}),
    ("kern  :info  : [Mon Aug  5 03:54:13 2024] ", {"at": at(2024, 8, 5, 3, 54, 13), "priority": 6, "facility": 0}),
    ("Nov 22 01:02:03 gpu7 kernel: ", {"at": at(2025, 11, 22, 1, 2, 3), "host": "gpu7"}),
    ("Mar  1 01:02:03 gpu7 kernel: ", {"at": at(2026, 3, 1, 1, 2, 3), "host": "gpu7"}),
    (
        "Nov 22 01:02:03 gpu7 kernel: [  966.503025] ",
        {"at": at(2025, 11, 22, 1, 2, 3), "host": "gpu7", "uptime_s": 966.503025},
    ),
    ("Nov 22 01:02:03.491363 gpu7 kernel: ", {"at": at(2025, 11, 22, 1, 2, 3, 491363), "host": "gpu7"}),
    ("May 18 19:02:39 kernel: ", {"at": at(2025, 5, 18, 19, 2, 39)}),
    ("Feb 29 01:02:03 gpu7 kernel: ", {"at": at(2024, 2, 29, 1, 2, 3), "host": "gpu7"}),
    ("Feb 14 05:03:41 gpu7 ", {"at": at(2026, 2, 14, 5, 3, 41), "host": "gpu7"}),
    ("kernel: [16450076.435595] ", {"uptime_s": 16450076.435595}),
    ("kernel: ", {}),
    (
        "2024-11-15T05:39:15.491363+00:00 gpu7 kernel: ",
        {"at": at(2024, 11, 15, 5, 39, 15, 491363), "host": "gpu7"},
    ),
    ("2024-11-15T05:39:15+0000 gpu7 kernel: ", {"at": at(2024, 11, 15, 5, 39, 15), "host": "gpu7"}),
    ("2024-11-15T05:39:15Z ", {"at": at(2024, 11, 15, 5, 39, 15)}),
    ("Fri 2024-11-15 05:39:15 UTC gpu7 kernel: ", {"at": at(2024, 11, 15, 5, 39, 15), "host": "gpu7"}),
    ("1731649155.491363 gpu7 kernel: ", {"at": at(2024, 11, 15, 5, 39, 15, 491363), "host": "gpu7"}),
    ("[  966.503025] gpu7 kernel: ", {"uptime_s": 966.503025, "host": "gpu7"}),
    ("6,3964,206764307,-;", {"priority": 6, "facility": 0, "uptime_s": 206.764307}),
    ("4,3964,206764307,-,caller=T77;", {"priority": 4, "facility": 0, "uptime_s": 206.764307}),
    ("12,3964,206764307,-;", {"priority": 4, "facility": 1, "uptime_s": 206.764307}),
    ("Jan 32 01:02:03 gpu7 kernel: ", {"host": "gpu7"}),
    ("2024-13-15T05:39:15,491363+00:00 ", {}),
]  # fmt: skip


@pytest.mark.parametrize(("prefix", "told"), _PREFIXES, ids=[p or "none" for p, _ in _PREFIXES])
def test_each_line_prefix_gives_its_time_host_and_priority(
    prefix: str, told: dict[str, Any]
) -> None:
    expected = KernelRecord(
        id=digest("n1", None, 0, 0, prefix + XID),
        observed_at=NOW,
        raw=prefix + XID,
        kind=KernelKind.XID,
        **({"host": "n1"} | told),
        line=1,
        code=79,
        pci="0000:6a:00",
        pid=4410,
        message="GPU has fallen off the bus.",
    )
    assert records(prefix + XID + "\n") == [expected]


@pytest.mark.parametrize("prefix", [prefix for prefix, _ in _PREFIXES])
def test_noise_behind_any_prefix_is_counted_and_an_xid_there_is_still_found(prefix: str) -> None:
    found = records(
        prefix + "usb 1-1: reset\n", prefix + XID + "\n", prefix + "usb 2-1: reset\n",
        keep_other=False,
    )  # fmt: skip
    warned = [record for record in found if record.raw and record.kind is KernelKind.OTHER]
    assert [record.code for record in found if record.kind is KernelKind.XID] == [79]
    counted = [record.count for record in found if not record.raw]
    assert len(warned) + sum(counted) == 2


def test_a_process_that_quotes_an_xid_in_syslog_is_not_the_kernel() -> None:
    lines = [
        f"Nov 22 01:02:03 gpu7 dcgm[88]: {XID}",
        f"Nov 22 01:02:03 gpu7 watcher: {XID}",
        f"[   12.000001] dcgm[88]: {XID}",
        f"2024-11-15T05:39:15.1+00:00 gpu7 dcgm[88]: {XID}",
    ]
    assert [record.kind for record in records(*lines)] == [KernelKind.OTHER] * 4


def test_local_times_are_read_in_the_zone_that_is_given() -> None:
    (record,) = records(
        "[Mon Aug  5 03:54:13 2024] " + XID, zone=timezone(timedelta(hours=8), "CST")
    )
    assert record.at == at(2024, 8, 4, 19, 54, 13)


def test_a_given_year_turns_with_the_log() -> None:
    found = records(
        f"Dec 31 23:59:59 a kernel: {XID}", f"Jan  1 00:00:01 a kernel: {XID}", year=2023
    )
    assert [record.at for record in found] == [
        at(2023, 12, 31, 23, 59, 59),
        at(2024, 1, 1, 0, 0, 1),
    ]


def test_a_time_in_the_future_is_clamped_and_says_so() -> None:
    (record,) = records("2026-03-09T18:00:00,000000+00:00 " + XID)
    assert (record.at, record.clock_clamped) == (NOW, True)


def test_a_line_of_our_own_short_name_belongs_to_us_and_another_host_to_itself() -> None:
    found = records(
        f"Nov 22 01:02:03 gpu7 kernel: {XID}",
        f"Nov 22 01:02:03 gpu8 kernel: {XID}",
        host="gpu7.cluster.example",
    )
    assert [record.host for record in found] == ["gpu7.cluster.example", "gpu8"]


def test_a_journal_line_gives_everything_journald_knew() -> None:
    line = json.dumps(
        {
            "MESSAGE": XID,
            "_HOSTNAME": "gpu7",
            "__REALTIME_TIMESTAMP": "1731649155491363",
            "_SOURCE_MONOTONIC_TIMESTAMP": "206764307",
            "_BOOT_ID": "0123456789abcdef0123456789abcdef",
            "PRIORITY": "4",
            "_TRANSPORT": "kernel",
            "SYSLOG_IDENTIFIER": "kernel",
            "__CURSOR": "s=1;i=2",
        }
    )
    assert records(line) == [
        KernelRecord(
            id=digest("n1", None, 0, 0, line),
            observed_at=NOW,
            raw=line,
            kind=KernelKind.XID,
            host="gpu7",
            at=at(2024, 11, 15, 5, 39, 15, 491363),
            uptime_s=206.764307,
            source="journal",
            line=1,
            boot_id="01234567-89ab-cdef-0123-456789abcdef",
            priority=4,
            code=79,
            pci="0000:6a:00",
            pid=4410,
            message="GPU has fallen off the bus.",
        )
    ]


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"MESSAGE": list(XID.encode())}, KernelKind.XID, "GPU has fallen off the bus."),
        ({"MESSAGE": [XID, "twice"]}, KernelKind.XID, "GPU has fallen off the bus."),
        ({"MESSAGE": [255, 254, 65]}, KernelKind.OTHER, "\\xff\\xfeA"),
        ({"MESSAGE": XID, "_TRANSPORT": "stdout"}, KernelKind.OTHER, XID),
        ({"MESSAGE": XID, "SYSLOG_IDENTIFIER": "dcgm"}, KernelKind.OTHER, XID),
        ({"MESSAGE": None}, KernelKind.UNREADABLE, "a journal entry without a message"),
        ({"MESSAGE": [999]}, KernelKind.UNREADABLE, "a journal entry without a message"),
        (
            {"MESSAGE": "detected NVSwitch fatal error 20034", "SYSLOG_IDENTIFIER": "nv-fabricmanager"},
            KernelKind.FABRIC_MANAGER,
            "detected NVSwitch fatal error 20034",
        ),
    ],
)  # fmt: skip
def test_journal_messages_of_every_kind_are_read(
    fields: dict[str, Any], kind: KernelKind, message: str
) -> None:
    (record,) = records(json.dumps(fields))
    assert (record.kind, record.message, record.source) == (kind, message, "journal")


def test_a_broken_journal_line_is_a_record_that_says_so() -> None:
    (record,) = records('{"MESSAGE":"NVRM: Xid (PCI:0000:6a:00): 79')
    assert record.kind is KernelKind.UNREADABLE
    assert record.message is not None
    assert record.message.startswith("a journal line that is no JSON object")


def test_a_fabric_manager_log_gives_the_switch_and_its_port() -> None:
    line = (
        "[Feb 27 2025 15:10:02] [ERROR] [tid 977] detected NVSwitch non-fatal error 12028 on fid 0"
        " on NVSwitch pci bus id 00000000:87:00.0 physical id 3 port 61"
    )
    (record,) = records(line)
    assert record == KernelRecord(
        id=digest("n1", None, 0, 0, line),
        observed_at=NOW,
        raw=line,
        kind=KernelKind.FABRIC_MANAGER,
        host="n1",
        at=at(2025, 2, 27, 15, 10, 2),
        line=1,
        priority=3,
        code=12028,
        pci="0000:87:00",
        function=0,
        severity="non-fatal",
        port=61,
        link=61,
        message=line.partition("977] ")[2],
    )


def test_routine_words_of_fabric_manager_are_counted_when_noise_is() -> None:
    line = "[Feb 27 2025 15:10:02] [INFO] [tid 977] multicast group 0 is freed."
    (record,) = records(line, keep_other=False)
    assert (record.kind, record.count) == (KernelKind.OTHER, 1)


# --- joining


_SWITCH = "nvidia-nvswitch0: SXid (PCI:0000:c7:00.0): "


def test_the_three_lines_of_an_sxid_are_one_event() -> None:
    lines = [
        f"[131453.740743] {_SWITCH}20034, Fatal, Link 30 LTSSM Fault Up",
        f"[131453.740754] {_SWITCH}20034, Severity 1 Engine instance 30 Sub-engine instance 00",
        f"[131453.740758] {_SWITCH}20034, Data {{0x50610002, 0x10100030}}",
        f"[131453.740760] {_SWITCH}20034, Data {{0x00000001}}",
    ]
    assert records(*lines) == [
        KernelRecord(
            id=digest("n1", None, 0, 0, lines[0]),
            observed_at=NOW,
            raw="\n".join(lines),
            kind=KernelKind.SXID,
            host="n1",
            uptime_s=131453.740743,
            line=1,
            code=20034,
            pci="0000:c7:00",
            function=0,
            device="nvidia-nvswitch0",
            severity="fatal",
            link=30,
            unit="engine 30.00",
            registers=(0x50610002, 0x10100030, 1),
            message="Fatal, Link 30 LTSSM Fault Up",
        )
    ]


def test_the_events_of_two_switches_that_print_at_once_stay_apart() -> None:
    other = "nvidia-nvswitch1: SXid (PCI:0000:c8:00.0): "
    found = records(
        f"{_SWITCH}20034, Fatal, Link 30 LTSSM Fault Up",
        f"{other}20034, Fatal, Link 31 LTSSM Fault Up",
        "usb 1-1: reset",
        f"{_SWITCH}20034, Severity 1 Engine instance 30 Sub-engine instance 00",
        f"{other}20034, Severity 1 Engine instance 31 Sub-engine instance 00",
    )
    assert [(record.kind, record.link, record.unit) for record in found] == [
        (KernelKind.SXID, 30, "engine 30.00"),
        (KernelKind.SXID, 31, "engine 31.00"),
        (KernelKind.OTHER, None, None),
    ]


def test_the_probe_message_of_a_lost_gpu_is_one_record_however_it_is_printed() -> None:
    dmesg = [
        "[ 1843.308145] NVRM: The NVIDIA GPU 0000:6a:00.0",
        "               NVRM: (PCI ID: 10de:2330) installed in this system has",
        "               NVRM: fallen off the bus and is not responding to commands.",
    ]
    syslog = [f"Nov 22 01:02:03 gpu7 kernel: {line[15:].strip()}" for line in dmesg]
    for lines in (dmesg, syslog):
        (record,) = records(*lines)
        assert record.kind is KernelKind.NVRM
        assert record.pci == "0000:6a:00"
        assert record.raw == "\n".join(lines)
        assert record.message == (
            "The NVIDIA GPU 0000:6a:00.0 (PCI ID: 10de:2330) installed in this system has fallen"
            " off the bus and is not responding to commands."
        )


def test_an_xid_in_the_line_after_the_probe_message_is_the_same_event() -> None:
    found = records(
        "NVRM: The NVIDIA GPU 0000:6a:00.0",
        "NVRM: fallen off the bus and is not responding to commands.",
        XID,
        XID.replace("6a:00", "6b:00"),
    )
    assert [(record.kind, record.pci, record.line) for record in found] == [
        (KernelKind.XID, "0000:6a:00", 1),
        (KernelKind.XID, "0000:6b:00", 4),
    ]


def test_the_crash_dump_notice_is_one_record() -> None:
    found = records(
        "NVRM: A GPU crash dump has been created. If possible, please run",
        "NVRM: nvidia-bug-report.sh as root to collect this data before",
        "NVRM: the NVIDIA kernel module is unloaded.",
        XID,
    )
    assert [record.message for record in found] == [
        "A GPU crash dump has been created. If possible, please run nvidia-bug-report.sh as root to"
        " collect this data before the NVIDIA kernel module is unloaded.",
        "GPU has fallen off the bus.",
    ]


def test_a_beginning_whose_end_never_comes_is_let_go() -> None:
    found = records("NVRM: The NVIDIA GPU 0000:6a:00.0", *["usb 1-1: reset"] * 30, XID)
    assert [record.kind for record in found] == [
        KernelKind.NVRM, *[KernelKind.OTHER] * 30, KernelKind.XID,
    ]  # fmt: skip


# --- coalescing


def _line(second: float, text: str) -> str:
    stamp = at(2026, 3, 1, 10, 0) + timedelta(seconds=second)
    return f"{stamp:%Y-%m-%dT%H:%M:%S},{stamp.microsecond:06}+00:00 {text}"


def _storm(second: float, gpc: int) -> str:
    return _line(
        second,
        "NVRM: Xid (PCI:0000:6a:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception"
        f" on (GPC {gpc}, TPC 1, SM 0): Out Of Range Address",
    )


def test_a_storm_is_one_record_with_its_count_and_its_last_time() -> None:
    lines = [_storm(index / 100, index % 8) for index in range(629)]
    (record,) = records(*lines, coalesce=True)
    assert (record.count, record.raw, record.at, record.last_at) == (
        629,
        lines[0],
        at(2026, 3, 1, 10, 0),
        at(2026, 3, 1, 10, 0) + timedelta(seconds=6.28),
    )


def test_without_coalescing_each_line_is_a_record() -> None:
    assert len(records(*[_storm(index / 100, 1) for index in range(20)])) == 20


def test_a_pause_ends_a_storm_and_a_long_one_is_told_again_each_minute() -> None:
    lines = [_storm(second, 1) for second in (0, 4, 8, 20, 21)]
    assert [record.count for record in records(*lines, coalesce=True)] == [3, 2]
    lines = [_storm(float(second), 1) for second in range(130)]
    assert [record.count for record in records(*lines, coalesce=True)] == [61, 61, 8]


def test_one_memory_fault_keeps_its_chain_and_counts_only_its_channels() -> None:
    gpu = "NVRM: Xid (PCI:0000:6a:00): "
    who = "pid=9, name=train, "
    lines = [
        _line(0.0, f"{gpu}48, An uncorrectable double bit error at physAddr 0x12 partition 2."),
        _line(0.1, f"{gpu}63, Row Remapper: New row (0x12) marked for remapping, reset gpu."),
        _line(0.2, f"{gpu}94, Contained: SM (0x1). RST: No, D-RST: No"),
        *[_line(0.3 + n / 100, f"{gpu}94, {who}Ch 0000000{n}") for n in range(8)],
    ]
    found = records(*lines, coalesce=True)
    assert [(record.code, record.reset, record.count) for record in found] == [
        (48, None, 1),
        (63, None, 1),
        (94, False, 1),
        (94, None, 8),
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("94, Contained: SM (0x1). RST: No, D-RST: No", "94, Contained: SM (0x1). RST: Yes, D-RST: No"),
        ("45, pid=9, name=a, Ch 1", "45, pid=9, name=a, Ch 1 caused by previous Xid 149"),
        ("45, pid=9, name=a, Ch 1", "45, pid=8, name=a, Ch 1"),
        ("149, NETIR Fatal XC0 i0 Link 01 (0x1)", "149, NETIR Fatal XC0 i0 Link 02 (0x1)"),
        ("149, NETIR Fatal XC0 i0 Link 01 (0x1)", "149, NETIR Fatal XC0 i0 Link -1 (0x1)"),
        ("149, NETIR Fatal XC0 i0 Link 01 (0x1)", "149, NETIR Nonfatal XC0 i0 Link 01 (0x1)"),
        ("74, NVLink: fatal error detected on link 1(0x1)", "74, NVLink: fatal error detected on link 1(0x2)"),
        ("48, error at physAddr 0x12", "48, error at physAddr 0x13"),
    ],
)  # fmt: skip
def test_lines_that_would_be_decided_differently_never_merge(one: str, other: str) -> None:
    gpu = "NVRM: Xid (PCI:0000:6a:00): "
    found = records(_line(0, gpu + one), _line(1, gpu + other), coalesce=True)
    assert [record.count for record in found] == [1, 1]


def test_every_change_of_the_recovery_action_stays_a_record_of_its_own() -> None:
    gpu = "NVRM: Xid (PCI:0000:6a:00): 154, GPU recovery action changed from "
    there, back = "0x0 (None) to 0x1 (GPU Reset Required)", "0x1 (GPU Reset Required) to 0x0 (None)"
    found = records(
        *[_line(n / 10, gpu + change) for n, change in enumerate((there, back, there, back))],
        coalesce=True,
    )
    assert [record.recovery_action for record in found] == [
        "GPU Reset Required", "None", "GPU Reset Required", "None",
    ]  # fmt: skip


def test_a_link_that_flaps_keeps_the_order_of_its_states() -> None:
    nic = "mlx5_core 0000:5d:00.0 ens7np0: Link "
    states = ("down", "down", "up", "down", "up", "up")
    found = records(*[_line(n / 10, nic + s) for n, s in enumerate(states)], coalesce=True)
    assert [(record.message, record.count) for record in found] == [
        ("Link down", 2), ("Link up", 1), ("Link down", 1), ("Link up", 2),
    ]  # fmt: skip


def test_equal_noise_merges_and_different_noise_does_not() -> None:
    found = records(
        *[_line(n / 10, "peer: detected invalid context") for n in range(9)],
        _line(1, "peer: other"),
        coalesce=True,
    )
    assert [record.count for record in found] == [9, 1]


def test_nothing_is_lost_when_coalescing_whatever_the_order() -> None:
    lines = [_storm(index % 7, index % 3) for index in range(200)] + [
        _line(index % 5, f"usb {index % 4}-1: reset") for index in range(200)
    ]
    assert sum(record.count for record in records(*lines, coalesce=True)) == 400


# --- identity of the GPU


def test_the_uuid_banner_and_serial_are_told_with_every_later_xid_of_that_gpu() -> None:
    found = records(
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.144.03  Mon Dec 30 17:44:08 UTC 2024",
        "NVRM: GPU at PCI:0000:6a:00: GPU-0a1b2c3d-1111-2222-3333-444455556666",
        "NVRM: GPU Board Serial Number: 1322000000042",
        XID,
        XID.replace("6a:00", "6b:00"),
        "NVRM: GPU 0000:6b:00.0: GPU serial number is 77.",
        XID.replace("6a:00", "6b:00"),
    )
    told = [
        (record.pci, record.uuid, record.serial, record.driver)
        for record in found
        if record.kind is KernelKind.XID
    ]
    assert told == [
        ("0000:6a:00", "GPU-0a1b2c3d-1111-2222-3333-444455556666", "1322000000042", "550.144.03"),
        ("0000:6b:00", None, None, "550.144.03"),
        ("0000:6b:00", None, "77", "550.144.03"),
    ]


def test_what_one_host_says_of_its_gpu_is_not_told_of_another_hosts() -> None:
    found = records(
        "Nov 22 01:02:03 a kernel: NVRM: GPU at PCI:0000:6a:00: GPU-0a1b2c3d-1111",
        f"Nov 22 01:02:03 b kernel: {XID}",
    )
    assert found[1].uuid is None


# --- bad input


def test_invalid_utf8_is_kept_visibly_and_the_xid_is_read() -> None:
    (record,) = records(XID.encode().replace(b"pid=4410, ", b"pid=1, name=tr\xe4in\xff, "))
    assert (record.code, record.process) == (79, "tr\\xe4in\\xff")
    assert "tr\\xe4in\\xff" in record.raw
    assert decode("kernel", encode(record)) == record


def test_a_line_of_ten_megabytes_is_cut_and_what_follows_is_read() -> None:
    long = b"x" * 10_000_000
    head, after = records(long + b"\n", XID + "\n")
    assert head.kind is KernelKind.UNREADABLE
    assert len(head.raw) == MAX_LINE
    assert (head.message or "").startswith("a line longer than 65536 bytes, the rest is left out")
    assert (after.code, after.seq, after.line) == (79, len(long) + 1, 2)


def test_an_open_file_with_such_a_line_is_read_in_pieces() -> None:
    class Pieces(io.BytesIO):
        longest = 0

        def readline(self, size: int | None = -1, /) -> bytes:
            line = super().readline(size)
            Pieces.longest = max(Pieces.longest, len(line))
            return line

    data = b"x" * 3_000_000 + b"\n" + XID.encode()
    found = list(parse_stream(Pieces(data), host="n1", now=NOW))
    assert [(record.kind, record.seq) for record in found] == [
        (KernelKind.UNREADABLE, 0),
        (KernelKind.XID, 3_000_001),
    ]
    assert Pieces.longest <= MAX_LINE + 1


def test_a_line_of_exactly_the_limit_is_whole() -> None:
    (record,) = list(parse_stream(io.BytesIO(b"y" * MAX_LINE + b"\n"), host="n1", now=NOW))
    assert (record.kind, len(record.raw)) == (KernelKind.OTHER, MAX_LINE)


def test_an_xid_in_front_of_an_over_long_line_is_still_an_xid_that_says_it_was_cut() -> None:
    (record,) = records(XID.encode() + b"z" * 100_000)
    assert (record.kind, record.code) == (KernelKind.XID, 79)
    assert (record.message or "").endswith("[a line longer than 65536 bytes, the rest is left out]")


def test_a_truncated_gzip_gives_its_records_and_then_its_error() -> None:
    whole = gzip.compress("\n".join([XID] * 2000).encode() + bytes(range(256)) * 400)
    got: list[KernelRecord] = []

    def read(source: gzip.GzipFile) -> None:
        got.extend(parse_stream(source, host="n1", now=NOW, coalesce=True))

    with gzip.GzipFile(fileobj=io.BytesIO(whole[:-20])) as source, pytest.raises(EOFError):
        read(source)
    assert sum(record.count for record in got if record.code == 79) == 2000


@given(st.lists(st.binary(max_size=200), max_size=20), st.booleans(), st.booleans())
def test_no_bytes_whatever_raise_and_none_are_lost(
    lines: list[bytes], coalesce: bool, keep_other: bool
) -> None:
    lines = [line.replace(b"\n", b"").replace(b"\r", b"") for line in lines]
    found = records(*lines, coalesce=coalesce, keep_other=keep_other)
    # a joined event holds its lines in `raw`; everything else is counted
    assert sum(record.count + record.raw.count("\n") for record in found) >= len(lines)
    for record in found:
        assert decode("kernel", encode(record)) == record


_PIECES = st.sampled_from(
    [prefix for prefix, _ in _PREFIXES]
    + [XID, "NVRM: ", "Xid (", "usb 1-1: reset", "{", '{"MESSAGE":', "pcieport 0000:3a:01.0: AER: ",
       "]", "[", " ", "mlx5_core 0000:5d:00.0: x", "kernel: ", "oom-kill:", "{1}[Hardware Error]: x",
       "INFO: task a:1 blocked for more than 120 seconds.", "EDAC MC0: 1 CE x on y", "mce: x"],
)  # fmt: skip


@given(st.lists(_PIECES, max_size=5).map("".join))
@example("[  966.503025] gpu7 kernel: {1}[Hardware Error]: x")
@example("[  966.503025] gpu7 kernel: EDAC MC0: 1 CE x on y")
def test_what_is_passed_over_unparsed_is_never_of_interest(line: str) -> None:
    if not loud_lines([line]):
        (record,) = records(line)
        assert record.kind is KernelKind.OTHER


def test_counting_noise_changes_no_record_of_interest() -> None:
    def mixed() -> Iterator[str]:
        for number in range(5000):
            yield _line(number / 10, f"usb 1-{number % 9}: reset number {number}")
            if number % 97 == 0:
                yield _line(number / 10, XID)

    lines = list(mixed())
    everything = records(*lines)
    shipped = records(*lines, keep_other=False)
    assert shipped[:-1] == [record for record in everything if record.kind is KernelKind.XID]
    assert (shipped[-1].kind, shipped[-1].count) == (KernelKind.OTHER, 5000)


def test_the_same_line_has_the_same_id_in_every_run_and_equal_lines_differ() -> None:
    first, second = (
        records(XID, XID, file="/var/log/kern.log"),
        records(XID, XID, file="/var/log/kern.log"),
    )
    assert [record.id for record in first] == [record.id for record in second]
    assert first[0].id != first[1].id
