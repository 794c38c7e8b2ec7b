"""What people and the controller itself do to nodes, between and beside our commands."""

import shutil
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evidence.decisions import AckStatus, Action, Cause, Command, Domain, DomainKind, Level
from schedulers.slurm import SlurmAdapter
from schedulers.slurm.nodes import Node

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
HOST = "hgx-1"
CARD = Domain(kind=DomainKind.GPU, host=HOST, pci="0000:9a:00")
REASON = f"ringfence: c1 gpu:{HOST}/0000:9a:00 gpu-memory"


def command(ident: str, action: Action, domain: Domain = CARD) -> Command:
    return Command(
        id=ident,
        action=action,
        domain=domain,
        domain_id=domain.id,
        level=Level.CORDON,
        cause=Cause.GPU_MEMORY,
        reason="row remap failed",
        incident="i1",
        generation=1,
        issued_at=datetime.now(UTC),
    )


def isolate(domain: Domain = CARD) -> Command:
    return command("c1", Action.ISOLATE, domain)


def release(domain: Domain = CARD) -> Command:
    return command("c2", Action.RELEASE, domain)


@pytest.fixture
def adapter(slurm: Any) -> SlurmAdapter:
    return SlurmAdapter(slurm.config)


def say(slurm: Any, **fields: str) -> None:
    """A person's scontrol update."""
    words = (f"{name}={value}" for name, value in fields.items())
    slurm.call("scontrol", "update", f"nodename={HOST}", *words)


@pytest.mark.parametrize("note", ["; DO NOT RESUME (kim)", " - kim: RMA 8841", " kim", ";"])
def test_a_reason_of_ours_to_which_a_person_added_a_word_is_theirs(
    slurm: Any, adapter: SlurmAdapter, note: str
) -> None:
    adapter.apply(isolate())
    say(slurm, reason=REASON + note)
    released = adapter.apply(release())
    assert released.detail == f"{HOST} is out by root ({REASON + note}): left as it is"
    assert slurm.node(HOST) == f"IDLE+DRAIN {REASON}{note}"
    told = [one.command for one in adapter.observe().standing if one.domain.host == HOST]
    assert told == [None]


def test_a_persons_reason_that_begins_as_slurms_own_do_is_theirs(
    slurm: Any, adapter: SlurmAdapter
) -> None:
    say(slurm, state="drain", reason="Low airflow, kim looks at it")
    adapter.apply(isolate())
    adapter.apply(release())
    assert slurm.node(HOST) == "IDLE+DRAIN Low airflow, kim looks at it"


@pytest.mark.parametrize(
    ("reason", "foreign"),
    [
        ("Not responding", False),
        ("Low RealMemory", False),
        ("Low RealMemory (reported:515000 < 100.00% of configured:1031000)", False),
        ("Low socket*core*thread count, Low CPUs", False),
        ("gres/gpu count reported lower than configured (7 < 8)", False),
        ("Node unexpectedly rebooted", False),
        ("Reboot ASAP : reboot issued", False),
        ("reboot complete", False),
        ("Not responding to IPMI, kim", True),
        ("Low memory bandwidth seen", True),
        ("reboot into the new BIOS: kim", True),
        ("gres/gpu: card 3 is being changed, lee", True),
        ("Kill task failed", True),
        ("ringfence: hands off", True),
    ],
)
def test_whose_a_drained_node_is_follows_from_its_whole_reason(
    reason: str, *, foreign: bool
) -> None:
    assert Node("n1", ("IDLE", "DRAIN"), reason=reason).foreign is foreign


def test_a_reboot_that_slurm_adds_to_our_reason_leaves_it_ours() -> None:
    rebooted = Node("n1", ("IDLE", "DRAIN"), reason=f"{REASON} : reboot issued : reboot complete")
    assert [one.command for one in rebooted.marks] == ["c1"]
    assert not rebooted.foreign


@pytest.mark.parametrize(
    "host", ["hgx-[0-3]", "hgx-0,hgx-1", "ALL", "*", "", "-a", "HGX-1", "a\0b"]
)
def test_a_host_that_is_a_list_or_no_name_drains_nothing(
    slurm: Any, adapter: SlurmAdapter, host: str
) -> None:
    domain = Domain(kind=DomainKind.NODE, host=host)
    assert adapter.apply(isolate(domain)).status is AckStatus.FAILED
    assert [slurm.node(f"hgx-{number}") for number in range(4)] == ["IDLE"] * 4


def test_a_second_evict_does_not_cancel_the_job_that_the_first_requeued(
    slurm: Any, adapter: SlurmAdapter
) -> None:
    script = slurm.base / "stubborn.sh"
    script.write_text("#!/bin/bash\ntrap '' TERM\nwhile true; do sleep 0.1; done\n")
    job = slurm.call(
        "sbatch", "--parsable", "--requeue", f"--nodelist={HOST}", "--output=/dev/null", str(script)
    ).strip()
    slurm.until(lambda: slurm.jobs().get(job) == "RUNNING", f"job {job} runs")
    first = msgspec.structs.replace(isolate(), level=Level.EVICT)
    assert f"job {job} requeued" in adapter.apply(first).detail
    slurm.until(lambda: slurm.jobs().get(job) == "COMPLETING", f"job {job} is ending")
    other = Domain(kind=DomainKind.GPU, host=HOST, pci="0000:5d:00")
    second = msgspec.structs.replace(first, id="c3", domain=other, domain_id=other.id)
    assert f"job {job} is ending already" in SlurmAdapter(slurm.config).apply(second).detail
    slurm.until(lambda: slurm.jobs().get(job) == "PENDING", f"job {job} waits again")


def test_a_job_is_not_cancelled_because_the_controller_was_away_for_its_requeue(
    slurm: Any, tmp_path: Path
) -> None:
    for name in ("scontrol", "squeue", "scancel"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    (tmp_path / "scontrol").unlink()
    (tmp_path / "scontrol").write_text(
        '#!/bin/sh\nif [ "$1" = requeue ]; then\n'
        "  echo 'slurm_requeue error: Unable to contact slurm controller' >&2; exit 1\nfi\n"
        f'exec {shutil.which("scontrol")} "$@"\n'
    )
    (tmp_path / "scontrol").chmod(0o755)
    job = slurm.job("--requeue", node=HOST)
    evict = msgspec.structs.replace(isolate(), level=Level.EVICT)
    failed = SlurmAdapter(replace(slurm.config, programs=tmp_path)).apply(evict)
    assert (failed.status, failed.retry) == (AckStatus.FAILED, True)
    assert slurm.jobs() == {job: "RUNNING"}
    assert f"job {job} requeued" in SlurmAdapter(slurm.config).apply(evict).detail


def test_a_node_that_is_called_otherwise_by_now_is_found_by_its_mark(
    slurm: Any, adapter: SlurmAdapter
) -> None:
    adapter.apply(isolate())
    renamed = SlurmAdapter(replace(slurm.config, node_name="old-{host}"))
    assert renamed.apply(release()).detail == f"{HOST} resumed"
    assert slurm.node(HOST) == "IDLE"


def test_a_release_of_a_node_that_slurm_has_no_more_is_done(adapter: SlurmAdapter) -> None:
    gone = adapter.apply(release(Domain(kind=DomainKind.NODE, host="hgx-77")))
    assert gone.status is AckStatus.DONE
    assert gone.detail == "Slurm has no node of node hgx-77, and none is out for it"


def test_a_node_that_left_its_rack_meanwhile_returns_with_it(
    slurm: Any, adapter: SlurmAdapter
) -> None:
    rack = Domain(kind=DomainKind.RACK, rack="r0")
    adapter.apply(isolate(rack))
    assert "DRAIN" in slurm.node(HOST)
    say(slurm, activefeatures="h100", availablefeatures="h100")
    try:
        adapter.apply(release(rack))
        assert [slurm.node(name) for name in ("hgx-0", HOST)] == ["IDLE", "IDLE"]
    finally:
        say(slurm, activefeatures="h100,r0", availablefeatures="h100,r0")


def test_a_controller_that_starts_anew_and_a_node_that_is_gone_are_another_epoch(
    slurm: Any, adapter: SlurmAdapter
) -> None:
    gone = Domain(kind=DomainKind.NODE, host="hgx-77")
    view = adapter.observe()
    before = view.epoch(CARD)
    assert adapter.observe().epoch(CARD) == before
    assert view.epoch(gone) != before
    slurm.stop_controller()
    time.sleep(1.0)  # Slurm tells whole seconds
    slurm.start_controller()
    assert adapter.observe().epoch(CARD) != before
