# ruff: noqa: INP001 (run as a file, not a package)
"""The smallest elastic training loop: one tensor, gloo, a checkpoint every few steps.

Settings come from variables, since a launcher's flags are not its own: ``FOLDER`` has the
checkpoint, the log of steps and, while nothing may be written, a file ``hold``.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]

FOLDER = Path(os.environ["FOLDER"])
STEPS = int(os.environ.get("STEPS", "1000000"))
STEP_S = float(os.environ.get("STEP_S", "0.05"))
EVERY = int(os.environ.get("CHECKPOINT_EVERY", "20"))
CHECKPOINT = FOLDER / "checkpoint.pt"


def _tell(**words: Any) -> None:  # noqa: ANN401
    """Append one line to the log of steps, whole."""
    line = json.dumps({"at": time.time(), "node": os.environ.get("NODE", ""), **words}) + "\n"
    with (FOLDER / "steps.jsonl").open("a") as log:
        log.write(line)


def _save(step: int, weights: Any) -> None:  # noqa: ANN401
    """Write a checkpoint that is there whole or not at all."""
    beside = CHECKPOINT.with_suffix(".new")
    torch.save({"step": step, "weights": weights}, beside)
    beside.replace(CHECKPOINT)


def main() -> None:
    """Train from the last checkpoint until the last step."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    step, weights = 0, torch.zeros(4)
    if CHECKPOINT.exists():
        kept = torch.load(CHECKPOINT)
        step, weights = kept["step"], kept["weights"]
    cards = os.environ.get("CUDA_VISIBLE_DEVICES")
    _tell(what="resume", rank=rank, world=world, step=step, pid=os.getpid(), cards=cards)
    while step < STEPS:
        gradient = torch.ones(4) / world
        dist.all_reduce(gradient)
        weights += gradient
        step += 1
        if rank == 0:
            if step % EVERY == 0 and not (FOLDER / "hold").exists():
                _save(step, weights)
            _tell(what="step", world=world, step=step)
        time.sleep(STEP_S)
    _tell(what="done", rank=rank, world=world, step=step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
