"""A rank that was killed, and the kernel of its host that says whether memory ran out."""

from datetime import timedelta

import pytest

from evidence.decisions import Cause, DomainKind, Status
from evidence.records import KernelKind, KernelRecord, NcclKind, NcclRecord
from ringfence.drive import Driver, Outcome
from rules import tables
from rules.tables import Rules

from .job_lines import GIVE_UP, STALL, line, waits, world


@pytest.fixture(scope="module")
def rules() -> Rules:
    return tables.load()


def killed(pid: int = 5006, second: float = -1) -> KernelRecord:
    at = STALL + timedelta(seconds=second)
    text = f"Memory cgroup out of memory: Killed process {pid} (python3.11) total-vm:91240032kB"
    return KernelRecord(
        id=f"oom-{pid}", observed_at=at, at=at, raw=text, message=text, host="train02",
        kind=KernelKind.OOM, pid=pid, process="python3.11", seq=1,
    )  # fmt: skip


def ended(code: int = -9) -> NcclRecord:
    return line(
        NcclKind.WORKER_EXIT, STALL, phase="failed", local_rank=2, pid=5006, host="train02",
        exit_code=code,
    )  # fmt: skip


def judged(rules: Rules, lines: list[NcclRecord], kernel: list[KernelRecord]) -> Outcome:
    driver = Driver(rules)
    for record in [*world(8), *lines]:
        driver.add("nccl", record.job, record, record.at or GIVE_UP)
    for told in kernel:
        driver.add("kernel", "train02", told, told.observed_at)
    return driver.run()


@pytest.mark.parametrize("hung", [False, True])
def test_a_killed_rank_and_the_kernels_record_are_software_with_that_line(
    rules: Rules, hung: bool
) -> None:
    others = waits(r for r in range(8) if r != 6) if hung else []
    found = judged(rules, [ended(), *others], [killed()])
    (verdict,) = found.latest()
    assert (verdict.status, verdict.cause) == (Status.SOFTWARE, Cause.SOFTWARE)
    assert "Killed process 5006" in verdict.reason
    assert "oom-5006" in {ref.id for ref in verdict.evidence}
    assert verdict.job == "4711.0"
    assert found.commands == []


def test_a_killed_rank_alone_names_no_part(rules: Rules) -> None:
    found = judged(rules, [ended()], [])
    (verdict,) = found.latest()
    assert verdict.status is Status.INSUFFICIENT
    assert verdict.domain.host == "train02"
    assert found.commands == []


def test_a_crash_of_a_rank_is_its_own_process_and_isolates_nothing(rules: Rules) -> None:
    found = judged(rules, [ended(-11)], [])
    (verdict,) = found.latest()
    assert (verdict.status, verdict.domain.kind) == (Status.SOFTWARE, DomainKind.JOB)
    assert found.commands == []
