"""A launcher in torchrun's place: tells how it was started, and starts a worker.

Modes: ``well`` ends on SIGTERM with its worker, as torchrun does; ``stubborn`` hears no SIGTERM;
``careless`` dies and leaves its worker. The worker has a session and no environment of its own.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

folder, mode = Path(os.environ["FOLDER"]), os.environ.get("MODE", "well")
code = int(os.environ.get("CODE", "0"))
_SLEEPER = """
import signal, time
signal.signal(signal.SIGUSR1, lambda *_: open("{folder}/asked", "w"))
open("{folder}/ready", "w")
time.sleep(600)
"""
(folder / "ready").unlink(missing_ok=True)
worker = subprocess.Popen(
    [sys.executable, "-c", _SLEEPER.format(folder=folder)], start_new_session=True, env={}
)
while not (folder / "ready").exists():
    time.sleep(0.01)


def end(_number: int, _frame: object) -> None:
    if mode == "well":
        worker.kill()
        worker.wait()
    sys.exit(1)


signal.signal(signal.SIGTERM, signal.SIG_IGN if mode == "stubborn" else end)
told = {
    "pid": os.getpid(),
    "worker": worker.pid,
    "argv": sys.argv[1:],
    "cards": os.environ.get("CUDA_VISIBLE_DEVICES"),
    "share": os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE"),
}
with (folder / "starts").open("a") as starts:
    starts.write(json.dumps(told) + "\n")
while not (folder / "end").exists():
    time.sleep(0.02)
if mode == "well":
    worker.kill()
sys.exit(code)
