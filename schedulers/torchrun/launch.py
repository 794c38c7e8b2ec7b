"""Reads and rewrites the command line of an elastic agent."""

import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Launch"]

#: Options of torch.distributed.run that take no value; all others take one.
_BARE = frozenset(
    {"help", "h", "standalone", "m", "module", "no_python", "run_path", "virtual_local_rank"}
)
#: `torchrun`, or what stands behind `python -m`.
_LAUNCHERS = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch"})
_PORT = 29400  # of a c10d endpoint without one (torch.distributed.elastic.rendezvous)
_LAST_CALL_S = 30.0  # c10d's default


@dataclass(frozen=True, slots=True)
class Launch:
    """An agent's command line; ``options`` by name with underscores, the script's own left out."""

    argv: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        found = {name: value for name, value, _, _ in _options(self.argv)}
        object.__setattr__(self, "options", found)

    def option(self, name: str, default: str = "") -> str:
        """An option's value, from the command line or torch's variable for it."""
        return self.options.get(name, self.environ.get(f"PET_{name.upper()}", default))

    @property
    def job(self) -> str:
        """The rendezvous id."""
        return self.option("rdzv_id", "none")

    @property
    def workers(self) -> int | None:
        """Workers of this node where a number is given; None for ``gpu``, ``auto`` and ``cpu``."""
        text = self.option("nproc_per_node", "1")
        return int(text) if text.isdecimal() else None

    @property
    def conf(self) -> dict[str, str]:
        """``--rdzv-conf`` as a mapping."""
        pairs = (pair.partition("=") for pair in self.option("rdzv_conf").split(","))
        return {name.strip(): value.strip() for name, _, value in pairs if name.strip()}

    @property
    def endpoint(self) -> tuple[str, int]:
        """Host and port of the rendezvous store; the host is empty where none is named."""
        text = self.option("rdzv_endpoint")
        host, colon, port = text.rpartition(":")
        if colon and port.isdecimal():
            return host.strip("[]"), int(port)
        return text.strip("[]"), _PORT

    def stores_here(self) -> bool:
        """Whether, by what is written, this node holds the rendezvous store."""
        told = self.conf.get("is_host", "").lower()
        if told:
            return told in {"1", "true", "t", "yes", "y"}
        host, _ = self.endpoint
        return "standalone" in self.options or (bool(host) and _is_local(host))

    def warnings(self) -> Iterator[str]:
        """What makes an isolation end the job, or its return slow."""
        low, _, high = self.option("nnodes", "1:1").partition(":")
        if not high or low == high:
            yield f"--nnodes={self.option('nnodes', '1:1')} is no range: the job ends with any node"
        if self.option("max_restarts", "0") in {"", "0"}:
            yield "--max-restarts is 0: the job ends with any node, since its peers may not restart"
        if self.option("rdzv_backend", "static") == "static":
            yield "--rdzv-backend is static: a job on it does not change its size"
        if self.stores_here():
            yield (
                "the rendezvous store is on this node: isolating it ends the job; "
                "keep the store outside, with is_host=0 in --rdzv-conf of every agent"
            )
        try:
            last_call = float(self.conf.get("last_call_timeout", _LAST_CALL_S))
        except ValueError:
            return
        if last_call >= _LAST_CALL_S:
            yield f"last_call_timeout is {last_call:g} s: every change of size waits that long"

    def with_workers(self, count: int) -> "Launch":
        """The same with a number of workers, where one was given; otherwise torch counts cards."""
        if self.workers is None:
            return self
        argv = list(self.argv)
        for name, _, at, beside in _options(self.argv):
            if name == "nproc_per_node":
                flag = argv[at].partition("=")[0]
                argv[at : at + 1 + beside] = [f"{flag}={count}"]
                return Launch(tuple(argv), self.environ)
        # Given by a variable: a flag before the others wins over it.
        argv.insert(_first(self.argv), f"--nproc_per_node={count}")
        return Launch(tuple(argv), self.environ)


def _first(argv: Sequence[str]) -> int:
    """Where the agent's options begin: behind its name, whatever stands before that."""
    names = (at for at, word in enumerate(argv) if word.rpartition("/")[2] in _LAUNCHERS)
    return next(names, 0) + 1


def _options(argv: Sequence[str]) -> Iterator[tuple[str, str, int, bool]]:
    """The agent's options: name, value, place, and whether the value stands in the next word."""
    at = _first(argv)
    while at < len(argv) and re.match(r"-\w|--\w", argv[at]):
        flag, equals, value = argv[at].partition("=")
        name = flag.lstrip("-").replace("-", "_")
        beside = not equals and name not in _BARE and at + 1 < len(argv)
        yield name, argv[at + 1] if beside else value, at, beside
        at += 1 + beside


def _is_local(host: str) -> bool:
    """Whether an address of this machine, by trying to bind to it."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    for family, kind, _, _, address in found:
        try:
            with socket.socket(family, kind) as probe:
                probe.bind(address)
        except OSError:
            continue
        return True
    return False
