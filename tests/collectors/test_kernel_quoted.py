"""Who wrote a line: the driver itself, or a process that quotes it into the same log."""

# ruff: noqa: E501 (log lines are quoted whole)

import json
from datetime import UTC, datetime

import pytest

from collectors import kernel
from collectors.kernel.journal import read_journal
from evidence.records import KernelKind

NOW = datetime(2026, 5, 4, 4, 0, tzinfo=UTC)
LOST = "NVRM: Xid (PCI:0000:4c:00): 79, GPU has fallen off the bus."


@pytest.mark.parametrize(
    "line",
    [
        "2026-05-04T03:02:01.000000+00:00 gpu12 nodecheck: NVRM: Xid (PCI:0000:4c:00): 79, pid=1, GPU has fallen off the bus.",
        '2026-05-04T03:02:01.000000+00:00 gpu12 nodecheck: dmesg has "NVRM: Xid (PCI:0000:4c:00): 79, GPU has fallen off the bus."',
        "nodecheck: NVRM: Xid (PCI:0000:4c:00): 79, GPU has fallen off the bus.",
        "root: saw NVRM: GPU 0000:4c:00.0: GPU has fallen off the bus.",
        "reader said 'NVRM: Xid (PCI:0000:4c:00): 79, GPU has fallen off the bus.'",
    ],
)
def test_a_line_that_a_process_tagged_or_quoted_is_not_the_drivers(line: str) -> None:
    (record,) = kernel.parse_stream([line.encode()], host="gpu12", now=NOW)
    assert (record.kind, record.code) == (KernelKind.OTHER, None)


@pytest.mark.parametrize(
    "line",
    [
        "2026-05-04T03:02:01.000000+00:00 gpu12 kernel: NVRM: Xid (PCI:0000:4c:00): 79, GPU has fallen off the bus.",
        "[T 17:01] gpu12 NVRM: Xid (PCI:0000:4c:00): 79, GPU has fallen off the bus.",
        "serial console> [ 12.5] kernel: NVRM: Xid (PCI:0000:4c:00): 79, GPU has fallen off the bus.",
        "python-4711 [003] ..... 5000.1: nvidia_dev_xid: Xid (PCI:0000:4c:00.0): 79, GPU has fallen off the bus.",
    ],
)
def test_a_line_of_the_driver_behind_an_unknown_prefix_is_its_own(line: str) -> None:
    (record,) = kernel.parse_stream([line.encode()], host="gpu12", now=NOW)
    assert (record.kind, record.code, record.pci) == (KernelKind.XID, 79, "0000:4c:00")


@pytest.mark.parametrize(
    ("transport", "identifier", "user"),
    [
        ("kernel", "kernel", False),
        ("kernel", None, False),
        (None, "kernel", False),
        (None, None, False),
        ("kernel", "nodecheck", True),
        ("syslog", "kernel", True),
        ("stdout", "python3", True),
    ],
)
def test_a_journal_entry_is_the_kernels_by_transport_and_by_name(
    transport: str | None, identifier: str | None, user: bool
) -> None:
    entry = {"MESSAGE": LOST, "_TRANSPORT": transport, "SYSLOG_IDENTIFIER": identifier}
    line = json.dumps({name: value for name, value in entry.items() if value is not None})
    assert read_journal(line.encode()).user is user
