"""A real Slurm on loopback: slurmctld and four slurmd with eight made-up cards each."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from schedulers.slurm import SlurmConfig

NODES = tuple(f"hgx-{number}" for number in range(4))
_PROGRAMS = ("slurmctld", "slurmd", "munged", "scontrol", "squeue", "sbatch", "scancel")
_CONF = """\
ClusterName=ringfence
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={base}/munge/socket,cred_expire=3
CredType=cred/munge
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool/%n
SlurmctldPidFile={base}/run/slurmctld.pid
SlurmdPidFile={base}/run/slurmd-%n.pid
SlurmctldLogFile={base}/log/slurmctld.log
SlurmdLogFile={base}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MailProg=/bin/true
MpiDefault=none
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=30
KillWait=2
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
SlurmdParameters=config_overrides
RebootProgram=/bin/true
"""
_NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=16 RealMemory=4096 "
    "Gres=gpu:h100:8 Feature={feature} State=UNKNOWN\n"
)
#: Nodes that are only names: for many commands in a row.
MANY = 750
_MANY = f"NodeName=far-[1-{MANY}] NodeAddr=127.0.0.1 Port=1 CPUs=16 RealMemory=4096 State=DOWN\n"


class Slurm:
    """A running cluster: its settings, and the programs as a person would call them."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.conf = base / "etc" / "slurm.conf"
        self.config = SlurmConfig(conf=self.conf, timeout_s=10.0)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = os.environ | {"SLURM_CONF": str(self.conf), "TZ": "UTC"}

    def call(self, program: str, *arguments: str) -> str:
        """Run one of Slurm's programs; it must succeed."""
        done = subprocess.run(
            [program, *arguments],
            check=False,
            capture_output=True,
            text=True,
            env=self._environment,
            timeout=20,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, name: str, *command: str) -> None:
        """Start a daemon."""
        with (self.base / "log" / f"{name}.out").open("ab") as out:
            self._running[name] = subprocess.Popen(
                command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=self._environment
            )

    def start_controller(self) -> None:
        """Start slurmctld on its saved state."""
        self.start("slurmctld", "slurmctld", "-D")
        self.until(self._answers, "slurmctld answers")

    def stop_controller(self) -> None:
        """Stop slurmctld in order: killed, it forgets what it did in its last seconds."""
        process = self._running.pop("slurmctld")
        process.terminate()
        process.wait(10)

    def _answers(self) -> bool:
        return (
            subprocess.run(
                ["scontrol", "ping"], check=False, capture_output=True, env=self._environment
            ).returncode
            == 0
        )

    def node(self, name: str) -> str:
        """Flags of a node's state, and its reason: ``IDLE+DRAIN bad fan``."""
        lines = [line.strip() for line in self.call("scontrol", "show", "node", name).splitlines()]
        state = next(line for line in lines if line.startswith("State=")).split()[0]
        reason = next((line for line in lines if line.startswith("Reason=")), "Reason=")
        words = reason.removeprefix("Reason=").rpartition(" [")[0]
        # For a moment after a drain ends, slurmctld has not asked the node again.
        flags = state.removeprefix("State=").replace("*", "").replace("+NOT_RESPONDING", "")
        return f"{flags} {words}".strip()

    def job(self, *flags: str, node: str = NODES[0], comment: str = "") -> str:
        """Submit a job that sleeps on a node, and wait until it runs; returns its id."""
        script = self.base / "job.sh"
        script.write_text("#!/bin/bash\nfor i in $(seq 600); do sleep 0.1; done\n")
        said = self.call(
            "sbatch", "--parsable", f"--nodelist={node}", "--gres=gpu:h100:2", "--output=/dev/null",
            f"--comment={comment}", *flags, str(script),
        )  # fmt: skip
        ident = said.strip()
        self.until(lambda: self.jobs().get(ident) == "RUNNING", f"job {ident} runs")
        return ident

    def jobs(self) -> dict[str, str]:
        """States of the jobs that are not gone, by id."""
        lines = self.call("squeue", "-h", "-o", "%A %T").splitlines()
        return {line.split()[0]: line.split()[1] for line in lines}

    def until(self, done: object, what: str, within_s: float = 20.0) -> None:
        """Wait until ``done()``."""
        assert callable(done)
        deadline = time.monotonic() + within_s
        while not done():
            assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
            time.sleep(0.05)

    def tidy(self) -> None:
        """No jobs, all four nodes idle, no reasons."""
        for ident in self.jobs():
            self.call("scancel", ident)
        self.until(lambda: not self.jobs(), "no job is left")
        for name in NODES:
            self.until(lambda name=name: "UNKNOWN" not in self.node(name), f"{name} is registered")
            if "DRAIN" in self.node(name):
                self.call("scontrol", "update", f"nodename={name}", "state=undrain")
        self.until(lambda: all(self.node(name) == "IDLE" for name in NODES), "all nodes are idle")

    def stop(self) -> None:
        """Stop every daemon."""
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(3)
            process.kill()
            process.wait()


def _port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _write(base: Path, nodes: str) -> None:
    """The folders and files of a cluster with these nodes."""
    for folder in ("etc", "state", "run", "log", "dev", *(f"spool/{name}" for name in NODES)):
        (base / folder).mkdir(parents=True)
    (base / "munge").mkdir(mode=0o711)
    key = base / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    for number in range(8):
        (base / "dev" / f"nvidia{number}").touch()
    text = _CONF.format(host=socket.gethostname().partition(".")[0], port=_port(), base=base)
    text += nodes + "PartitionName=train Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
    (base / "etc" / "slurm.conf").write_text(text)
    cards = f"AutoDetect=off\nNodeName=hgx-[0-3] Name=gpu Type=h100 File={base}/dev/nvidia[0-7]\n"
    (base / "etc" / "gres.conf").write_text(cards if "hgx" in nodes else "")


def _needed() -> None:
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        reason = f"Slurm left out: {', '.join(missing) or 'needs root'} (deploy/test-parts.sh)"
        assert not os.environ.get("RINGFENCE_REQUIRE_PARTS"), reason
        pytest.skip(reason)


@contextlib.contextmanager
def _running(nodes: str) -> Iterator[Slurm]:
    """A controller for these nodes (lines of slurm.conf); munge refuses folders as pytest's."""
    _needed()
    with tempfile.TemporaryDirectory(prefix="ringfence-slurm-", dir="/var/lib") as folder:
        base = Path(folder)
        base.chmod(0o755)
        _write(base, nodes)
        slurm = Slurm(base)
        try:
            munge = base / "munge"
            slurm.start(
                "munged", "munged", "--force", "--foreground", f"--key-file={munge}/key",
                f"--socket={munge}/socket", f"--pid-file={munge}/pid", f"--log-file={munge}/log",
                f"--seed-file={munge}/seed", "--num-threads=2",
            )  # fmt: skip
            slurm.until((munge / "socket").exists, "munge listens")
            slurm.start_controller()
            yield slurm
        finally:
            slurm.stop()


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[Slurm]:
    """One Slurm for all tests of this folder."""
    host = socket.gethostname().partition(".")[0]
    lines = "".join(
        _NODE.format(name=name, host=host, port=_port(), feature=f"h100,r{number // 2}")
        for number, name in enumerate(NODES)
    )
    with _running(lines) as slurm:
        for name in NODES:
            slurm.start(f"slurmd-{name}", "slurmd", "-D", "-N", name)
        slurm.tidy()
        yield slurm


@pytest.fixture
def slurm(slurm_cluster: Slurm) -> Iterator[Slurm]:
    """The cluster with all four nodes idle, left so too."""
    yield slurm_cluster
    slurm_cluster.tidy()


@pytest.fixture
def many_nodes() -> Iterator[Slurm]:
    """A controller alone, with nodes that are only names, ``far-1`` to ``far-750``."""
    with _running(_MANY) as slurm:
        yield slurm
