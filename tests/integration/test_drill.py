"""Drills in a pool of real parts: a worker, a sink, agents, Slurm, and a job of real torchrun."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from evidence.records import ContextKind, DrillRecord
from evidence.transport import Kafka
from ringfence.drills.reading import Reader
from ringfence.drills.scene import TOPICS_READ, Scene
from ringfence.parts import Parts
from ringfence.supervise import Supervisor

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]
TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
POOL = "drill-yard"
HOSTS = ("hgx-0", "hgx-1", "hgx-2")
TORCHRUN, PYTHON = Path("/usr/bin/torchrun"), Path("/usr/bin/python3")

SETTINGS = """\
[kafka]
bootstrap = "{bootstrap}"
prefix = "{prefix}"
partitions = {partitions}

[worker]
policy = "{folder}/policy.toml"
thresholds = "{folder}/thresholds.toml"
metrics_listen = ""
tick_s = 0.5

[sink]
metrics_listen = ""
flush_s = 0.5
bulk_flush_s = 1.0
tick_flush_s = 3.0

[scheduler]
observe_s = 1

[slurm]
conf = "{slurm}"

[drill]
pools = ["{pool}"]
most_an_hour = 20
"""
POLICY = """\
isolation.mode = { value = "enforce", why = "It is acted upon.", source = "test" }
isolation.settle_s = { value = 1.0, why = "Few hosts.", source = "test" }
job.settle_across_hosts_s = { value = 2.0, why = "Few hosts.", source = "test" }
pools.drill-yard.at_most = { value = "evict", why = "The job can be moved.", source = "test" }
pools.drill-yard.at_least = { value = "evict", why = "The job can be moved.", source = "test" }
budget.node_absolute = { value = 5, why = "Drills one after another.", source = "test" }
widening.silent_wait_s = { value = 3.0, why = "Nobody waits minutes here.", source = "test" }
"""
THRESHOLDS = """\
silent_after_s = { value = 6.0, reason = "Nobody waits minutes here.", source = "test" }
silent_again_s = { value = 2.0, reason = "Nobody waits minutes here.", source = "test" }
seen_every_s = { value = 1.0, reason = "Nobody waits minutes here.", source = "test" }
"""
JOB = """\
#!/bin/bash
mkdir -p {folder}/$SLURMD_NODENAME
export FOLDER={folder} NODE=$SLURMD_NODENAME OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore
export GLOO_SOCKET_IFNAME=lo
exec {torchrun} --nnodes=1 --nproc_per_node=2 --max_restarts=5 --monitor_interval=0.2 \\
    --redirects=1 --tee=1 --log_dir={folder}/torch --rdzv_backend=c10d \\
    --rdzv_endpoint=127.0.0.1:0 --rdzv_id=yard {folder}/train.py \\
    >> {folder}/$SLURMD_NODENAME/$SLURM_JOB_ID.log 2>&1
"""
OUT = """["sh", "-c", "s=$(SLURM_CONF={slurm} scontrol show node \\"$1\\") || exit 2; \
case $s in *DRAIN*) exit 0;; esac; exit 1", "sh", "{{host}}"]"""
LOSE_GPU = """\
name = "lose-gpu"
within_s = 90
[inject]
action = "lose-gpu"
slot = 1
nvml_control = "{folder}/{{host}}.nvml"
[expect]
status = ["localized"]
cause = ["gpu-lost"]
domain = ["gpu"]
command = "isolate"
[recovery]
out = {out}
training = [
    "sh", "-c", "tail -n 1 \\"$1\\" | grep step | grep -qv \\"$2\\"",
    "sh", "{folder}/steps.jsonl", "{{host}}",
]
settle_s = 2
"""
KILL_RANK = """\
name = "kill-rank"
within_s = 60
[inject]
action = "kill-rank"
pattern = "{folder}/train.py"
[expect]
status = ["insufficient", "software"]
quiet_s = 4
[recovery]
training_file = "{folder}/steps.jsonl"
training_changes = 3
"""
STOP_AGENT = """\
name = "stop-agent"
within_s = 60
[inject]
action = "stop-agent"
pid_file = "{folder}/{{host}}.pid"
[expect]
status = ["insufficient"]
domain = ["node"]
quiet_s = 4
"""


def _module(path: Path, name: str) -> ModuleType:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Any]:
    """The Slurm of tests/schedulers/slurm: a controller and four nodes."""
    module = _module(TESTS / "schedulers/slurm/conftest.py", "slurm_of_drills")
    yield from module.slurm_cluster.__wrapped__()


@dataclass
class Yard:
    """A pool with its parts, and the command line of a person who drills there."""

    folder: Path
    kafka: Kafka
    slurm: Any
    job: str = ""

    @property
    def config(self) -> Path:
        return self.folder / "ringfence.toml"

    def command(self, *arguments: str) -> list[str]:
        data = ("--config", str(self.config), "--data", str(self.folder))
        return [sys.executable, "-m", "ringfence", *data, *arguments]

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), capture_output=True, text=True, timeout=150, check=False
        )

    def drill(self, name: str, host: str, *more: str) -> dict[str, Any]:
        """Run a drill; its record, which stands in the test's output with the time of each step."""
        done = self.call(
            "drill", str(self.folder / f"{name}.toml"), "--host", host, "--owner", "root",
            "--by", "kim", "--yes", "--json", *more,
        )  # fmt: skip
        sys.stdout.write(done.stderr)
        assert done.stdout, done.stderr
        told: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == (0 if told["outcome"] == "passed" else 1)
        return told

    def scene(self) -> Scene:
        scene = Scene()
        with Reader(self.kafka, *TOPICS_READ) as reader:
            scene.take_all(reader.past())
        return scene

    def node_of_job(self) -> str:
        """The node where the job is now, once it trains there."""
        self.slurm.until(lambda: self.trains_on() == self.placed_on() != "", "the job trains", 60)
        return self.trains_on()

    def placed_on(self) -> str:
        running: str = self.slurm.call("squeue", "-h", "-j", self.job, "-t", "R", "-o", "%N")
        return running.strip()

    def trains_on(self) -> str:
        steps = self.folder / "steps.jsonl"
        lines = steps.read_text().splitlines(keepends=True) if steps.exists() else []
        whole = [json.loads(line) for line in lines[-20:] if line.endswith("\n")]
        return next((one["node"] for one in reversed(whole) if one["what"] == "step"), "")

    def submit(self) -> None:
        script = self.folder / "job.sh"
        script.write_text(JOB.format(folder=self.folder, torchrun=TORCHRUN))
        said = self.slurm.call(
            "sbatch", "--parsable", "--requeue", "--exclude=hgx-3", "--output=/dev/null",
            str(script),
        )  # fmt: skip
        self.job = said.strip()


def _agent(yard: Yard, held: contextlib.ExitStack, host: str, library: Path) -> None:
    environ: Mapping[str, str] = os.environ | {
        "LD_LIBRARY_PATH": str(library.parent),
        "NVML_STAND_IN": str(yard.folder / f"{host}.nvml"),
    }
    supervisor = held.enter_context(Supervisor(yard.folder / "logs", environ=environ))
    parts = Parts(yard.folder / host, yard.kafka.bootstrap, yard.config)
    part = supervisor.start(
        f"agent-{host}",
        parts.agent(
            "--host", host, "--pool", POOL, "--no-kmsg", "--no-fabric-sysfs", "--gpu", "nvml",
            "--nccl", f"{yard.folder}/{host}/{{job}}.log", "--metrics-listen", "",
        ),
    )  # fmt: skip
    assert part.process is not None
    (yard.folder / f"{host}.pid").write_text(str(part.process.pid))


@pytest.fixture(scope="module")
def yard(
    module_kafka: Kafka, slurm: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Yard]:
    """The pool, with a job that trains in it."""
    stand_in = _module(TESTS / "nvml_stand_in/node.py", "nvml_stand_in_of_drills")
    if stand_in.compiler() is None or not TORCHRUN.exists():
        reason = "the drills' pool is left out: gcc or python3-torch is missing"
        assert not os.environ.get("RINGFENCE_REQUIRE_PARTS"), reason
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("yard")
    here = Yard(folder, module_kafka, slurm)
    given = {"folder": folder, "slurm": slurm.conf, "pool": POOL}
    here.config.write_text(
        SETTINGS.format(
            bootstrap=module_kafka.bootstrap, prefix=module_kafka.prefix,
            partitions=module_kafka.partitions, **given,
        )
    )  # fmt: skip
    (folder / "policy.toml").write_text(POLICY)
    (folder / "thresholds.toml").write_text(THRESHOLDS)
    (folder / "train.py").write_text((ROOT / "deploy/torchrun/train.py").read_text())
    out = OUT.format(**given)
    for name, text in (
        ("lose-gpu", LOSE_GPU),
        ("kill-rank", KILL_RANK),
        ("stop-agent", STOP_AGENT),
    ):
        (folder / f"{name}.toml").write_text(text.format(folder=folder, out=out))
    library = stand_in.build(folder)
    here.submit()
    with contextlib.ExitStack() as held:
        supervisor = held.enter_context(Supervisor(folder / "logs"))
        parts = Parts(folder, module_kafka.bootstrap, here.config)
        supervisor.start("worker", parts.worker())
        supervisor.start("sink", parts.sink())
        supervisor.start("scheduler", parts.scheduler_slurm())
        for host in HOSTS:
            (folder / host).mkdir(exist_ok=True)
            stand_in.Node(folder / f"{host}.nvml")
            _agent(here, held, host, library)
        here.node_of_job()
        _until(lambda: _is_seen(here), "the parts know the pool and its job")
        yield here
        slurm.tidy()


def _is_seen(yard: Yard) -> bool:
    scene = yard.scene()
    jobs = [one.job for one in scene.context.values() if one.kind is ContextKind.ALLOCATION]
    return yard.job in jobs and scene.hosts(POOL) == list(HOSTS)


def _until(done: Callable[[], Any], what: str, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def test_a_killed_rank_isolates_nothing_and_the_job_starts_again(yard: Yard) -> None:
    told = yard.drill("kill-rank", yard.node_of_job())
    assert (told["outcome"], told["differed"]) == ("passed", []), told
    assert told["status"] in ("insufficient", "software")
    assert told["recovered_s"] <= 90.0
    assert told["command"] is None


def test_a_lost_gpu_goes_from_fault_to_release_and_the_job_trains_on_another_node(
    yard: Yard,
) -> None:
    host = yard.node_of_job()
    told = yard.drill("lose-gpu", host)
    assert (told["outcome"], told["differed"]) == ("passed", []), told
    assert (told["status"], told["cause"], told["ack"]) == ("localized", "gpu-lost", "done")
    assert told["level"] == "evict"
    assert told["recovered_s"] <= told["objective_s"] == 90.0
    steps = (
        "detected_s", "commanded_s", "acked_s", "recovered_s", "undone_s", "release_asked_s",
        "released_s", "in_service_s",
    )  # fmt: skip
    seconds = [told[step] for step in steps]
    assert seconds == sorted(seconds)
    assert told["acked_s"] <= told["out_s"]
    assert yard.trains_on() == yard.placed_on() != host
    assert "DRAIN" not in yard.slurm.node(host)
    assert list((yard.folder / "drills").glob("*")) == []


def test_a_stopped_agent_is_a_silent_host_and_no_command(yard: Yard) -> None:
    host = next(one for one in HOSTS if one != yard.node_of_job())
    told = yard.drill("stop-agent", host)
    assert (told["outcome"], told["differed"]) == ("passed", []), told
    assert (told["status"], told["domain_id"]) == ("insufficient", f"node:{host}")
    assert told["command"] is None


def test_the_guard_refuses_a_job_of_others_and_a_pool_that_is_not_named(yard: Yard) -> None:
    plan = str(yard.folder / "lose-gpu.toml")
    host = yard.node_of_job()
    done = yard.call("drill", plan, "--host", host, "--yes")
    assert done.returncode == 2
    assert f"job {yard.job} of root runs there, not the drill's own" in done.stderr
    os.environ["RINGFENCE_DRILL_MOST_AN_HOUR"] = "1"
    try:
        done = yard.call("drill", plan, "--pool", POOL)
    finally:
        del os.environ["RINGFENCE_DRILL_MOST_AN_HOUR"]
    assert done.returncode == 2
    assert "the mode of the pool is enforce" in done.stderr
    assert "within this hour, [drill] most_an_hour allows 1" in done.stderr
    assert "gpu.1.all" not in (yard.folder / f"{host}.nvml").read_text()


def _begun(yard: Yard, host: str) -> subprocess.Popen[str]:
    """A drill whose fault is made, and that is not detected: its agent's card is not there."""
    plan = (yard.folder / "lose-gpu.toml").read_text().replace("slot = 1", "slot = 7")
    plan = plan.replace('"lose-gpu"', '"never-seen"', 1)
    (yard.folder / "never-seen.toml").write_text(plan)
    process = subprocess.Popen(
        yard.command(
            "drill", str(yard.folder / "never-seen.toml"), "--host", host, "--owner", "root",
            "--yes",
        ),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    control = yard.folder / f"{host}.nvml"
    _until(lambda: "gpu.7.all = !15" in control.read_text(), "the fault is made")
    return process


def test_a_killed_drill_is_undone_by_the_next_call(yard: Yard) -> None:
    host = HOSTS[2]
    control = yard.folder / f"{host}.nvml"
    before = control.read_text()
    process = _begun(yard, host)
    process.kill()
    process.communicate(timeout=10)
    assert control.read_text() != before
    done = yard.call("drill", "--undo")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1 undone"), done.stderr
    assert control.read_text() == before
    (record,) = [one for one in yard.scene().drills.values() if one.drill == "never-seen"]
    assert (record.outcome, record.differed) == (
        "aborted",
        ("the drill was killed; the next one undid it",),
    )


@pytest.mark.slow
def test_a_drill_that_is_asked_to_stop_undoes_its_fault_first(yard: Yard) -> None:
    host = HOSTS[2]
    control = yard.folder / f"{host}.nvml"
    before = control.read_text()
    process = _begun(yard, host)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "aborted: stopped by hand" in said
    assert control.read_text() == before
    drills: list[DrillRecord] = list(yard.scene().drills.values())
    assert (drills[-1].outcome, drills[-1].differed) == ("aborted", ("stopped by hand",))


def test_the_record_is_listed_from_the_history_against_the_objective(yard: Yard) -> None:
    def listed() -> dict[str, Any]:
        done = yard.call("drills", "--json")
        assert done.returncode in (0, 1), done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    wanted = {"lose-gpu": True, "kill-rank": True, "stop-agent": None, "never-seen": None}
    _until(
        lambda: {one["drill"]: one["is_met"] for one in listed()["drills"]} == wanted,
        "the history has the drills",
        20,
    )
    assert [words.partition(":")[0] for words in listed()["wrong"]] == [f"never-seen on {HOSTS[2]}"]
    shown = yard.call("drills", "--stale-days", "0.000001")
    assert shown.returncode == 1
    assert "lose-gpu: not run for 0 days" in shown.stdout
