"""What one log file has told about its processes: which pid is which rank on which card.

The world communicator is the one with the most ranks of all that the file shows; only its ranks
are global. One process may drive several cards, and two containers of one file may have the same
host name and pid: then the printing thread's device decides, or nobody is named.
"""

from typing import Any

from msgspec import Struct

__all__ = ["Card", "Process", "Processes"]

#: Processes remembered of one file; the oldest is forgotten first.
_PROCESSES_MAX = 8192
#: Adapters remembered of one process.
_ADAPTERS_MAX = 64


class Card(Struct, frozen=True, omit_defaults=True):
    """One rank of a process and its card; ``rank`` None: two processes claim the same."""

    rank: int | None = None
    pci: str | None = None
    nvml_dev: int | None = None


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
    #: The id of its largest communicator, and there its ranks by their CUDA device.
    comm: str | None = None
    cards: dict[int, Card] = {}
    #: Whether it has more than one rank there.
    shared: bool = False
    #: Network adapters as NCCL numbers them: `mlx5_0:1`, or a merged one's name.
    adapters: dict[int, str] = {}

    def joins(self, fields: dict[str, Any]) -> None:
        """Take over its rank in a communicator that is not smaller than those before."""
        rank, size, comm = fields["comm_rank"], fields["comm_size"], fields.get("comm")
        if size != self.comm_size or comm != self.comm:
            self.cards, self.shared, self.comm = {}, False, comm
        elif rank != self.comm_rank:
            self.shared = True
        self.comm_rank, self.comm_size = rank, size
        device = fields.get("cuda_dev")
        if device is None:
            return
        known = self.cards.get(device)
        if known is not None and known.rank != rank:
            self.cards[device] = Card()
        else:
            self.cards[device] = Card(rank, fields.get("pci"), fields.get("nvml_dev"))

    def card(self, device: int | None) -> Card:
        """The rank and the card that a line of this process is about.

        ``device`` is the one current in the printing thread, or None where that says nothing.
        """
        if not self.shared:
            return Card(self.comm_rank, self.pci, self.nvml_dev)
        return self.cards.get(-1 if device is None else device, Card())

    def has(self, rank: int) -> bool:
        """Whether a rank of its largest communicator is its own."""
        if not self.shared:
            return self.comm_rank == rank
        return any(card.rank == rank for card in self.cards.values())


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
        process = self._process(host, pid)
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
        process.joins(fields)
        if size > self.world_size or self.world is None:
            self.world = comm
        self.world_size = max(self.world_size, size)
        if earlier is None or (earlier.host, earlier.pid) == (host, pid):
            return False
        self.known.pop(f"{earlier.host}:{earlier.pid}", None)
        return True

    def learn_adapters(self, host: str, pid: int, adapters: dict[int, str]) -> None:
        """Take over how a process numbers its network adapters."""
        process = self._process(host, pid)
        if len(process.adapters) + len(adapters) <= _ADAPTERS_MAX:
            process.adapters |= adapters

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
            if process.comm_size == self.world_size and process.has(rank):
                return process
        return None

    def rank(self, process: Process | None, device: int | None) -> int | None:
        """The global rank of a line of this process, if its largest communicator is the world."""
        if process is None or process.comm_size != self.world_size:
            return None
        return process.card(device).rank

    def _process(self, host: str, pid: int) -> Process:
        key = f"{host}:{pid}"
        process = self.known.get(key)
        if process is None:
            process = self.known[key] = Process(host=host, pid=pid)
            if len(self.known) > _PROCESSES_MAX:
                self.known.pop(next(iter(self.known)))
        return process
