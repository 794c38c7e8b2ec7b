# ruff: noqa: INP001 (run as a file, not a package)
"""A rendezvous store outside the nodes: ``store.py HOST PORT``, beside the controller of a job.

Agents use it with ``--rdzv-backend=c10d --rdzv-endpoint=HOST:PORT`` and ``is_host=0`` in
``--rdzv-conf``. It keeps nothing on disk: a job does not outlive it.
"""

import signal
import sys

from torch.distributed import TCPStore  # type: ignore[import-not-found, unused-ignore]

if __name__ == "__main__":
    held = TCPStore(sys.argv[1], int(sys.argv[2]), is_master=True)
    signal.pause()
