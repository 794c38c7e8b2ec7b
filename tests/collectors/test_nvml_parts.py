"""MIG instances and processes of a GPU, and whose job they are."""

import os
import time
from pathlib import Path
from typing import Any

from gpu_ticks import tick_where, ticks

from collectors.gpu.nvml_jobs import Jobs, Owner
from evidence.records import GpuProcess, MigInstance

POD = "3f1c9b7e-20d4-4c1a-8a55-90ab12cd34ef"
MIG_UUID = "MIG-0d1e2f30-4152-5637-8495-a6b7c8d9e0f1"


def process(
    proc: Path,
    pid: int,
    *,
    name: str = "python3.11",
    cgroup: str = "0::/user.slice/session-4.scope\n",
    environ: bytes = b"",
    began: int = 880_114,
) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    fields = ["S", *("0" for _ in range(18)), str(began), "0"]
    (folder / "stat").write_text(f"{pid} (a ) b) {' '.join(fields)}\n")
    (folder / "comm").write_text(f"{name}\n")
    (folder / "cgroup").write_text(cgroup)
    (folder / "environ").write_bytes(environ)


def test_processes_have_their_memory_their_instance_and_their_job(
    node: Any, collect: Any, tmp_path: Path
) -> None:
    proc = tmp_path / "proc"
    process(proc, 70411, cgroup="0::/system.slice/slurmstepd.scope/job_90177/step_0/user/task_3\n")
    process(proc, 70502, name="trainer", environ=b"HOME=/h\0SLURM_JOB_ID=90178\0")
    node.change({"gpu.0.processes": "70411 61440 - -; 70502 512 3 0; 70999 16 - -"})
    collector = collect(proc=proc)
    gpu = next(ticks(collector)).gpus[0]
    assert gpu.processes == (
        GpuProcess(pid=70411, name="python3.11", job="90177", memory_used_mib=61440),
        GpuProcess(pid=70502, name="trainer", job="90178", memory_used_mib=512, gi=3, ci=0),
        GpuProcess(pid=70999, memory_used_mib=16),
    )


def test_an_older_driver_lists_processes_by_the_older_call(node: Any, collect: Any) -> None:
    node.change({"gpu.0.processes": "!13", "gpu.0.processes_v2": "99999999 12 - -"})
    gpu = next(ticks(collect())).gpus[0]
    assert gpu.processes == (GpuProcess(pid=99999999, memory_used_mib=12),)


def test_mig_instances_have_their_names_and_stay_in_the_latest_tick(
    node: Any, collect: Any
) -> None:
    node.change(
        {
            "gpu.1.mig_mode": 1,
            "gpu.1.mig_max": 7,
            "gpu.1.mig.0": f"9 0 {MIG_UUID} 1g.10gb",
            "gpu.1.mig.3": f"2 1 {MIG_UUID[:-1]}2 3g.40gb",
            "gpu.1.remapped": "!3",
        }
    )
    expected = (
        MigInstance(gi=9, ci=0, uuid=MIG_UUID, profile="1g.10gb"),
        MigInstance(gi=2, ci=1, uuid=f"{MIG_UUID[:-1]}2", profile="3g.40gb"),
    )
    collector = collect(slow_ticks=1_000_000)
    first = next(ticks(collector))
    assert (first.gpus[1].mig_enabled, first.gpus[1].mig) == (True, expected)
    assert first.gpus[1].unread["remap_failure"] == "Not Supported (3)"
    second = next(ticks(collector))
    assert (second.gpus[1].mig_enabled, second.gpus[1].mig) == (None, ())
    assert collector.latest is not None
    assert [gpu.mig for gpu in collector.latest.gpus] == [(), expected]
    # Taking them away is seen at the next slow reading, here after a change of health.
    node.change({"gpu.1.mig_mode": 0, "gpu.1.field.230": 1})
    tick_where(collector, lambda tick: tick.gpus[1].recovery_action == 1)
    assert [gpu.mig for gpu in collector.latest.gpus] == [(), ()]


def test_a_job_is_found_in_the_cgroup_of_both_kinds_of_slurm(tmp_path: Path) -> None:
    process(tmp_path, 11, cgroup="8:memory:/slurm/uid_2004/job_552/step_batch\n1:name=systemd:/\n")
    process(tmp_path, 12, cgroup="0::/system.slice/slurmstepd.scope/job_553/step_1/user/task_0\n")
    process(tmp_path, 13, cgroup="0::/system.slice/job_9.service\n")
    jobs = Jobs(tmp_path)
    assert [jobs.of(pid).job for pid in (11, 12, 13)] == ["552", "553", None]


def test_a_pod_is_the_job_where_nothing_closer_is_named(tmp_path: Path) -> None:
    systemd = f"/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-6a1f.scope"
    process(tmp_path, 21, cgroup=f"0::{systemd}\n")
    process(tmp_path, 22, cgroup=f"11:devices:/kubepods/burstable/pod{POD}/6a1f\n")
    process(tmp_path, 23, cgroup=f"0::{systemd}\n", environ=b"TORCHELASTIC_RUN_ID=llm-7b-r3\0")
    process(tmp_path, 24, cgroup=f"0::{systemd}\n", environ=b"TORCHELASTIC_RUN_ID=none\0")
    jobs = Jobs(tmp_path)
    assert [jobs.of(pid).job for pid in (21, 22, 23, 24)] == [
        f"pod/{POD}",
        f"pod/{POD}",
        "llm-7b-r3",
        f"pod/{POD}",
    ]


def test_a_number_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    process(tmp_path, 31, environ=b"SLURM_JOB_ID=1\0", began=100)
    assert jobs.of(31) == Owner("python3.11", "1")
    process(tmp_path, 31, environ=b"SLURM_JOB_ID=2\0", began=100)
    assert jobs.of(31) == Owner("python3.11", "1")
    process(tmp_path, 31, environ=b"SLURM_JOB_ID=2\0", began=200)
    assert jobs.of(31) == Owner("python3.11", "2")


def test_a_process_that_is_gone_or_closed_has_no_job(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    assert jobs.of(41) == Owner()
    process(tmp_path, 42, name="caf\udce9".encode("utf-8", "surrogateescape").decode("latin-1"))
    (tmp_path / "42" / "environ").unlink()
    (tmp_path / "42" / "environ").mkdir()
    assert jobs.of(42).job is None


def test_an_environment_that_cannot_be_read_holds_nobody_up(tmp_path: Path) -> None:
    process(tmp_path, 51)
    (tmp_path / "51" / "environ").unlink()
    # A pipe that nobody writes to: opening it waits for ever, as a stuck process's memory does.
    os.mkfifo(tmp_path / "51" / "environ")
    process(tmp_path, 52, cgroup="0::/slurm/uid_1/job_7/step_0\n")
    process(tmp_path, 53, environ=b"SLURM_JOB_ID=8\0")
    jobs = Jobs(tmp_path, wait_s=0.05)
    assert [jobs.of(pid).job for pid in (51, 52, 53)] == [None, "7", None]
    # Somebody writes: the thread is free again.
    with (tmp_path / "51" / "environ").open("wb") as pipe:
        pipe.write(b"SLURM_JOB_ID=6\0")
    while (found := jobs.of(53).job) is None:
        time.sleep(0.01)
    assert found == "8"
