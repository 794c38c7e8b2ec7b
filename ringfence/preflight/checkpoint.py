"""Does the job lose at most minutes? Interval, automatic resume, and where checkpoints lie."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ringfence.preflight.finding import Finding, Severity, found
from ringfence.preflight.launch import Launch, Said

__all__ = ["interval", "resume", "storage"]

_LONGEST_S = 300.0

#: Flags that tell how often a checkpoint is written, and the seconds of one unit (None: steps).
_EVERY: Mapping[str, float | None] = {
    "save-interval": None,  # Megatron-LM
    "save-steps": None,  # transformers
    "checkpoint-interval": None,
    "checkpoint.interval": None,  # torchtitan
    "checkpointing-steps": None,  # accelerate's examples
    "save-every": None,
    "ckpt-interval": None,
    "ckpt-every": None,
    "checkpoint-every": None,
    "save-interval-steps": None,
    "exp-manager.checkpoint-callback-params.every-n-train-steps": None,  # NeMo
    "save-interval-minutes": 60.0,
    "checkpoint-interval-minutes": 60.0,
    "checkpoint-interval-seconds": 1.0,
    "checkpoint-interval-s": 1.0,
    "save-interval-seconds": 1.0,
    "save-every-minutes": 60.0,
}
_RESUME = (
    "load",  # Megatron-LM
    "resume",
    "auto-resume",
    "resume-from",
    "resume-from-checkpoint",
    "load-checkpoint",
    "auto-continue",
    "checkpoint.load-step",
    "exp-manager.resume-if-exists",  # NeMo
)
_PLACE = (
    "save",
    "output-dir",
    "checkpoint-dir",
    "checkpoint-path",
    "checkpoint.folder",
    "ckpt-dir",
    "ckpt-path",
    "save-dir",
    "save-path",
    "exp-manager.explicit-log-dir",
    "exp-manager.exp-dir",
)
_REMOTE = ("s3://", "gs://", "az://", "abfs://", "hdfs://", "msc://")
#: Folders that are one node's own by convention.
_LOCAL = re.compile(
    r"^(/tmp|/var/tmp|/dev/shm|/run|/local|/localscratch|/scratch/local|/mnt/(?:nvme|ssd|local)"
    r"|/nvme|/raid)\d*(/|$)|^\$\{?(TMPDIR|SLURM_TMPDIR|LOCAL_SCRATCH|JOBFS)\b"
)
#: File systems that every node sees the same.
_SHARED_SYSTEMS = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "wekafs", "ceph", "fuse.ceph-fuse", "cephfs", "9p"}
    | {"fuse.juicefs", "fuse.gcsfuse", "fuse.s3fs", "fuse.vast", "panfs", "orangefs", "daos"}
)
_LOCAL_SYSTEMS = frozenset({"ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "ramfs", "f2fs"})


def _first(
    launch: Launch, names: tuple[str, ...] | Mapping[str, float | None]
) -> tuple[str, Said] | None:
    for source in (launch.trainer, launch.flags):
        for name in names:
            if name in source:
                return name, source[name]
    return None


def interval(launch: Launch, step_s: float | None) -> Iterator[Finding]:
    """A checkpoint at least every five minutes."""
    check = "checkpoint-interval"
    given = _first(launch, _EVERY)
    if given is None:
        if launch.launcher or launch.trainer:
            yield found(
                check,
                Severity.WARNING,
                "no checkpoint interval is given that is known here.",
                "a checkpoint at least every five minutes; see that the program's default does",
            )
        return
    name, said = given
    try:
        count = float(said.value)
    except ValueError:
        if said.value not in {"epoch", "no"}:
            return
        yield found(
            check,
            Severity.ERROR,
            f"--{name}={said.value}: a checkpoint each epoch, or none, loses hours.",
            "a number of steps worth five minutes at most",
            said,
        )
        return
    unit_s = _EVERY[name] if _EVERY[name] is not None else step_s
    if unit_s is None:
        yield found(
            check,
            Severity.NOTE,
            f"--{name}={said.value} is in steps: how long that is cannot be told from here.",
            f"--step-seconds N tells; {said.value} steps should be five minutes at most",
            said,
        )
    elif count * unit_s > _LONGEST_S:
        unit = f" at {step_s:g} s a step" if _EVERY[name] is None else ""
        fitting = f", --{name}={max(1, int(_LONGEST_S // unit_s))}"
        yield found(
            check,
            Severity.ERROR,
            f"--{name}={said.value} is a checkpoint every {count * unit_s / 60:.1f} minutes{unit}: "
            "up to that much is computed again on every GPU.",
            f"five minutes at most{fitting}",
            said,
        )
    elif count <= 0:
        yield found(
            check,
            Severity.ERROR,
            f"--{name}={said.value} writes none.",
            "five minutes at most",
            said,
        )


def resume(launch: Launch) -> Iterator[Finding]:
    """A restarted worker finds the last checkpoint by itself."""
    if not (launch.launcher or launch.trainer):
        return
    check = "resume"
    given = _first(launch, _RESUME)
    save = launch.trainer.get("save")
    if given is None:
        severity = Severity.ERROR if save is not None else Severity.WARNING
        yield found(
            check,
            severity,
            "nothing tells the program to go on from its last checkpoint.",
            f"--load {save.value}" if save else "the program's own flag for an automatic resume",
            save,
        )
        return
    name, said = given
    if name == "load" and save is not None and said.value != save.value:
        yield found(
            check,
            Severity.ERROR,
            f"--load {said.value} is not --save {save.value}: a restart begins where the first one "
            "did.",
            f"--load {save.value}, and --pretrained-checkpoint for the beginning",
            said,
        )
    elif said.value.lower() in {"false", "no", "0", "none"}:
        yield found(
            check, Severity.ERROR, f"--{name}={said.value} starts from step 0.", f"--{name}", said
        )


def storage(launch: Launch) -> Iterator[Finding]:
    """Checkpoints where every node sees them."""
    given = _first(launch, _PLACE)
    if given is None:
        return
    name, said = given
    place = os.path.expandvars(said.value) if "TMPDIR" not in said.value else said.value
    if place.startswith(_REMOTE) or not place:
        return
    kind = _file_system(Path(place)) if place.startswith("/") else None
    if kind in _SHARED_SYSTEMS:
        return
    if _LOCAL.match(place):
        yield found(
            "shared-storage",
            Severity.ERROR,
            f"--{name} {said.value} is a folder of one node: what it saved is gone with it.",
            "a folder on storage that all nodes share",
            said,
        )
    elif kind in _LOCAL_SYSTEMS:
        yield found(
            "shared-storage",
            Severity.WARNING,
            f"--{name} {said.value} is on {kind} on this machine, which no other node sees.",
            "a folder on storage that all nodes share; fine if the nodes mount another there",
            said,
        )


def _file_system(place: Path) -> str | None:
    """The type of the file system on which an existing folder lies on this machine, or None."""
    if not place.is_dir():
        return None
    best, kind = "", None
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
        resolved = str(place.resolve())
    except OSError:
        return None
    for line in lines:
        _, mounted, found_kind, *_ = line.split()
        inside = resolved == mounted or resolved.startswith(mounted.rstrip("/") + "/")
        if inside and len(mounted) >= len(best):
            best, kind = mounted, found_kind
    return kind
