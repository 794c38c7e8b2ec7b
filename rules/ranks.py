"""Which rank runs where: joins what training logs say about one rank, process and card.

NCCL names a rank inside one communicator, PyTorch the global rank, the launcher a local rank and a
pid; only the world communicator (the largest) counts ranks globally, and only its busId is also
known to the kernel.
"""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from evidence.decisions import Domain, DomainKind
from evidence.records import NcclKind, NcclRecord

__all__ = ["RANKS_MAX", "Place", "Roster", "host_of", "is_default_group", "peer_name"]


_LOOPBACK = ("127.", "localhost", "::1")
#: The owner of an address that several hosts claim.
_NOBODY = ""
_ADDRESSES_MAX = 8192
#: One process makes few communicators of all ranks; of more, none is known to be new.
_COMMS_MAX = 16
#: The ranks that are known one by one are the first ones; of the others, only that they are.
_PLACES_MAX = 8192
#: No job has more ranks: a mangled line that says so is not believed.
RANKS_MAX = 1 << 17

#: Global ranks by ("pid" or "local_rank", host, number).
Processes = dict[tuple[str, str | None, int], int]


class Place(Struct, frozen=True, array_like=True):
    """Where one global rank runs; a name nobody told is None."""

    host: str | None = None
    pid: int | None = None
    pci: str | None = None
    index: int | None = None
    local_rank: int | None = None


class Roster(Struct, frozen=True, omit_defaults=True):
    """The ranks of one attempt; ``world_size`` is None until a communicator line told it.

    ``addresses`` are hosts by the addresses that their processes printed; one that several hosts
    claim (a bridge's, a container's) belongs to none. ``comms`` are the communicators of all ranks.
    """

    world_size: int | None = None
    places: dict[int, Place] = {}
    addresses: dict[str, str] = {}
    comms: tuple[str, ...] = ()

    def learn(self, record: NcclRecord) -> "Roster":
        """Take over what one line tells; the same object back when it is nothing new."""
        if record.kind is NcclKind.COMM_INIT:
            return self._learn_communicator(record)
        if record.kind is NcclKind.RANK_MAP:
            return self._learn_agent(record)
        if record.kind is NcclKind.SETUP:
            return self._learn_address(record)
        if record.rank is not None:
            told = Place(host=record.host, pid=record.pid, local_rank=record.local_rank)
            return self.with_places({record.rank: told}, newest=False)
        return self

    def _learn_communicator(self, record: NcclRecord) -> "Roster":
        rank, size = record.comm_rank, record.comm_size
        known = self.world_size or 0
        if rank is None or size is None or not known <= size <= RANKS_MAX:
            return self
        told = Place(host=record.host, pid=record.pid, pci=record.pci, index=record.nvml_dev)
        roster = self
        if size > known:
            # What a smaller communicator said about ranks was about its own numbering.
            kept = {r: replace(p, pci=None, index=None, pid=None) for r, p in self.places.items()}
            roster = replace(self, world_size=size, places=kept, comms=())
        comm = record.comm
        if comm is not None and comm not in roster.comms and len(roster.comms) < _COMMS_MAX:
            roster = replace(roster, comms=tuple(sorted((*roster.comms, comm))))
        return roster.with_places({rank: told}, newest=True)

    def _learn_agent(self, record: NcclRecord) -> "Roster":
        told = {
            rank: Place(host=record.host, local_rank=local)
            for local, rank in enumerate(record.ranks)
        }
        roster = self.with_places(told, newest=False)
        if record.comm_size and RANKS_MAX >= record.comm_size > (roster.world_size or 0):
            roster = replace(roster, world_size=record.comm_size)
        return roster

    def _learn_address(self, record: NcclRecord) -> "Roster":
        address = record.address
        if record.host is None or address is None or record.phase not in ("bootstrap", "network"):
            return self
        known = self.addresses.get(address)
        owner = record.host if known in (None, record.host) else _NOBODY
        if known == owner or address.startswith(_LOOPBACK) or len(self.addresses) >= _ADDRESSES_MAX:
            return self
        return replace(self, addresses={**self.addresses, address: owner})

    def host_at(self, peer: str | None, hosts: Iterable[str]) -> str | None:
        """The host that a printed peer is: one of ``hosts`` by name, or the owner of an address."""
        name = peer_name(peer)
        if name is None:
            return None
        return host_of(peer, hosts) or self.addresses.get(name) or None

    def with_places(self, told: dict[int, Place], *, newest: bool) -> "Roster":
        """Merge what is told about some ranks; ``newest``: it wins over what was known."""
        changed = {}
        for rank, place in told.items():
            known = self.places.get(rank, Place())
            first, second = (place, known) if newest else (known, place)
            merged = Place(
                *(
                    getattr(first, name) if getattr(first, name) is not None else fallback
                    for name, fallback in (
                        (name, getattr(second, name)) for name in Place.__struct_fields__
                    )
                )
            )
            if merged != known and rank < _PLACES_MAX:
                changed[rank] = merged
        return replace(self, places=self.places | changed) if changed else self

    def restarted(self, record: NcclRecord) -> bool:
        """Whether a communicator line shows a new process for a rank whose process was known."""
        if record.kind is not NcclKind.COMM_INIT or record.comm_size != self.world_size:
            return False
        known = self.places.get(-1 if record.comm_rank is None else record.comm_rank)
        return (
            known is not None
            and known.pid is not None
            and record.pid is not None
            and (known.host, known.pid) != (record.host, record.pid)
        )

    @property
    def has_cards(self) -> bool:
        """Whether communicator lines told of processes: they would tell of new ones, too."""
        return any(
            place.pci is not None or place.index is not None for place in self.places.values()
        )

    def rejoined(self, record: NcclRecord) -> bool:
        """Whether a communicator line after a failure shows that the ranks began anew.

        Either all ranks in one that is new, though its process has the same number (in a
        container), or a process that is none of the ranks' where all of those are known.
        """
        size, rank = record.comm_size, record.comm_rank
        if size is None or rank is None or record.pid is None or not self.world_size:
            return False
        process = (record.host, record.pid)
        if size == self.world_size:
            known = self.places.get(rank)
            mine = known is not None and (known.host, known.pid) == process
            unseen = record.comm is not None and record.comm not in self.comms
            return mine and unseen and 0 < len(self.comms) < _COMMS_MAX
        told = {(place.host, place.pid) for place in self.places.values() if place.pid is not None}
        whole = sum(place.pid is not None for place in self.places.values()) == self.world_size
        return whole and process not in told

    def processes(self) -> Processes:
        """Ranks by what a line without a rank tells of its process."""
        return {
            (name, place.host, number): rank
            for rank, place in self.places.items()
            for name, number in (("pid", place.pid), ("local_rank", place.local_rank))
            if number is not None and place.host is not None
        }

    def rank_of(
        self, record: NcclRecord, processes: Processes, *, prefixless: bool = False
    ) -> int | None:
        """The global rank of the process that printed a line, if it can be told.

        ``processes`` is what `processes` gives, made once for many lines.
        ``prefixless``: no line of this attempt has a ``[rankN]:`` prefix (torch before 2.2), so
        the bracketed rank of a line without a group is all there is.
        """
        if record.rank is not None:
            return record.rank
        if record.comm_rank is not None and record.comm_size == self.world_size is not None:
            return record.comm_rank
        for name in ("pid", "local_rank"):
            number = getattr(record, name)
            if number is not None and (name, record.host, number) in processes:
                return processes[name, record.host, number]
        if record.comm_rank is not None and (
            (record.group is not None and is_default_group(record)) or prefixless
        ):
            return record.comm_rank
        return None

    def gpu(self, rank: int) -> Domain | None:
        """The card of a rank; None when no line told which one it is."""
        place = self.places.get(rank)
        if place is None or place.host is None or (place.pci is None and place.index is None):
            return None
        return Domain(
            kind=DomainKind.GPU, host=place.host, pci=place.pci, index=place.index, rank=rank
        )

    def host(self, rank: int) -> str | None:
        """The host of a rank."""
        place = self.places.get(rank)
        return None if place is None else place.host

    def hosts(self) -> dict[str, list[int]]:
        """Ranks by host, both in order."""
        found: dict[str, list[int]] = {}
        for rank in sorted(self.places):
            if host := self.places[rank].host:
                found.setdefault(host, []).append(rank)
        return dict(sorted(found.items()))

    def whole_host(self, ranks: Iterable[int]) -> str | None:
        """The host whose ranks are exactly these, when it has several."""
        wanted = sorted(ranks)
        for host, own in self.hosts().items():
            if own == wanted and len(own) > 1:
                return host
        return None


def is_default_group(record: NcclRecord) -> bool:
    """Whether a line speaks of the group of all ranks (as far as it tells)."""
    if record.group_desc:
        return record.group_desc == "default_pg"
    return record.group in (None, "", "0")


def peer_name(peer: str | None) -> str | None:
    """The bare name or address of a printed peer; None for a loopback or a local rank.

    ``node48<37948>`` and ``[node48]:40027`` are ``node48``.
    """
    if not peer or peer.startswith("localRank"):
        return None
    name = peer.strip("[").partition("<")[0].partition("]")[0].partition("%")[0]
    if not name or name.startswith(_LOOPBACK):
        return None
    # NCCL and the kernel log know a host by its short name; an address stays whole.
    return name if name[0].isdigit() else name.partition(".")[0]


def host_of(peer: str | None, known: Iterable[str]) -> str | None:
    """The known host that a printed peer names, its DNS domain apart."""
    name = peer_name(peer)
    if name is None:
        return None
    for host in known:
        if name in (host, host.partition(".")[0]):
            return host
    return None
