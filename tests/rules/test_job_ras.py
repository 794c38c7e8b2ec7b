"""NCCL's RAS: who is dead or silent is missing; counts of operations prove nothing."""

import pytest

from evidence.records import NcclKind, NcclRecord

from .job_lines import GIVE_UP, STALL, T0, gpu, line, run, told, waits, world


def ras(phase: str, **fields: object) -> NcclRecord:
    return line(NcclKind.RAS, GIVE_UP, source="ras", host="train01", phase=phase, **fields)


@pytest.mark.parametrize(
    "phase", ["job", "summary", "timeout", "mismatch", "incomplete", "error", "dead"]
)
def test_what_ras_reports_opens_no_judgement(phase: str) -> None:
    assert run([*world(8), ras(phase, hosts=("train02",), ranks=(6,))]) == []


def test_a_process_that_ras_calls_dead_is_missing_and_accuses_no_card() -> None:
    dead = ras("dead", hosts=("train02",), pid=5006, message="process 5006 on node train02")
    symptom = line(NcclKind.REMOTE_ERROR, GIVE_UP, rank=1, host="train01")
    said = run([*world(8), dead, symptom])
    assert told(said) == [("insufficient", "blind", "process-missing", "job:4711.0")]
    assert (said[0].domain.host, said[0].weight) == ("train02", 0.3)
    assert said[0].host == "train02"


def test_a_node_that_ras_names_by_its_address_is_known_by_what_it_printed() -> None:
    known = line(NcclKind.SETUP, T0, host="train02", address="10.9.0.2", phase="bootstrap")
    dead = ras("incomplete", hosts=("10.9.0.2",))
    symptom = line(NcclKind.REMOTE_ERROR, GIVE_UP, rank=1, host="train01")
    (said,) = run([*world(8), known, dead, symptom])
    assert (said.kind, said.domain.host, said.weight) == ("process-missing", "train02", 0.15)


def test_ranks_whose_counts_differ_are_no_stragglers() -> None:
    """The smaller set may as well be ahead."""
    counts = ras(
        "mismatch", comm="0x5ae7", comm_size=8, ranks=(2, 3), launched=((640, 6), (641, 2))
    )
    said = run([*world(8), counts, *waits(range(8))])
    assert told(said) == [("insufficient", "blind", "all-joined", "job:4711.0")]


def test_all_well_in_the_eyes_of_ras_does_not_clear_the_missing_rank() -> None:
    well = [ras("job", comm_size=8), ras("summary", state="running", comm_size=8)]
    said = run([*world(8), *well, *waits(r for r in range(8) if r != 6)])
    assert said[0].domain == gpu(6)


def test_the_hosts_a_report_lists_are_counted_beyond_a_few() -> None:
    dead = ras("dead", hosts=tuple(f"train{n:02d}" for n in range(20)))
    (said,) = run([dead, line(NcclKind.REMOTE_ERROR, STALL, rank=1, host="train01")])
    assert "and 12 more" in said.reason
    assert said.domain.host is None
