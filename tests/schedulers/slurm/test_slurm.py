"""The Slurm adapter against a real slurmctld: isolate, release, twice, with others in the way."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from evidence.decisions import AckStatus, Action, Cause, Command, Domain, DomainKind, Level
from evidence.records import ContextKind
from schedulers.adapter import SchedulerError
from schedulers.slurm import SlurmAdapter, SlurmConfig

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
NODES = ("hgx-0", "hgx-1", "hgx-2", "hgx-3")
NODE = NODES[0]
CARD = Domain(kind=DomainKind.GPU, host=NODE, pci="0000:9a:00")
OTHER_CARD = Domain(kind=DomainKind.GPU, host=NODE, pci="0000:5d:00")
REASON = f"ringfence: c1 gpu:{NODE}/0000:9a:00 gpu-memory"


def command(ident: str = "c1", **fields: Any) -> Command:
    domain = fields.pop("domain", CARD)
    plain: dict[str, Any] = {
        "id": ident,
        "action": Action.ISOLATE,
        "domain": domain,
        "domain_id": domain.id,
        "level": Level.CORDON,
        "cause": Cause.GPU_MEMORY,
        "reason": "row remap failed",
        "incident": "i1",
        "generation": 1,
        "issued_at": datetime.now(UTC),
    }
    return Command(**plain | fields)


def release(ident: str = "c2", **fields: Any) -> Command:
    return command(ident, action=Action.RELEASE, **fields)


@pytest.fixture
def adapter(slurm: Any) -> SlurmAdapter:
    return SlurmAdapter(slurm.config)


def test_isolated_and_released_each_twice(slurm: Any, adapter: SlurmAdapter) -> None:
    for _ in range(2):
        assert adapter.apply(command()).status is AckStatus.DONE
        assert slurm.node(NODE) == f"IDLE+DRAIN {REASON}"
    for _ in range(2):
        assert adapter.apply(release()).status is AckStatus.DONE
        assert slurm.node(NODE) == "IDLE"


def test_a_node_returns_when_its_last_part_does(slurm: Any, adapter: SlurmAdapter) -> None:
    adapter.apply(command())
    adapter.apply(command("c3", domain=OTHER_CARD))
    assert slurm.node(NODE) == f"IDLE+DRAIN {REASON}; c3 gpu:{NODE}/0000:5d:00 gpu-memory"
    kept = adapter.apply(release())
    assert kept.detail == f"{NODE} stays drained for gpu:{NODE}/0000:5d:00"
    assert slurm.node(NODE) == f"IDLE+DRAIN ringfence: c3 gpu:{NODE}/0000:5d:00 gpu-memory"
    adapter.apply(release("c4", domain=OTHER_CARD))
    assert slurm.node(NODE) == "IDLE"


# --- Others -------------------------------------------------------------------------------------


def test_a_drain_by_somebody_else_keeps_its_reason_and_is_never_resumed(
    slurm: Any, adapter: SlurmAdapter
) -> None:
    slurm.call("scontrol", "update", f"nodename={NODE}", "state=drain", "reason=NHC: bad fan")
    isolated = adapter.apply(command())
    assert isolated.status is AckStatus.DONE
    assert isolated.detail == f"{NODE} is out already, by root (NHC: bad fan): left as it is"
    released = adapter.apply(release())
    assert released.detail == f"{NODE} is out by root (NHC: bad fan): left as it is"
    assert slurm.node(NODE) == "IDLE+DRAIN NHC: bad fan"


def test_a_person_who_takes_our_drain_over_keeps_it(slurm: Any, adapter: SlurmAdapter) -> None:
    adapter.apply(command())
    slurm.call("scontrol", "update", f"nodename={NODE}", "state=drain", "reason=RMA 8841")
    adapter.apply(release())
    assert slurm.node(NODE) == "IDLE+DRAIN RMA 8841"


def test_a_reason_that_slurm_left_on_an_idle_node_drains_nothing(
    slurm: Any, adapter: SlurmAdapter
) -> None:
    adapter.apply(command())
    slurm.call("scontrol", "update", f"nodename={NODE}", "state=resume")
    view = adapter.observe()
    assert [one for one in view.standing if one.domain.host == NODE] == []
    assert adapter.apply(release()).detail == f"{NODE} is not out for {CARD.id}"


def test_hostile_names_stay_one_entry_of_the_reason(slurm: Any, adapter: SlurmAdapter) -> None:
    domain = Domain(kind=DomainKind.GPU, host=NODE, pci='00; "x\n  State=IDLE')
    hostile = command("id; ringfence: c9 node:all", domain=domain)
    assert adapter.apply(hostile).status is AckStatus.DONE
    assert slurm.node(NODE).count(";") == 0
    assert adapter.apply(release(domain=domain)).status is AckStatus.DONE
    assert slurm.node(NODE) == "IDLE"


# --- Running jobs -------------------------------------------------------------------------------


def test_cordon_lets_jobs_run_on_and_starts_no_new_ones(slurm: Any, adapter: SlurmAdapter) -> None:
    running = slurm.job()
    adapter.apply(command())
    waiting = slurm.call(
        "sbatch", "--parsable", f"--nodelist={NODE}", "--output=/dev/null", "--wrap=sleep 9"
    ).strip()
    assert slurm.jobs() == {running: "RUNNING", waiting: "PENDING"}


def test_drain_gives_jobs_time_and_requeues_them_then(slurm: Any) -> None:
    now = [datetime.now(UTC)]
    adapter = SlurmAdapter(replace(slurm.config, drain_patience_s=60.0), clock=lambda: now[0])
    job, kept = slurm.job("--requeue"), slurm.job("--no-requeue")
    done = adapter.apply(command(level=Level.DRAIN))
    assert f"jobs {job}, {kept} have until" in done.detail or f"jobs {kept}, {job}" in done.detail
    adapter.observe()
    assert set(slurm.jobs().values()) == {"RUNNING"}
    now[0] += timedelta(seconds=61)
    adapter.observe()
    slurm.until(lambda: slurm.jobs().get(job) == "PENDING", "the job is requeued")
    assert slurm.jobs()[kept] == "RUNNING"


def test_drain_sends_the_signal_for_a_checkpoint(slurm: Any) -> None:
    adapter = SlurmAdapter(replace(slurm.config, checkpoint_signal="USR1"))
    ready, mark = slurm.base / "ready", slurm.base / "checkpoint"
    script = slurm.base / "trap.sh"
    script.write_text(
        f"#!/bin/bash\ntrap 'touch {mark}' USR1\ntouch {ready}\n"
        "for i in $(seq 600); do sleep 0.1; done\n"
    )
    job = slurm.call(
        "sbatch", "--parsable", f"--nodelist={NODE}", "--output=/dev/null", str(script)
    ).strip()
    slurm.until(ready.exists, f"job {job} waits for its signal")
    adapter.apply(command(level=Level.DRAIN))
    slurm.until(mark.exists, "the job had its signal")


def test_evict_requeues_at_once_and_cancels_what_cannot_be(
    slurm: Any, adapter: SlurmAdapter
) -> None:
    job, single = slurm.job("--requeue"), slurm.job("--no-requeue")
    done = adapter.apply(command(level=Level.EVICT))
    assert f"job {job} requeued" in done.detail
    assert f"job {single} cancelled" in done.detail
    slurm.until(lambda: slurm.jobs() == {job: "PENDING"}, "one is requeued, one is gone")


def test_a_job_with_a_supervisor_of_its_own_is_left_to_it(
    slurm: Any, adapter: SlurmAdapter
) -> None:
    job = slurm.job("--requeue", comment="ringfence:elastic")
    adapter.apply(command(level=Level.EVICT))
    assert slurm.jobs() == {job: "RUNNING"}


# --- Parts --------------------------------------------------------------------------------------


def test_a_rack_is_the_nodes_that_have_its_feature(slurm: Any, adapter: SlurmAdapter) -> None:
    rack = Domain(kind=DomainKind.RACK, rack="r1")
    assert adapter.nodes(rack) == 2
    adapter.apply(command(domain=rack))
    states = [slurm.node(name).split()[0] for name in NODES]
    assert states == ["IDLE", "IDLE", "IDLE+DRAIN", "IDLE+DRAIN"]
    adapter.apply(release(domain=rack))
    assert [slurm.node(name) for name in NODES] == ["IDLE"] * 4


def test_what_slurm_does_not_know_is_one_sentence(adapter: SlurmAdapter) -> None:
    missing = adapter.apply(command(domain=Domain(kind=DomainKind.NODE, host="hgx-77")))
    assert (missing.status, missing.retry) == (AckStatus.FAILED, False)
    assert missing.detail == "Slurm knows no node of node hgx-77"
    link = Domain(kind=DomainKind.LINK, switch="0x248a070300f1a2c0", port=7)
    assert adapter.apply(command(domain=link)).status is AckStatus.SKIPPED


# --- The controller away ------------------------------------------------------------------------


def test_a_controller_that_is_away_is_tried_again_and_loses_nothing(
    slurm: Any, adapter: SlurmAdapter
) -> None:
    adapter.apply(command("c3", domain=OTHER_CARD))
    slurm.stop_controller()
    quick = SlurmAdapter(replace(slurm.config, timeout_s=1.0))
    failed = quick.apply(command())
    assert (failed.status, failed.retry) == (AckStatus.FAILED, True)
    with pytest.raises(SchedulerError, match="does not answer"):
        quick.observe()
    slurm.start_controller()
    assert adapter.apply(command()).status is AckStatus.DONE
    assert "c3" in slurm.node(NODE)
    assert "c1" in slurm.node(NODE)


def test_a_missing_program_is_not_tried_again(tmp_path: Path) -> None:
    failed = SlurmAdapter(SlurmConfig(programs=tmp_path)).apply(command())
    assert (failed.status, failed.retry) == (AckStatus.FAILED, False)
    assert "cannot be run: No such file" in failed.detail


# --- The way back -------------------------------------------------------------------------------


def test_what_stands_out_of_service_is_told_with_whose_it_is(
    slurm: Any, adapter: SlurmAdapter
) -> None:
    adapter.apply(command())
    adapter.apply(command("c3", domain=OTHER_CARD))
    slurm.call("scontrol", "update", f"nodename={NODES[2]}", "state=drain", "reason=k8s: upgrade")
    view = adapter.observe()
    own = [one for one in view.standing if one.domain.host == NODE]
    assert [(one.command, one.domain) for one in own] == [("c1", CARD), ("c3", OTHER_CARD)]
    (foreign,) = (one for one in view.standing if one.domain.host == NODES[2])
    assert (foreign.command, foreign.by, foreign.reason) == (None, "root", "k8s: upgrade")
    assert foreign.since is not None
    assert abs(foreign.since - datetime.now(UTC)) < timedelta(seconds=30)
    (drain,) = (one for one in view.context if one.kind is ContextKind.DRAIN)
    assert (drain.host, drain.by, drain.reason) == (NODES[2], "root", "k8s: upgrade")


def test_allocations_are_context_and_the_same_view_gives_the_same_records(
    slurm: Any, adapter: SlurmAdapter
) -> None:
    job = slurm.job("--nodes=2", f"--nodelist={NODES[0]},{NODES[1]}", node=NODES[0])
    first, again = adapter.observe(), adapter.observe()
    allocated = [one for one in first.context if one.kind is ContextKind.ALLOCATION]
    assert [(one.host, one.job, one.attempt, one.owner) for one in allocated] == [
        (NODES[0], job, 0, "root"),
        (NODES[1], job, 0, "root"),
    ]
    assert allocated[0].hosts == (NODES[0], NODES[1])
    assert [one.id for one in first.context] == [one.id for one in again.context]


def test_many_commands_in_a_row_are_all_carried_out(
    many_nodes: Any, record_property: Callable[[str, object], None]
) -> None:
    adapter = SlurmAdapter(many_nodes.config)
    hosts = [f"far-{number}" for number in range(1, 751)]
    commands = [
        command(f"m{host}", domain=Domain(kind=DomainKind.NODE, host=host), cause=Cause.NODE)
        for host in hosts
    ]
    began = datetime.now(UTC)
    outcomes = adapter.apply_all(commands)
    record_property("seconds for 750 drains", (datetime.now(UTC) - began).total_seconds())
    assert {one.status for one in outcomes} == {AckStatus.DONE}
    standing = {one.domain.host: one.command for one in adapter.observe().standing}
    assert standing == {host: f"m{host}" for host in hosts}
    releases = [
        release(f"r{host}", domain=Domain(kind=DomainKind.NODE, host=host)) for host in hosts
    ]
    assert {one.status for one in adapter.apply_all(releases)} == {AckStatus.DONE}
    assert adapter.observe().standing == ()
