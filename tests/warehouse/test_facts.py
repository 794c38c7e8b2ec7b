"""What the views make of a few rows."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from evidence.decisions import (
    Ack,
    AckStatus,
    Action,
    Cause,
    Command,
    Domain,
    DomainKind,
    EvidenceRef,
    Level,
    Says,
    Status,
    Verdict,
    Witness,
)
from evidence.decisions import Testimony as Answer  # pytest takes Test* for tests
from evidence.records import (
    GpuFrame,
    GpuIdentity,
    GpuSnapshot,
    GpuStatus,
    GpuTick,
    InventoryRecord,
    KernelKind,
    KernelRecord,
    Mig,
    Tick,
)
from warehouse.query import query

AT = datetime(2026, 4, 7, 3, 12, 8, tzinfo=UTC)
GPU = Domain(kind=DomainKind.GPU, host="trn-17", pci="0000:4c:00", uuid="GPU-aa01")


def _at(seconds: float) -> datetime:
    return AT + timedelta(seconds=seconds)


def _xid(number: int, code: int, **more: Any) -> KernelRecord:
    return KernelRecord(
        id=f"x{number}",
        observed_at=_at(number),
        at=_at(number),
        raw=f"NVRM: Xid (PCI:0000:4c:00): {code}",
        kind=KernelKind.XID,
        code=code,
        host="trn-17",
        pci="0000:4c:00",
        **more,
    )


def _frame(number: int, *gpus: GpuSnapshot, boot: str = "b1") -> GpuFrame:
    tick = GpuTick(at=_at(number), gpus=gpus)
    return GpuFrame(
        id=f"f{number}", host="trn-17", observed_at=_at(number), seq=number, ticks=(tick,),
        boot_id=boot,
    )  # fmt: skip


def _gpu(**values: Any) -> GpuSnapshot:
    return GpuSnapshot(index=2, uuid="GPU-aa01", pci="0000:4c:00", **values)


def _command(**changes: Any) -> Command:
    one = Command(
        id="c0ffee01",
        action=Action.ISOLATE,
        domain=GPU,
        domain_id=GPU.id,
        level=Level.DRAIN,
        cause=Cause.GPU_MEMORY,
        reason="uncorrectable memory",
        incident="i1",
        generation=1,
        issued_at=_at(5),
        verdict="v1",
    )
    return replace(one, **changes)


def _verdict(revision: int, **changes: Any) -> Verdict:
    one = Verdict(
        id=f"v{revision}",
        incident="i1",
        revision=revision,
        at=AT,
        decided_at=_at(revision),
        status=Status.SUSPECTED,
        cause=Cause.GPU_MEMORY,
        domain=GPU,
        confidence=0.5,
        reason="Xid 48",
        testimony=(
            Answer(witness=Witness.KERNEL, says=Says.ACCUSES, weight=0.9),
            Answer(witness=Witness.COLLECTIVE, says=Says.BLIND),
        ),
        evidence=(
            EvidenceRef(id="x1", source="kernel", at=_at(1), text="Xid 48"),
            EvidenceRef(id="f1", source="gpu", at=_at(2), text="remap pending"),
        ),
    )
    return replace(one, **changes)


def test_an_xid_sent_twice_counts_once(root: Path, store: Any) -> None:
    other = KernelRecord(id="n1", observed_at=AT, raw="eth0 up", kind=KernelKind.OTHER)
    store("kernel", _xid(1, 48), other, Tick(id="t", at=AT), _xid(2, 94, mig=Mig(3, 0), count=9))
    store("kernel", _xid(1, 48))
    sql = "select id, event_at, host, pci, code, gi, count from xid_events order by event_at"
    assert query(root, sql)[1] == [
        ("x1", _at(1), "trn-17", "0000:4c:00", 48, None, 1),
        ("x2", _at(2), "trn-17", "0000:4c:00", 94, 3, 9),
    ]
    assert query(root, "select count(*) from kernel")[1] == [(4,)]


def test_an_sxid_is_no_xid(root: Path, store: Any) -> None:
    store(
        "kernel",
        KernelRecord(id="s1", observed_at=AT, raw="r", kind=KernelKind.SXID, code=12028, link=32),
    )
    assert query(root, "select id from xid_events")[1] == []
    assert query(root, "select id, code, link from sxid_events")[1] == [("s1", 12028, 32)]


def test_a_command_sent_again_is_one_with_its_latest_answer(root: Path, store: Any) -> None:
    store("isolation.commands", _command(), _command(), _command(id="c0ffee02", held="budget"))
    failed = Ack(
        id="a1", command="c0ffee01", domain_id=GPU.id, at=_at(6), scheduler="exec",
        status=AckStatus.FAILED, exit_code=3,
    )  # fmt: skip
    store("isolation.acks", failed, replace(failed, id="a2", at=_at(7), status=AckStatus.DONE))
    sql = (
        "select id, host, level, sent, ack, ack_scheduler, acked_at, held from commands order by id"
    )
    assert query(root, sql)[1] == [
        ("c0ffee01", "trn-17", "drain", 2, "done", "exec", _at(7), None),
        ("c0ffee02", "trn-17", "drain", 1, None, None, None, "budget"),
    ]


def test_an_incident_is_its_latest_revision(root: Path, store: Any) -> None:
    last = _verdict(2, status=Status.LOCALIZED, confidence=0.97)
    store("verdicts", _verdict(1), last, _verdict(1))
    sql = (
        "select incident, id, status, confidence, accusers, evidence_count, host, pci from verdicts"
    )
    assert query(root, sql)[1] == [
        ("i1", "v2", "localized", 0.97, ["kernel"], 2, "trn-17", "0000:4c:00")
    ]


def test_the_evidence_of_each_revision_keeps_its_order(root: Path, store: Any) -> None:
    store("verdicts", _verdict(1), _verdict(1), _verdict(2))
    sql = (
        "select verdict, position, evidence, source, event_at, text from verdict_evidence "
        "order by verdict, position"
    )
    assert query(root, sql)[1] == [
        (verdict, position, *rest)
        for verdict in ("v1", "v2")
        for position, rest in enumerate(
            [("x1", "kernel", _at(1), "Xid 48"), ("f1", "gpu", _at(2), "remap pending")], 1
        )
    ]


def test_the_health_of_a_gpu_is_its_latest_sample_with_what_is_wrong(
    root: Path, store: Any
) -> None:
    fine = GpuSnapshot(index=0, uuid="GPU-bb02", pci="0000:1b:00", ecc_volatile_uncorrected=0)
    store(
        "gpu",
        _frame(1, fine, _gpu(ecc_volatile_uncorrected=0)),
        _frame(3, fine, _gpu(ecc_volatile_uncorrected=4, remap_pending=True, recovery_action=1)),
    )
    store("gpu", _frame(2, fine, _gpu(status=GpuStatus.LOST, error=15)))
    sql = "select gpu, host, index, event_at, status, alerts from gpu_health order by gpu"
    alerts = ["remap pending", "uncorrectable ECC", "recovery action 1"]
    assert query(root, sql)[1] == [
        ("GPU-aa01", "trn-17", 2, _at(3), "ok", alerts),
        ("GPU-bb02", "trn-17", 0, _at(3), "ok", []),
    ]


def test_a_lost_gpu_is_alerted(root: Path, store: Any) -> None:
    store("gpu", _frame(1, _gpu(status=GpuStatus.LOST, error=15)))
    assert query(root, "select status, error, alerts from gpu_health")[1] == [
        ("lost", 15, ["lost"])
    ]


def test_a_swapped_card_has_its_own_period_at_the_place(root: Path, store: Any) -> None:
    card = GpuIdentity(index=2, pci="0000:4c:00", uuid="GPU-aa01", serial="1650924000001")
    node = InventoryRecord(id="n1", host="trn-17", observed_at=_at(0), gpus=(card,), rack="r7")
    swapped = replace(card, uuid="GPU-cc03", serial="1650924000002")
    store("inventory", node, replace(node, id="n2", observed_at=_at(9), gpus=(swapped,)))
    sql = "select host, index, pci, uuid, serial, rack, valid_from, valid_to from inventory_at"
    place = ("trn-17", 2, "0000:4c:00")
    assert sorted(query(root, sql)[1], key=str) == [
        (*place, "GPU-aa01", "1650924000001", "r7", _at(0), _at(9)),
        (*place, "GPU-cc03", "1650924000002", "r7", _at(9), None),
    ]


def test_the_timeline_puts_all_sources_in_one_order(root: Path, store: Any) -> None:
    store(
        "kernel", _xid(1, 48), KernelRecord(id="n", observed_at=AT, raw="", kind=KernelKind.OTHER)
    )
    lost = _gpu(status=GpuStatus.LOST, error=15)
    store("gpu", _frame(0, _gpu()), _frame(2, lost), _frame(3, lost))
    store("verdicts", _verdict(4))
    store("isolation.commands", _command(), _command())
    done = Ack(
        id="a9", command=_command().id, domain_id=_command().domain_id, at=_at(6),
        scheduler="exec", status=AckStatus.DONE, detail="exit code 0",
    )  # fmt: skip
    store("isolation.acks", done)
    sql = "select event_at, source, host, pci, what, text from timeline order by event_at"
    assert query(root, sql)[1] == [
        (_at(1), "kernel", "trn-17", "0000:4c:00", "xid 48", "NVRM: Xid (PCI:0000:4c:00): 48"),
        (
            _at(2), "gpu", "trn-17", "0000:4c:00", "lost",
            "GPU 2: status ok -> lost (NVML error 15)",
        ),
        (_at(4), "verdict", "trn-17", "0000:4c:00", "suspected gpu-memory", "Xid 48"),
        (
            _at(5), "command", "trn-17", "0000:4c:00", "isolate drain",
            "gpu:trn-17/0000:4c:00: uncorrectable memory",
        ),
        (
            _at(6), "ack", "trn-17", "0000:4c:00", "done",
            "exec on gpu:trn-17/0000:4c:00: exit code 0",
        ),
    ]  # fmt: skip


def test_a_file_of_an_older_build_without_a_column_is_read(root: Path, store: Any) -> None:
    import pyarrow.parquet as pq  # noqa: PLC0415 (only this test takes a file apart)

    path = store("kernel", _xid(1, 48))
    older = pq.ParquetFile(path).read().drop_columns(["caused_by", "driver"])
    pq.write_table(older, path)
    store("kernel", _xid(2, 94, caused_by=48))
    assert query(root, "select code, caused_by from xid_events order by code")[1] == [
        (48, None),
        (94, 48),
    ]


def test_cards_that_tell_an_empty_uuid_are_told_apart_by_their_place(
    root: Path, store: Any
) -> None:
    card = replace(_gpu(), uuid="", serial="")
    store("gpu", *(replace(_frame(1, card), id=host, host=host) for host in ("trn-1", "trn-2")))
    found = query(root, "select gpu from gpu_samples order by gpu")[1]
    assert found == [("trn-1/0000:4c:00",), ("trn-2/0000:4c:00",)]


def test_one_uuid_on_two_hosts_gives_the_same_answer_each_time(root: Path, store: Any) -> None:
    for hosts in (("trn-2", "trn-1"), ("trn-1", "trn-2")):
        frames = [replace(_frame(1, _gpu(power_w=1.0)), id=host, host=host) for host in hosts]
        store("gpu", *frames)
    found = query(root, "select host, gap_s from gpu_samples order by host")[1]
    assert found == [("trn-1", None), ("trn-2", 0.0)]
