"""A requeued job begins again at once on other nodes, though Slurm would have it wait."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from evidence.decisions import AckStatus, Action, Cause, Command, Domain, DomainKind, Level
from schedulers.slurm import SlurmAdapter

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

NODE = Domain(kind=DomainKind.NODE, host="hgx-2")


def _evict() -> Command:
    return Command(
        id="c7", action=Action.ISOLATE, domain=NODE, domain_id=NODE.id, level=Level.EVICT,
        cause=Cause.NODE, reason="three boots in a day", incident="i7", generation=1,
        issued_at=datetime.now(UTC),
    )  # fmt: skip


def _submit(slurm: Any) -> str:
    """A job that takes two seconds to end, on the third node first, and then on any."""
    script = slurm.base / "slow-to-end.sh"
    script.write_text("#!/bin/bash\ntrap '' TERM\nfor i in $(seq 600); do sleep 0.1; done\n")
    said = slurm.call(
        "sbatch", "--parsable", "--requeue", "--exclude=hgx-0,hgx-1,hgx-3", "--output=/dev/null",
        str(script),
    )  # fmt: skip
    ident = str(said).strip()
    slurm.until(lambda: slurm.jobs().get(ident) == "RUNNING", "it runs")
    return ident


@pytest.mark.parametrize("hasten", [True, False])
def test_a_requeued_job_does_not_wait_for_its_credential(slurm: Any, hasten: bool) -> None:
    adapter = SlurmAdapter(replace(slurm.config, hasten_requeued=hasten))
    job = _submit(slurm)
    assert adapter.apply(_evict()).status is AckStatus.DONE
    adapter.observe()  # it has not ended yet: there is nothing to hasten
    slurm.until(lambda: slurm.jobs().get(job) == "PENDING", "it ended")
    slurm.call("scontrol", "update", f"jobid={job}", "ExcNodeList=hgx-2")
    adapter.observe()
    if hasten:
        slurm.until(lambda: slurm.jobs().get(job) == "RUNNING", "it runs again", 20)
    else:
        slurm.until(
            lambda: "BeginTime" in slurm.call("squeue", "-h", "-j", job, "-o", "%r"), "it waits"
        )
