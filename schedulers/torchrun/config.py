"""Settings of the supervisor beside one node's elastic agent."""

import re
import shlex
import signal
import socket
from dataclasses import dataclass, field

__all__ = ["TorchrunConfig"]

# hgx-0412.train.example
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class TorchrunConfig:
    """One node.

    ``host`` is the node's name in commands (the machine's unless set), ``rack`` its rack. At level
    `drain` the agent is stopped when ``checkpoint_glob`` matches a file that is new or changed and
    has been still for ``checkpoint_settle_s``, at the latest after ``drain_patience_s``.
    ``checkpoint_signal`` (to the workers) and ``checkpoint_hook`` (a command line) ask for a
    checkpoint; without a glob the hook's exit code 0 says that it is written.

    An agent has ``stop_within_s`` after SIGTERM, then it and all its workers are killed. With
    ``shrink`` it is started again without a bad card, with ``rejoin`` after a release. ``cards`` is
    the command line that lists cards as ``index, uuid, PCI address``. ``start_within_s`` is how
    long the desired states may take to be read before the agent is started. ``allocation`` tells
    the job as context; None: unless Slurm, which tells it too, started us.
    """

    host: str = field(default_factory=socket.gethostname)
    rack: str | None = None
    checkpoint_glob: str = ""
    checkpoint_settle_s: float = 1.0
    checkpoint_hook: str = ""
    checkpoint_signal: str = ""
    drain_patience_s: float = 300.0
    stop_within_s: float = 15.0
    shrink: bool = False
    rejoin: bool = False
    cards: str = "nvidia-smi --query-gpu=index,uuid,pci.bus_id --format=csv,noheader"
    start_within_s: float = 10.0
    disable_shared_store: bool = True
    allocation: bool | None = None

    def __post_init__(self) -> None:
        if not _HOST.fullmatch(self.host):
            raise ValueError(f"host {self.host!r} is no host's name")
        if not self.stop_within_s > 0:
            raise ValueError("stop_within_s must be more than 0 seconds")
        for name in ("checkpoint_settle_s", "drain_patience_s", "start_within_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be 0 seconds or more")
        if self.checkpoint_signal:
            _ = self.signal
        for name in ("checkpoint_hook", "cards"):
            try:
                shlex.split(getattr(self, name))
            except ValueError as error:
                raise ValueError(f"{name} is no command line: {error}") from None

    @property
    def signal(self) -> signal.Signals | None:
        """What asks workers for a checkpoint."""
        if not self.checkpoint_signal:
            return None
        name = f"SIG{self.checkpoint_signal.upper().removeprefix('SIG')}"
        try:
            return signal.Signals[name]
        except KeyError:
            raise ValueError(f"checkpoint_signal {self.checkpoint_signal!r} is no signal") from None
