"""Lines of whoever started the ranks: torchrun, Slurm, Ray, DeepSpeed, mpirun, and Python itself.

A worker that its agent stopped, and exit codes -6 and -15 by themselves, are consequences.
"""

import json
import re
from typing import Any

from collectors.nccl.prefix import Prefixed
from collectors.nccl.shape import Fields, Shape
from evidence.records import NcclKind

__all__ = ["LAUNCHER_SHAPES", "PYTHON_SHAPES"]

_SIGKILL, _SIGTERM = 9, 15

# `failed (exitcode: -9) local_rank: 3 (pid: 31518) of binary: /opt/conda/bin/python`
_FAILED = re.compile(
    r"failed \(exitcode: (?P<code>-?\d{1,5})\) local_rank: (?P<local>\d{1,4}) "
    r"\(pid: (?P<pid>\d{1,10})\)",
)
# `Sending process 31507 closing signal SIGTERM`, `Closing process 31507 via signal SIGTERM`
_STOPPED = re.compile(
    r"(?:Sending process (?P<pid>\d{1,10}) closing signal"
    r"|Closing process (?P<pid2>\d{1,10}) via signal) (?P<signal>\w{1,20})",
)
# `Unable to shutdown process 31507 via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL`
_UNABLE = re.compile(r"Unable to shutdown process (?P<pid>\d{1,10}) via (?P<signal>[\w.]{1,30})")
# `[default] Worker pid=31507 stuck in uninterruptible sleep (D-state) for 61s`
# `Process 31507 did not exit after SIGKILL within 30s; abandoning`
_D_STATE = re.compile(
    r"Worker pid=(?P<pid>\d{1,10}) [\w ]{1,40}uninterruptible sleep"
    r"|Process (?P<pid2>\d{1,10}) did not exit after SIGKILL",
)
# `Received 15 death signal, shutting down workers`, `Received Signals.SIGTERM death signal, ...`
_DEATH = re.compile(r"Received (?P<signal>[\w.]{1,30}) death signal")
# `torch.distributed.elastic.multiprocessing.api.SignalException: Process 4711 got signal: 15`
_SIGNAL = re.compile(r"SignalException: Process (?P<pid>\d{1,10}) got signal: (?P<signal>\d{1,3})")
# `[default] Worker group FAILED. 3/3 attempts left; will restart worker group`
# `[default] Detected 1 new nodes from group_rank=0; will restart worker group`
_RESTART = re.compile(
    r"(?:Worker group (?P<state>\w{1,20})\.|Detected (?P<nodes>\d{1,7}) new nodes)"
    r"[^\n]{0,99}will restart worker group",
)
# `The node 'gpu7_30881_0' has failed to send a keep-alive heartbeat to the rendezvous 'job' due to
# an error of type RendezvousConnectionError.` (the node named is the reporter)
_KEEPALIVE = re.compile(
    r"The node '(?P<node>[^']{1,253})_(?P<pid>\d{1,10})_\d{1,5}' has failed to "
    r"(?P<what>send|shutdown)[^\n]{0,300}error of type (?P<error>\w{1,99})",
)
# `torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the ...`
_RENDEZVOUS = re.compile(r"(?P<error>Rendezvous(?:Connection|Timeout|Closed)Error): ")
# `As part of the sync operation the node(s) 'gpu7_30881_0' have been removed from the rendezvous
# 'job' since they had no heartbeat.` (the only line that names an agent that went silent)
_REMOVED = re.compile(
    r"node\(s\) (?P<nodes>'[^\n]{1,4000}?') have been removed from the rendezvous"
)
_NODE = re.compile(r"([^',\s]{1,253}?)_\d{1,10}_\d{1,5}(?=[',\s])")
# `[default] worker group successfully finished.`, `... finished (WorkerState.SUCCEEDED).`
_SUCCEEDED = re.compile(
    r"worker group successfully finished|finished \((?:WorkerState\.)?SUCCEEDED\)"
)
# `{"name": "torchelastic.worker.status.FAILED", "source": "WORKER", ... "metadata": {...}}`
_EVENT = re.compile(r'\{"name": "torchelastic\.worker\.status\.(?P<state>\w{1,20})".*', re.DOTALL)

# `srun: error: gpu7: tasks 8-12,14-15: Aborted (core dumped)`, `srun: error: gpu7: task 3: Killed`
_SRUN = re.compile(
    r"srun: error: (?P<host>[\w.\-]{1,253}): tasks? (?P<tasks>[\d,\-]{1,999}): "
    r"(?P<how>[^\n]{1,200})",
)
_EXITED = re.compile(r"Exited with exit code (\d{1,3})")
# `slurmstepd: error: Detected 1 oom_kill event in StepId=8123.0.`
_OOM_KILL = re.compile(r"Detected (?P<n>\d{1,7}) oom[_-]kill events? in (?P<step>\S{1,99})")
# `srun: error: Node failure on gpu7`, `*** JOB 8123 ON gpu7 CANCELLED AT ... DUE TO NODE FAILURE,`
_NODE_FAIL = re.compile(
    r"Node failure on (?P<host>[\w.\-]{1,253})"
    r"|\*\*\* (?:JOB|STEP) (?P<job>\S{1,40}) ON (?P<node>[\w.\-]{1,253}) CANCELLED[^\n]{0,60}"
    r" DUE TO NODE FAILURE",
)
# `slurmstepd: error: *** STEP 8123.0 ON gpu7 CANCELLED AT 2026-04-02T09:13:51 DUE TO TIME LIMIT`
# `srun: forcing job termination`
_CANCELLED = re.compile(
    r"\*\*\* (?:JOB|STEP) \S{1,40} ON (?P<host>[\w.\-]{1,253}) CANCELLED AT [^\n]{1,99}"
    r"|srun: forcing job termination|srun: Job step aborted",
)

# `(raylet) A worker died or was killed while executing a task ... Worker IP address: 10.3.0.9
# Worker port: 10422 Worker PID: 71203 Worker exit type: SYSTEM_ERROR Worker exit detail: ...`
_RAY = re.compile(
    r"A worker died or was killed .{0,900}?Worker IP address: (?P<ip>[\w.:\-]{1,99}) .{0,200}?"
    r"Worker PID: (?P<pid>\d{1,10})(?: Worker exit type: (?P<type>\w{1,60}))?",
)
# `[launch.py:324:sigkill_handler] ['python', '-u', 'x.py', '--local_rank=0'] exits with return code
# = -9`
_DEEPSPEED = re.compile(r"exits with return code = (?P<code>-?\d{1,5})")
_LOCAL_RANK = re.compile(r"--local[_-]rank=(\d{1,4})")
# `[launch.py:318:sigkill_handler] Killing subprocess 4711` (every pid, dead or alive)
_DEEPSPEED_KILL = re.compile(r"Killing subprocess (?P<pid>\d{1,10})")
# `mpirun noticed that process rank 3 with PID 4711 on node gpu7 exited on signal 9 (Killed).`
_MPIRUN = re.compile(
    r"process rank (?P<rank>\d{1,7}) with PID (?P<pid>\d{1,10}) on node (?P<host>[\w.\-]{1,253}) "
    r"exited on signal (?P<signal>\d{1,3})",
)

# `Fatal Python error: Aborted`, `Fatal Python error: Segmentation fault`
_FATAL = re.compile(r"Fatal Python error: (?P<what>[^\n]{1,200})")
# `[after training is done] datetime: ...` (Megatron), `Training completed. Do not forget to share`
# `INFO training finished after 12000 steps`, `Training completed in 3 h`; but no epoch of it
# `` `Trainer.fit` stopped: `max_epochs=3` reached. `` (Lightning)
_TRAINED = re.compile(
    r"\[after training is done\]|Training completed\. Do not forget"
    r"|`Trainer\.fit` stopped: `max_\w{1,20}=[^`]{1,20}` reached"
    r"|^(?![^\n]{0,300}[Ee]poch)[^\n]{0,300}"
    r"\b[Tt]raining (?:has |is )?(?:finished|completed?|done)\b",
)
# `saving checkpoint at iteration    5000 to /ckpt/run in torch_dist format` (Megatron)
# `Saving model checkpoint to out/checkpoint-500` (Transformers)
# `[Torch] Saving out/mp_rank_00_model_states.pt...` (DeepSpeed)
# `successfully saved checkpoint from iteration    5000 to /ckpt/run`
_SAVING = re.compile(
    r"\b(?P<how>[Ss]av(?:ing|ed)) (?:an? |the |model )?checkpoint\b"
    r"|\[Torch\] (?P<how2>Sav(?:ing|ed)) "
)
# `ValueError: not enough values to unpack (expected 2, got 1)`, `KeyboardInterrupt`
_EXCEPTION = re.compile(
    r"^(?P<name>[A-Za-z_][\w.]{0,199}(?:Error|Exception|Interrupt|Exit|Warning|Iteration))"
    r"(?:: (?P<words>[^\n]{0,400}))?\s*$",
)
#: Exceptions of the launcher about its workers: the worker's own line tells more.
_LAUNCHER_ERRORS = ("ChildFailedError", "SignalException", "CalledProcessError", "SystemExit")


def _failed(found: re.Match[str], _: Prefixed) -> Fields:
    return _exit("failed") | {
        "exit_code": int(found["code"]),
        "local_rank": int(found["local"]),
        "pid": int(found["pid"]),
    }


def _stopped(found: re.Match[str], _: Prefixed) -> Fields:
    pid = int(found["pid"] or found["pid2"])
    return _exit("stopped-by-agent") | {
        "pid": pid,
        "exit_code": -_SIGTERM,
        "message": found["signal"],
    }


def _unable(found: re.Match[str], _: Prefixed) -> Fields:
    return _exit("stuck") | {"pid": int(found["pid"]), "message": found["signal"]}


def _d_state(found: re.Match[str], _: Prefixed) -> Fields:
    pid = int(found["pid"] or found["pid2"])
    return _exit("d-state") | {"pid": pid, "message": found[0]}


def _death(found: re.Match[str], line: Prefixed) -> Fields:
    fields: Fields = {"kind": NcclKind.EXTERNAL_STOP, "message": found["signal"]}
    return fields | {"pid": line.agent_pid}


def _signal(found: re.Match[str], _: Prefixed) -> Fields:
    fields: Fields = {"kind": NcclKind.EXTERNAL_STOP, "message": found["signal"]}
    return fields | {"pid": int(found["pid"])}


def _restart(found: re.Match[str], _: Prefixed) -> Fields:
    fields: Fields = {"kind": NcclKind.RANK_MAP, "phase": "restart", "message": found[0]}
    return fields | {"_restart": True}


def _keepalive(found: re.Match[str], _: Prefixed) -> Fields:
    return {
        "kind": NcclKind.STORE_LOST,
        "phase": "keep-alive" if found["what"] == "send" else "rendezvous-shutdown",
        "host": found["node"],
        "pid": int(found["pid"]),
        "message": found["error"],
    }


def _removed(found: re.Match[str], _: Prefixed) -> Fields:
    nodes = tuple(_NODE.findall(found["nodes"]))
    fields: Fields = {"kind": NcclKind.RANK_MAP, "phase": "removed", "hosts": nodes}
    return fields | {"message": "removed from the rendezvous, as no heartbeat came"}


def _rendezvous(found: re.Match[str], _: Prefixed) -> Fields:
    return {"kind": NcclKind.STORE_LOST, "phase": "rendezvous", "message": found["error"]}


def _succeeded(_found: re.Match[str], _: Prefixed) -> Fields:
    return {"kind": NcclKind.FINISHED, "phase": "worker-group"}


def _event(found: re.Match[str], _: Prefixed) -> Fields | None:
    try:
        event = json.loads(found[0])
        metadata = event["metadata"]
        inner = json.loads(metadata.get("metadata") or "{}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(metadata, dict) or not isinstance(inner, dict):
        return None
    state, worker = found["state"], event.get("source") == "WORKER"
    if state == "FAILED":
        fields = _exit("event" if worker else "agent-event")
    elif state == "SUCCEEDED":  # an agent says so even of workers that failed
        fields = {"kind": NcclKind.FINISHED, "phase": "event" if worker else "agent-event"}
    else:
        return None
    local = inner.get("local_rank")
    return fields | {
        "rank": _whole(metadata.get("global_rank")),
        "local_rank": _whole(local[0] if isinstance(local, list) and local else local),
        "pid": _whole(metadata.get("worker_id")),
        "host": _words(metadata.get("hostname")),
        "message": f"agent_restarts={_whole(metadata.get('agent_restarts'))}"
        f" {_words(metadata.get('raw_error')) or ''}".rstrip(),
    }


def _srun(found: re.Match[str], _: Prefixed) -> Fields:
    """Slurm's tasks are not ranks where each task is a torchrun, so none are named."""
    how = found["how"].strip()
    exited = _EXITED.search(how)
    code = None if exited is None else int(exited[1])
    fields = _exit("srun") | {"host": found["host"]}
    if how.startswith(("Killed", "Out Of Memory")):
        code = -_SIGKILL
    if how.startswith("Out Of Memory"):
        fields |= {"kind": NcclKind.OUT_OF_MEMORY, "phase": "host"}
    return fields | {"exit_code": code, "message": f"tasks {found['tasks']}: {how}"}


def _oom_kill(found: re.Match[str], _: Prefixed) -> Fields:
    fields: Fields = {"kind": NcclKind.OUT_OF_MEMORY, "phase": "host", "message": found[0]}
    return fields | {"exit_code": -_SIGKILL}


def _node_fail(found: re.Match[str], _: Prefixed) -> Fields:
    return _exit("node-fail") | {"host": found["host"] or found["node"], "message": found[0]}


def _cancelled(found: re.Match[str], _: Prefixed) -> Fields:
    fields: Fields = {"kind": NcclKind.EXTERNAL_STOP, "phase": "scheduler", "message": found[0]}
    return fields | {"host": found["host"]}


def _ray(found: re.Match[str], _: Prefixed) -> Fields:
    return _exit("ray") | {
        "pid": int(found["pid"]),
        "hosts": (found["ip"],),
        "message": found["type"],
    }


def _deepspeed(found: re.Match[str], line: Prefixed) -> Fields:
    local = _LOCAL_RANK.search(line.message)
    fields = _exit("failed") | {"exit_code": int(found["code"])}
    return fields if local is None else fields | {"local_rank": int(local[1])}


def _deepspeed_kill(found: re.Match[str], _: Prefixed) -> Fields:
    return _exit("stopped-by-agent") | {"pid": int(found["pid"]), "exit_code": -_SIGTERM}


def _mpirun(found: re.Match[str], _: Prefixed) -> Fields:
    return _exit("failed") | {
        "rank": int(found["rank"]),
        "pid": int(found["pid"]),
        "host": found["host"],
        "exit_code": -int(found["signal"]),
    }


def _fatal(found: re.Match[str], _: Prefixed) -> Fields:
    return {"kind": NcclKind.ABORTED, "phase": "fatal-python", "message": found["what"]}


def _trained(found: re.Match[str], _: Prefixed) -> Fields:
    return {"kind": NcclKind.FINISHED, "phase": "training", "message": found[0]}


def _saving(found: re.Match[str], _: Prefixed) -> Fields:
    how = (found["how"] or found["how2"]).lower()
    return {"kind": NcclKind.OTHER, "phase": how, "message": found.string[:200]}


def _exception(found: re.Match[str], _: Prefixed) -> Fields | None:
    name = found["name"]
    # `ncclRemoteError: A call failed ...` is the second line of c10d's exception.
    if name.startswith("nccl") or name.endswith(("Warning", *_LAUNCHER_ERRORS)):
        return None
    if name.endswith("KeyboardInterrupt"):
        return {"kind": NcclKind.EXTERNAL_STOP, "phase": "interrupt", "message": name}
    words = (found["words"] or "").strip()
    message = f"{name}: {words}" if words else name
    return {"kind": NcclKind.PYTHON_ERROR, "message": message, "_traceback": True}


def _exit(phase: str) -> Fields:
    return {"kind": NcclKind.WORKER_EXIT, "phase": phase}


def _whole(value: Any) -> int | None:  # noqa: ANN401 (a value out of someone's JSON)
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:18])
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**63:
        return None
    return value


def _words(value: Any) -> str | None:  # noqa: ANN401 (a value out of someone's JSON)
    return value[:400] if isinstance(value, str) else None


#: What launchers and schedulers print, most particular first.
LAUNCHER_SHAPES = (
    Shape("exitcode:", _FAILED, _failed),
    Shape("closing signal", _STOPPED, _stopped),
    Shape("via signal", _STOPPED, _stopped),
    Shape("Unable to shutdown process", _UNABLE, _unable),
    Shape("uninterruptible sleep", _D_STATE, _d_state),
    Shape("did not exit after SIGKILL", _D_STATE, _d_state),
    Shape("death signal", _DEATH, _death),
    Shape("got signal", _SIGNAL, _signal),
    Shape("will restart worker group", _RESTART, _restart),
    Shape("The node '", _KEEPALIVE, _keepalive),
    Shape("removed from the rendezvous", _REMOVED, _removed),
    Shape("Rendezvous", _RENDEZVOUS, _rendezvous),
    Shape("finished", _SUCCEEDED, _succeeded),
    Shape("torchelastic.worker.status", _EVENT, _event),
    Shape("srun: error", _SRUN, _srun),
    Shape("oom", _OOM_KILL, _oom_kill),
    Shape("ode failure on", _NODE_FAIL, _node_fail),
    Shape("NODE FAILURE", _NODE_FAIL, _node_fail),
    Shape("CANCELLED AT", _CANCELLED, _cancelled),
    Shape("srun: ", _CANCELLED, _cancelled),
    Shape("A worker died or was killed", _RAY, _ray),
    Shape("exits with return code", _DEEPSPEED, _deepspeed),
    Shape("Killing subprocess", _DEEPSPEED_KILL, _deepspeed_kill),
    Shape("exited on signal", _MPIRUN, _mpirun),
)

#: What Python and training frameworks print; tried last, since an exception often wraps another
#: layer's error.
PYTHON_SHAPES = (
    Shape("Fatal Python error", _FATAL, _fatal),
    Shape("raining ", _TRAINED, _trained),
    Shape("Trainer.fit", _TRAINED, _trained),
    Shape("checkpoint", _SAVING, _saving),
    Shape("[Torch] Sav", _SAVING, _saving),
    Shape("", _EXCEPTION, _exception),
)
