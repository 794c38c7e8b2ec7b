"""What one log file has told about its processes: which pid is which rank on which card.

The world communicator is the one with the most ranks of all that the file shows; only its ranks
are global.
"""

from typing import Any

from msgspec import Struct

__all__ = ["Process", "Processes"]

#: Processes remembered of one file; the oldest is forgotten first.
_PROCESSES_MAX = 8192


class Process(Struct, omit_defaults=True):
    """One process: its rank in its largest communicator, and its card."""

    host: str
    pid: int
    comm_rank: int | None = None
    comm_size: int = 0
    pci: str | None = None
    cuda_dev: int | None = None
    nvml_dev: int | None = None
    #: Communicator pointers of this process and the ids that all its ranks share.
    comms: dict[str, str] = {}


class Processes(Struct, omit_defaults=True):
    """The processes of one file, its world communicator, and how often its ranks restarted."""

    world_size: int = 0
    world: str | None = None
    restarts: int = 0
    known: dict[str, Process] = {}
    #: Agent's map: local rank to global rank, and worker pid to global rank.
    local_ranks: dict[int, int] = {}

    def learn(self, host: str, pid: int, fields: dict[str, Any]) -> bool:
        """Take over a communicator's Init line; true when a known rank has a new process."""
        key = f"{host}:{pid}"
        process = self.known.get(key)
        if process is None:
            process = self.known[key] = Process(host=host, pid=pid)
            if len(self.known) > _PROCESSES_MAX:
                self.known.pop(next(iter(self.known)))
        pointer, comm = fields.get("_pointer"), fields.get("comm")
        if pointer and comm:
            process.comms[pointer] = comm
        for name in ("pci", "cuda_dev", "nvml_dev"):
            if fields.get(name) is not None:
                setattr(process, name, fields[name])
        size = fields["comm_size"]
        if fields.get("_split") or size < process.comm_size:
            return False
        earlier = self.of_rank(fields["comm_rank"]) if size == self.world_size else None
        process.comm_rank, process.comm_size = fields["comm_rank"], size
        if size > self.world_size or self.world is None:
            self.world = comm
        self.world_size = max(self.world_size, size)
        if earlier is None or (earlier.host, earlier.pid) == (host, pid):
            return False
        self.known.pop(f"{earlier.host}:{earlier.pid}", None)
        return True

    def of_pid(self, host: str | None, pid: int | None) -> Process | None:
        """The process with this pid; without a host only if no other host has the same pid."""
        if pid is None:
            return None
        if host is not None:
            return self.known.get(f"{host}:{pid}")
        found = [process for process in self.known.values() if process.pid == pid]
        return found[0] if len(found) == 1 else None

    def of_rank(self, rank: int | None) -> Process | None:
        """The process of a global rank."""
        if rank is None:
            return None
        for process in self.known.values():
            if process.comm_rank == rank and process.comm_size == self.world_size:
                return process
        return None

    def rank(self, process: Process | None) -> int | None:
        """The global rank of a process, if its largest communicator is the world."""
        if process is None or process.comm_size != self.world_size:
            return None
        return process.comm_rank
