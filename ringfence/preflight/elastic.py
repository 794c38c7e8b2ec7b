"""Can the job go on without a node? Elastic range, restarts, rendezvous, Slurm's own reaction."""

import re
from collections.abc import Iterator, Mapping

from ringfence.preflight.finding import Finding, Severity, found
from ringfence.preflight.launch import Launch, Said

__all__ = ["last_call", "max_restarts", "nodes_range", "rendezvous", "shared_store", "slurm"]

# 12:16
_RANGE = re.compile(r"(\d+):(\d+)\Z")
_NUMBER = re.compile(r"\d+\Z")
#: Numbers that Slurm tells a script: never a range, as another variable may hold.
_COUNTED = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES")
#: torchrun's own defaults (torch/distributed/run.py, elastic/rendezvous/dynamic_rendezvous.py).
_LAST_CALL_S, _KEEP_ALIVE_S, _KEEP_ALIVE_TRIES = 30, 5, 3
#: What the objective of 90 s back in training leaves for the rendezvous.
_WANTED_WAIT_S = 20
_FEWEST_RESTARTS = 3
#: Ways in which scripts name the first node of the job itself.
_OWN_NODE = (
    "hostname",
    "head_node",
    "HEAD_NODE",
    "MASTER_ADDR",
    "master_addr",
    "localhost",
    "127.0.0.1",
)


def _is_torchrun(launch: Launch) -> bool:
    return launch.launcher == "torchrun"


def _one_node(launch: Launch) -> bool:
    nodes = launch.flags.get("nnodes")
    return "standalone" in launch.flags or nodes is None or nodes.value in {"1", "1:1"}


def nodes_range(launch: Launch) -> Iterator[Finding]:
    """A range of nodes whose lower end is below the upper."""
    check = "elastic-range"
    if launch.launcher == "deepspeed":
        yield from _deepspeed(launch)
        return
    if not _is_torchrun(launch):
        if launch.launcher == "accelerate" or launch.srun:
            starter = "accelerate" if launch.launcher == "accelerate" else "srun"
            yield found(
                check,
                Severity.WARNING,
                f"{starter} starts a fixed number of ranks: without one node the job ends.",
                "start the ranks with torchrun --nnodes=MIN:MAX, or rely on requeueing alone",
            )
        return
    nodes = launch.flags.get("nnodes")
    if nodes is None or _one_node(launch):
        return
    if ranged := _RANGE.match(nodes.value):
        fewest, most = int(ranged[1]), int(ranged[2])
        if fewest >= most:
            yield found(
                check,
                Severity.ERROR,
                f"--nnodes={nodes.value} leaves no room: {fewest} nodes are both ends.",
                f"--nnodes={max(1, most - 1)}:{most}, or fewer as the smallest useful size",
                nodes,
            )
    elif ":" not in nodes.value and (
        "$" not in nodes.value or any(word in nodes.value for word in _COUNTED)
    ):
        most_text = nodes.value
        low = max(1, int(most_text) - 1) if _NUMBER.match(most_text) else "MIN"
        yield found(
            check,
            Severity.ERROR,
            f"--nnodes={most_text} is fixed: the job cannot go on without one of its nodes.",
            f"--nnodes={low}:{most_text}, with spare nodes in the allocation if the size must stay",
            nodes,
        )


def _deepspeed(launch: Launch) -> Iterator[Finding]:
    enabled = launch.config.get("elasticity.enabled")
    if enabled is not None and enabled.value == "true" and "elastic-training" in launch.flags:
        return
    missing = (
        "the config has no elasticity.enabled"
        if enabled is None or enabled.value != "true"
        else "the launcher has no --elastic_training"
    )
    yield found(
        "elastic-range",
        Severity.ERROR,
        f"DeepSpeed starts a fixed number of ranks ({missing}): without one node the job ends.",
        "deepspeed --elastic_training --min_elastic_nodes MIN --max_elastic_nodes MAX, and "
        '"elasticity": {"enabled": true, ...} in the config; or torchrun --nnodes=MIN:MAX',
        enabled or launch.flags.get("elastic-training"),
    )


def max_restarts(launch: Launch) -> Iterator[Finding]:
    """More than none; torchrun's default is 0."""
    if not _is_torchrun(launch):
        return
    given = launch.flags.get("max-restarts")
    fix = "--max-restarts=10 or more: a lost node costs each agent that is left one of them"
    if given is None:
        yield found(
            "max-restarts",
            Severity.ERROR,
            "--max-restarts is not given, and torchrun's default is 0: the first failure ends all.",
            fix,
            launch.flags.get("nnodes"),
        )
    elif _NUMBER.match(given.value) and int(given.value) < _FEWEST_RESTARTS:
        severity = Severity.ERROR if int(given.value) == 0 else Severity.WARNING
        yield found(
            "max-restarts",
            severity,
            f"--max-restarts={given.value}: the job ends at failure {int(given.value) + 1}.",
            fix,
            given,
        )


def rendezvous(launch: Launch) -> Iterator[Finding]:
    """A dynamic rendezvous whose store is not on a node of the job."""
    if not _is_torchrun(launch) or _one_node(launch):
        return
    backend = launch.flags.get("rdzv-backend")
    endpoint = launch.flags.get("rdzv-endpoint")
    if backend is None and endpoint is None:
        yield found(
            "rendezvous",
            Severity.ERROR,
            "no --rdzv-backend: the static rendezvous takes no node out and none in.",
            "--rdzv-backend=c10d --rdzv-endpoint=HOST:PORT --rdzv-id=JOB, HOST outside of the job",
            launch.flags.get("master-addr") or launch.flags.get("nnodes"),
        )
        return
    if backend is not None and backend.value == "static":
        yield found(
            "rendezvous",
            Severity.ERROR,
            "--rdzv-backend=static takes no node out and none in.",
            "--rdzv-backend=c10d",
            backend,
        )
    if endpoint is not None and any(word in endpoint.value for word in _OWN_NODE):
        yield found(
            "rendezvous",
            Severity.WARNING,
            f"the rendezvous store is on a node of the job ({endpoint.value}): when that node is "
            "isolated, all ranks end.",
            "a store outside of the job's nodes (a login or service host), with is_host=0 in "
            "--rdzv-conf for every agent",
            endpoint,
        )


def shared_store(launch: Launch) -> Iterator[Finding]:
    """The shared store switched off where agents are elastic."""
    if not _is_torchrun(launch) or _one_node(launch):
        return
    backend = launch.flags.get("rdzv-backend")
    if backend is not None and backend.value not in {"c10d", ""}:
        return
    said = launch.env.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE")
    if said is None or said.value != "1":
        yield found(
            "shared-store",
            Severity.ERROR,
            "recent PyTorch keeps the rendezvous' store over restarts: workers then read the "
            "addresses of the round before and hang.",
            "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
            said or backend,
        )


def _conf(launch: Launch) -> tuple[Said | None, Mapping[str, float]]:
    said = launch.flags.get("rdzv-conf")
    values: dict[str, float] = {}
    for part in said.value.split(",") if said else ():
        name, _, value = part.partition("=")
        try:
            values[name.strip()] = float(value)
        except ValueError:
            continue
    return said, values


def last_call(launch: Launch) -> Iterator[Finding]:
    """What a restart waits for nodes that will not come."""
    if not _is_torchrun(launch) or _one_node(launch):
        return
    said, conf = _conf(launch)
    wait_s = conf.get("last_call_timeout", _LAST_CALL_S)
    alive_s = conf.get("keep_alive_interval", _KEEP_ALIVE_S) * conf.get(
        "keep_alive_max_attempt", _KEEP_ALIVE_TRIES
    )
    if wait_s + alive_s > _WANTED_WAIT_S:
        yield found(
            "last-call",
            Severity.WARNING,
            f"a lost node costs {alive_s:g} s until it is missed and {wait_s:g} s of last call "
            "before training goes on.",
            "--rdzv-conf=last_call_timeout=5,keep_alive_interval=2,keep_alive_max_attempt=3",
            said,
        )


def slurm(launch: Launch) -> Iterator[Finding]:
    """What Slurm does when a node fails."""
    if not launch.batch:
        return
    check = "slurm-node-failure"
    some = next(iter((launch.slurm or launch.srun).values()))
    if _is_torchrun(launch) and not _one_node(launch):
        kept = "no-kill" in launch.slurm or "k" in launch.slurm
        if not kept:
            yield found(
                check,
                Severity.ERROR,
                "without --no-kill Slurm ends the whole job when one of its nodes fails.",
                "#SBATCH --no-kill (and --no-kill for srun)",
                some,
            )
        strict = launch.srun.get("kill-on-bad-exit") or launch.srun.get("K")
        if strict is not None and strict.value != "0":
            yield found(
                check,
                Severity.ERROR,
                "--kill-on-bad-exit ends all agents when one of them ends.",
                "srun --kill-on-bad-exit=0",
                strict,
            )
    fix = "#SBATCH --requeue and --open-mode=append"
    if (never := launch.slurm.get("no-requeue")) is not None:
        severity = Severity.WARNING if _is_torchrun(launch) else Severity.ERROR
        what = "--no-requeue: the job does not come back after it had to end."
        yield found(check, severity, what, fix, never)
    elif "requeue" not in launch.slurm:
        severity = Severity.NOTE if _is_torchrun(launch) else Severity.WARNING
        what = "without --requeue the site decides (JobRequeue) whether the job comes back "
        yield found(check, severity, f"{what}after it had to end.", fix, some)
