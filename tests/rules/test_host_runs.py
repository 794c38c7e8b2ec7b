"""What a job says of a node or of itself, run after run: each failure has its own incident."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from collectors.nccl import parse_stream
from evidence.decisions import Cause, Domain, DomainKind, Says, Status, Verdict
from ringfence.drive import Driver

from .conftest import HOST

NODE = Domain(kind=DomainKind.NODE, host=HOST)
JOB = Domain(kind=DomainKind.JOB, job="train-7")


def died(records: Any, seconds: float, **fields: Any) -> Any:
    plain: dict[str, Any] = {
        "says": Says.BLIND,
        "kind": "process-death",
        "status": Status.INSUFFICIENT,
        "domain": NODE,
        "reason": "a process ended by SIGKILL",
    }
    return records.suspicion(seconds, **(plain | fields))


@pytest.mark.parametrize("domain", [NODE, JOB])
@pytest.mark.parametrize("again", [{"run": 1}, {"attempt": 1}])
def test_the_same_answer_about_another_run_is_another_incident(
    node: Any, records: Any, domain: Domain, again: dict[str, int]
) -> None:
    node.take(died(records, 1, domain=domain))
    node.run_on()
    node.take(died(records, 40, domain=domain, **again))
    node.run_on()
    assert [verdict.revision for verdict in node.verdicts] == [1, 1]
    assert len({verdict.incident for verdict in node.verdicts}) == 2


def test_the_same_answer_about_the_same_run_stays_one_incident(node: Any, records: Any) -> None:
    for seconds in (1, 40, 4000):
        node.take(died(records, seconds, run=2))
        node.run_on()
    assert len({verdict.incident for verdict in node.verdicts}) == 1


def test_a_later_answer_about_a_run_revises_the_verdict_of_that_run(
    node: Any, records: Any
) -> None:
    for run, seconds in ((0, 1), (1, 40)):
        node.take(died(records, seconds, run=run))
        node.run_on()
    late = died(records, 50, run=0, says=Says.CLEARS, kind="host-out-of-memory")
    node.take(late)
    node.run_on()
    first, second, third = node.verdicts
    assert third.incident in (first.incident, second.incident)
    assert third.incident == first.incident


def test_a_card_that_is_suspected_stays_one_incident_whichever_run_accuses_it(
    node: Any, records: Any
) -> None:
    for run, seconds in ((0, 1), (1, 40)):
        node.take(records.suspicion(seconds, 0, run=run))
        node.run_on()
    assert len({verdict.incident for verdict in node.verdicts}) == 1


# --- Whole logs of one job, as real torchrun (torch 1.13) prints them: no time, no attempt. -------

AGENT = "torch.distributed.elastic.agent.server.api"
WORKERS = "torch.distributed.elastic.multiprocessing.api"
REQUEUED = f"""\
WARNING:{AGENT}:Received 15 death signal, shutting down workers
WARNING:{WORKERS}:Sending process 40799 closing signal SIGTERM
WARNING:{WORKERS}:Sending process 40800 closing signal SIGTERM
torch.distributed.elastic.multiprocessing.api.SignalException: Process 40791 got signal: 15
"""
KILLED = f"""\
RuntimeError: [./gloo/transport/tcp/pair.cc:598] Connection closed by peer [127.0.0.1]:41099
WARNING:{WORKERS}:Sending process {{other}} closing signal SIGTERM
ERROR:{WORKERS}:failed (exitcode: -9) local_rank: 0 (pid: {{pid}}) of binary: /usr/bin/python3.11
"""
BEGIN = datetime(2027, 8, 3, 9, 0, tzinfo=UTC)


def verdicts(rules: Any, parts: list[tuple[float, str, str]]) -> list[Verdict]:
    driver = Driver(rules)
    for seconds, host, text in parts:
        now = BEGIN + timedelta(seconds=seconds)
        for record in parse_stream(
            text.encode().splitlines(keepends=True), job="31", host=host, now=now,
            file=f"/log/{host}/31.log",
        ):  # fmt: skip
            driver.add("nccl", "31", record, now)
    return driver.run().verdicts


def killed(pid: int) -> str:
    return KILLED.format(pid=pid, other=pid + 1)


def test_a_rank_that_is_killed_after_its_job_was_requeued_has_a_verdict(rules: Any) -> None:
    said = verdicts(rules, [(0, "yard-a", REQUEUED), (27, "yard-b", killed(51237))])
    assert [(one.status, one.cause, one.domain.id) for one in said] == [
        (Status.SOFTWARE, Cause.SOFTWARE, "job:31"),
        (Status.INSUFFICIENT, Cause.UNKNOWN, "node:yard-b"),
    ]


def test_each_rank_killed_on_one_node_has_its_own_verdict(rules: Any) -> None:
    said = verdicts(rules, [(0, "yard-b", killed(51237)), (35, "yard-b", killed(51300))])
    assert [(one.status, one.revision, one.domain.id) for one in said] == [
        (Status.INSUFFICIENT, 1, "node:yard-b"),
        (Status.INSUFFICIENT, 1, "node:yard-b"),
    ]
    assert said[0].incident != said[1].incident


def test_two_requeues_without_a_fault_have_one_verdict(rules: Any) -> None:
    said = verdicts(rules, [(0, "yard-a", REQUEUED), (200, "yard-b", REQUEUED)])
    assert [one.status for one in said] == [Status.SOFTWARE]
