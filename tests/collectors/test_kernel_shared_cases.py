"""The shared cases: real lines quoted in public, each with the answer that is right for it."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from collectors.kernel import parse_stream
from evidence.identity import normalise_pci
from evidence.records import KernelKind, KernelRecord

NOW = datetime(2026, 3, 9, 12, 0, tzinfo=UTC)
SHARED = Path(os.environ.get("RINGFENCE_SHARED", Path(__file__).parents[3] / "shared"))
_KINDS = {"xid": KernelKind.XID, "sxid": KernelKind.SXID, "nvrm_other": KernelKind.NVRM}


def _shared(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"the shared folder has no {name} here (RINGFENCE_SHARED names another folder)")
    return path


def _parsed(lines: list[bytes], *, coalesce: bool = False) -> list[KernelRecord]:
    return list(parse_stream(lines, host="n1", now=NOW, coalesce=coalesce))


@pytest.mark.parametrize("broken_up", [True, False], ids=["line breaks", "literal"])
def test_kind_code_and_address_are_right_on_every_shared_line(broken_up: bool) -> None:
    wrong, count = [], 0
    text = _shared("cases/kernel-lines.tsv").read_text()
    for row in text.split("\n")[1:]:
        if not row:
            continue
        line, kind, code, pci, *_ = row.split("\t")
        count += 1
        lines = line.replace("\\n", "\n").split("\n") if broken_up else [line]
        found = _parsed([one.encode() for one in lines])
        said = [(r.kind, r.code, r.pci) for r in found]
        address = normalise_pci(pci)[0] if pci else None
        right = _KINDS.get(kind) or (
            found[0].kind if found[0].kind not in ("xid", "sxid") else None
        )
        if said != [(right, int(code) if code else None, address)]:
            wrong.append((line, said))
    assert wrong == []
    assert count >= 143


def test_the_memory_fault_keeps_its_chain_amid_the_noise() -> None:
    lines = _shared("data/kmsg/h100_dbe_48_63_94_chain.log").read_bytes().splitlines()
    found = _parsed(lines, coalesce=True)
    xids = [(r.code, r.pci, r.reset, r.count) for r in found if r.kind is KernelKind.XID]
    gpu = "0000:19:00"
    assert xids == [(48, gpu, None, 1), (63, gpu, None, 1), (94, gpu, False, 1), (94, gpu, None, 8)]
    assert sum(r.count for r in found) == len(lines)


def test_a_burst_of_application_faults_becomes_few_records_that_count_it_all() -> None:
    lines = _shared("data/kmsg/xid13_43_burst_629_lines.log").read_bytes().splitlines()
    found = _parsed(lines, coalesce=True)
    assert {(r.kind, r.code) for r in found} == {(KernelKind.XID, 13), (KernelKind.XID, 43)}
    assert sum(record.count for record in found) == len(lines)
    assert len(found) <= 20


def test_the_gsp_timeouts_carry_the_uuid_and_serial_the_driver_told_before() -> None:
    lines = _shared("data/kmsg/xid119_gsp_timeout.log").read_bytes().splitlines()
    found = _parsed(lines)
    xids = [r for r in found if r.kind is KernelKind.XID]
    assert [r.code for r in xids] == [119] * 5
    assert {(r.uuid, r.serial) for r in xids} == {
        ("GPU-d58d0678-0000-0000-0000-000000000000", "1650000000000")
    }
    # the driver's notice, and the two Xids that it printed of sixty
    assert [(r.code, r.pci) for r in found if r.rate_limited] == [
        (None, "0000:9b:00"),
        (119, "0000:9b:00"),
        (119, "0000:9b:00"),
    ]


def test_the_fabric_manager_log_holds_one_switch_error() -> None:
    lines = _shared("data/kmsg/fabricmanager_a100.log").read_bytes().splitlines()
    errors = [r for r in _parsed(lines) if r.code is not None]
    assert [(r.kind, r.code, r.severity, r.pci, r.port) for r in errors] == [
        (KernelKind.FABRIC_MANAGER, 12028, "non-fatal", "0000:86:00", 61)
    ]
