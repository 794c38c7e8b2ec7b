"""A command must be able to tell its reasons from what is stored alone."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
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
    Suspicion,
    Verdict,
    Witness,
)
from evidence.decisions import Testimony as Answer  # pytest takes Test* for tests
from evidence.records import (
    GpuFrame,
    GpuSnapshot,
    GpuTick,
    KernelKind,
    KernelRecord,
    NcclKind,
    NcclRecord,
)
from warehouse.errors import WarehouseError
from warehouse.why import Why, why

AT = datetime(2026, 4, 7, 3, 12, 8, tzinfo=UTC)
GPU = Domain(kind=DomainKind.GPU, host="trn-17", pci="0000:4c:00", uuid="GPU-aa01")
XID = KernelRecord(
    id="x1", observed_at=AT, at=AT, raw="NVRM: Xid (PCI:0000:4c:00): 48, pid=5", host="trn-17",
    kind=KernelKind.XID, code=48, pci="0000:4c:00",
)  # fmt: skip
LINE = NcclRecord(
    id="l1", observed_at=AT, at=AT, raw="[Rank 3] Watchdog caught collective operation timeout",
    kind=NcclKind.TIMEOUT, job="job-9", host="trn-17",
)  # fmt: skip
SAMPLE = GpuFrame(
    id="f1", host="trn-17", observed_at=AT, seq=0,
    ticks=tuple(
        GpuTick(
            at=AT + timedelta(seconds=second),
            gpus=(
                GpuSnapshot(index=0, uuid="GPU-bb02", pci="0000:1b:00"),
                GpuSnapshot(index=2, uuid="GPU-aa01", pci="0000:4c:00", remap_pending=second > 0),
            ),
        )
        for second in range(3)
    ),
)  # fmt: skip
EVIDENCE = (
    EvidenceRef(id="x1", source="kernel", at=AT, text="Xid 48"),
    EvidenceRef(id="f1", source="gpu", at=AT + timedelta(seconds=1), text="remap pending"),
    EvidenceRef(id="l1", source="nccl", at=AT, text="timeout of rank 3"),
    EvidenceRef(id="gone", source="kernel", at=AT, text="not stored"),
)
VERDICT = Verdict(
    id="v2", incident="i1", revision=2, at=AT, decided_at=AT + timedelta(seconds=4),
    status=Status.LOCALIZED, cause=Cause.GPU_MEMORY, domain=GPU, confidence=0.97,
    reason="three witnesses", evidence=EVIDENCE,
    testimony=(Answer(witness=Witness.KERNEL, says=Says.ACCUSES, weight=0.9, words="Xid 48"),),
)  # fmt: skip
COMMAND = Command(
    id="c0ffee0123", action=Action.ISOLATE, domain=GPU, domain_id=GPU.id, level=Level.DRAIN,
    cause=Cause.GPU_MEMORY, reason="three witnesses", incident="i1", generation=1, verdict="v2",
    issued_at=AT + timedelta(seconds=5), evidence=("x1", "f1", "l1", "gone"),
)  # fmt: skip
ACK = Ack(
    id="a1", command=COMMAND.id, domain_id=GPU.id, at=AT + timedelta(seconds=6), scheduler="exec",
    status=AckStatus.DONE, exit_code=0,
)  # fmt: skip
SUSPICION = Suspicion(
    id="s1", at=AT, observed_at=AT, witness=Witness.COLLECTIVE, says=Says.ACCUSES, kind="culprit",
    domain=GPU, host="trn-17", evidence=(EvidenceRef(id="l1", source="nccl"),),
)  # fmt: skip


@pytest.fixture
def incident(root: Path, store: Any) -> Path:
    nearby = replace(XID, id="x0", code=63, raw="NVRM: Xid (PCI:0000:4c:00): 63")
    elsewhere = replace(XID, id="x7", host="trn-18")
    store("kernel", XID, nearby, elsewhere)
    store("nccl", LINE)
    store("gpu", SAMPLE)
    store("suspicions", SUSPICION, replace(SUSPICION, id="s9", evidence=()))
    first = replace(VERDICT, id="v1", revision=1, status=Status.SUSPECTED, evidence=EVIDENCE[:1],
                    decided_at=AT + timedelta(seconds=2))  # fmt: skip
    foreign = replace(VERDICT, id="w1", incident="i2")
    store("verdicts", first, VERDICT, VERDICT, foreign)
    store("isolation.commands", COMMAND, COMMAND, replace(COMMAND, id="c0ffeeffff", incident="i2"))
    store("isolation.acks", ACK, replace(ACK, id="a2", command="other"))
    return root


def test_why_tells_the_whole_story(incident: Path) -> None:
    found = why(incident, COMMAND.id)
    assert found is not None
    assert found.command == COMMAND
    assert found.sent == 2
    assert [(one.id, one.status) for one in found.verdicts] == [
        ("v1", Status.SUSPECTED),
        ("v2", Status.LOCALIZED),
    ]
    assert found.verdicts[1] == VERDICT
    assert found.acks == (ACK,)
    assert found.suspicions == (SUSPICION,)
    assert tuple(one.ref for one in found.evidence) == EVIDENCE
    assert [(one.stored, one.raw) for one in found.evidence] == [
        (True, XID.raw),
        (True, None),
        (True, LINE.raw),
        (False, None),
    ]
    assert [one.id for one in found.others] == ["x0"]


def test_a_gpu_sample_shows_the_gpu_of_the_domain_at_the_time_of_the_evidence(
    incident: Path,
) -> None:
    found = why(incident, COMMAND.id)
    assert found is not None
    values = found.evidence[1].values
    assert values is not None
    assert (values["index"], values["remap_pending"]) == (2, True)
    assert values["at"] == AT + timedelta(seconds=1)


def test_the_story_survives_json(incident: Path) -> None:
    found = why(incident, COMMAND.id)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Why) == msgspec.json.decode(
        msgspec.json.encode(found), type=Why
    )
    assert b'"raw":"NVRM: Xid (PCI:0000:4c:00): 48, pid=5"' in msgspec.json.encode(found)


def test_a_prefix_that_fits_one_command_is_enough(incident: Path) -> None:
    found = why(incident, "c0ffee01")
    assert found is not None
    assert found.command == COMMAND


def test_a_prefix_that_fits_several_commands_is_refused(incident: Path) -> None:
    with pytest.raises(WarehouseError, match="'c0ffee' fits 2 commands, among them c0ffee0123"):
        why(incident, "c0ffee")
    with pytest.raises(WarehouseError, match="fits"):
        why(incident, "")


def test_an_unknown_command_is_none(incident: Path, tmp_path_factory: Any) -> None:
    assert why(incident, "beef") is None
    assert why(tmp_path_factory.mktemp("empty"), "beef") is None


def test_a_command_whose_verdict_is_not_stored_yet_still_shows_its_evidence(
    root: Path, store: Any
) -> None:
    store("isolation.commands", COMMAND)
    store("kernel", XID)
    found = why(root, COMMAND.id)
    assert found is not None
    assert found.verdicts == ()
    assert [(one.ref.id, one.raw) for one in found.evidence if one.stored] == [("x1", XID.raw)]


def test_evidence_stored_long_before_its_command_is_found(
    root: Path, partition: Any, fetched: Any, store: Any
) -> None:
    old = partition("kernel")
    month_ago = int((AT - timedelta(days=30)).timestamp() * 1000)
    old.add([fetched(0, msgspec.json.encode(XID), timestamp=month_ago)], now=0.0)
    old.flush(0.0)
    store("verdicts", VERDICT)
    store("isolation.commands", COMMAND)
    found = why(root, COMMAND.id)
    assert found is not None
    assert found.evidence[0].raw == XID.raw
