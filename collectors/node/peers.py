"""Asks the fabric which switch port each of this node's InfiniBand ports is cabled to.

Both the port's state and the peer are asked of firmware, which may take its time or never answer:
so it is done on a thread that nobody waits for.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from collectors.node.hca import IB
from evidence.records import HcaIdentity

__all__ = ["Peer", "Peers"]

_LOG = logging.getLogger(__name__)

#: The switch's GUID, its port, and its name where it has one.
Peer = tuple[str, int, str | None]
_Port = tuple[str, int]

#: Between two looks at the ports' states, and how long what the fabric said is believed: a switch
#: may be renamed, or replaced behind an optical path that did not drop.
_LOOK_S = 10.0
_BELIEVE_LOOKS = 90


class Peers:
    """The far ends of this node's cables as last heard; `of` never waits.

    ``ask(device, port)`` returns a peer, None where there is none to be had, or raises OSError
    (typically: no access to ``/dev/infiniband/umad*``).
    """

    def __init__(
        self,
        ask: Callable[[str, int], Peer | None],
        sysfs: Path = Path("/sys"),
        *,
        look_s: float = _LOOK_S,
    ) -> None:
        #: Called, from the thread, when a peer became known or another one.
        self.on_change: Callable[[], None] = lambda: None
        self._ask = ask
        self._ports_of = sysfs / "class" / "infiniband"
        self._look_s = look_s
        self._wanted: frozenset[_Port] = frozenset()
        self._known: Mapping[_Port, Peer] = {}
        self._states: dict[_Port, tuple[str, int]] = {}
        self._said = ""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def of(self, hcas: Iterable[HcaIdentity]) -> Mapping[_Port, Peer]:
        """Return the known peers by (device, port) and keep asking for those of these adapters."""
        self._wanted = frozenset((hca.name, hca.port) for hca in hcas if hca.link_layer == IB)
        if self._wanted and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hca-peers", daemon=True)
            self._thread.start()
        return self._known

    def close(self) -> None:
        """Let the thread end; one that is stuck in a call ends with the process."""
        self._stop.set()

    def _run(self) -> None:
        looks = 0
        while not self._stop.is_set():
            try:
                self._look(looks)
            except Exception as error:  # noqa: BLE001 (the thread must live as long as the process)
                self._say(f"{type(error).__name__}: {error}")
            looks += 1
            self._stop.wait(self._look_s)

    def _look(self, looks: int) -> None:
        """Ask anew for the ports whose link changed, and for all that were not asked for long."""
        known = {port: peer for port, peer in self._known.items() if port in self._wanted}
        for port in sorted(self._wanted):
            state = self._state(port)
            before, asked = self._states.get(port, ("", 0))
            if state == before and looks - asked < _BELIEVE_LOOKS:
                continue
            self._states[port] = (state, looks)
            try:
                peer = self._ask(*port)
            except OSError as error:
                self._say(str(error))
                peer = None
            # A link that is down does not unplug its cable: the peer stays until another is seen.
            if peer is not None:
                known[port] = peer
        if known != self._known:
            self._known = known
            self.on_change()

    def _state(self, port: _Port) -> str:
        """What changes when a cable is moved: the link's state, its LID, how often it went down."""
        folder = self._ports_of / port[0] / "ports" / str(port[1])
        told = []
        for name in ("state", "lid", "counters/link_downed"):
            try:
                told.append((folder / name).read_text(encoding="ascii").strip())
            except (OSError, UnicodeDecodeError):
                told.append("?")
        return " ".join(told)

    def _say(self, sentence: str) -> None:
        if sentence != self._said:
            self._said = sentence
            _LOG.warning("the switch ports of this node's adapters cannot be asked: %s", sentence)
