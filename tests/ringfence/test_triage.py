from datetime import UTC, datetime
from pathlib import Path

from evidence.decisions import Cause, DomainKind, Status
from ringfence.triage import triage
from rules.tables import load

NOW = datetime(2026, 9, 10, 11, 12, 13, tzinfo=UTC)
SIZE = 8


def init(rank: int) -> str:
    host, dev = f"n{rank // 4}", rank % 4
    return (
        f"{host}:{700 + rank}:{800 + rank} [{dev}] NCCL INFO ncclCommInitRank comm 0x5{rank}0a "
        f"rank {rank} nranks {SIZE} cudaDev {dev} nvmlDev {dev} busId {0x1A + 16 * dev:x}000 "
        "commId 0x77aa55cc - Init COMPLETE\n"
    )


def timeout(rank: int) -> str:
    return (
        f"[rank{rank}]:[E910 09:40:0{rank}.000000001 ProcessGroupNCCL.cpp:629] [Rank {rank}] "
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4100, OpType=ALLREDUCE, "
        "NumelIn=65536, NumelOut=65536, Timeout(ms)=600000) ran for 600020 milliseconds before "
        "timing out.\n"
        f"[rank{rank}]:[E910 09:40:0{rank}.000000002 ProcessGroupNCCL.cpp:2168] [PG ID 0 PG GUID "
        f"0(default_pg) Rank {rank}]  failure detected by watchdog at work sequence id: 4100 PG "
        "status: last enqueued work: 4100, last completed work: 4099\n"
    )


def test_a_silent_rank_is_known_by_its_undated_lines(tmp_path: Path) -> None:
    for rank in range(SIZE):
        text = init(rank) + ("" if rank == 6 else timeout(rank))
        (tmp_path / f"rank{rank}.log").write_text(text)
    found = triage(tmp_path, load(), NOW)
    assert found.commands == []
    (verdict,) = found.verdicts
    assert (verdict.domain.host, verdict.domain.pci, verdict.domain.rank) == (
        "n1",
        "0000:3a:00",
        6,
    )
    assert len(verdict.victims) == SIZE - 1


def test_a_kernel_log_beside_it_makes_it_sure(tmp_path: Path) -> None:
    for rank in range(SIZE):
        text = init(rank) + ("" if rank == 6 else timeout(rank))
        (tmp_path / f"rank{rank}.log").write_text(text)
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1" / "dmesg.txt").write_text(
        "[Thu Sep 10 09:30:01 2026] NVRM: Xid (PCI:0000:3a:00): 79, GPU has fallen off the bus.\n"
    )
    found = triage(tmp_path, load(), NOW)
    (verdict,) = (one for one in found.verdicts if one.status is Status.LOCALIZED)
    assert (verdict.cause, verdict.domain.kind) == (Cause.GPU_LOST, DomainKind.GPU)
    assert (verdict.domain.host, verdict.domain.pci) == ("n1", "0000:3a:00")
    (command,) = found.commands
    assert command.dry_run
    assert command.domain_id == "gpu:n1/0000:3a:00"
