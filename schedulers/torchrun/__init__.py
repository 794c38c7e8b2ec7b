"""torchrun elastic: a supervisor beside a node's agent, which stops it, shrinks it and keeps it."""

from schedulers.torchrun.config import TorchrunConfig
from schedulers.torchrun.run import EVICTED, supervise

__all__ = ["EVICTED", "TorchrunConfig", "supervise"]
