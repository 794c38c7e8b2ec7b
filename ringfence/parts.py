"""How each part is started as a process of its own: its command line, and where its files lie."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Parts"]


@dataclass(frozen=True, slots=True)
class Parts:
    """Command lines of the parts of one installation; ``config`` is the settings file they read."""

    data: Path
    bootstrap: str
    config: Path | None = None

    def _ringfence(self, *arguments: str) -> tuple[str, ...]:
        config = () if self.config is None else ("--config", str(self.config))
        return (sys.executable, "-m", "ringfence", *config, "--data", str(self.data), *arguments)

    def worker(self) -> tuple[str, ...]:
        """The Faust worker."""
        return self._ringfence("worker", "--bootstrap", self.bootstrap)

    def sink(self) -> tuple[str, ...]:
        """The warehouse sink."""
        return self._ringfence("sink", "--bootstrap", self.bootstrap)

    def agent(self, *flags: str) -> tuple[str, ...]:
        """A node's agent."""
        return self._ringfence("agent", "--bootstrap", self.bootstrap, *flags)

    def fabric_agent(self) -> tuple[str, ...]:
        """The agent of an InfiniBand subnet."""
        return self._ringfence("fabric-agent", "--bootstrap", self.bootstrap)

    def scheduler_slurm(self) -> tuple[str, ...]:
        """The scheduler that drains nodes of a Slurm cluster."""
        return self._ringfence("scheduler", "slurm", "--bootstrap", self.bootstrap)

    def scheduler_exec(self, program: Sequence[str]) -> tuple[str, ...]:
        """The scheduler that runs a program."""
        return self._ringfence(
            "scheduler", "exec", "--bootstrap", self.bootstrap, "--", *program
        )  # fmt: skip
