"""Asks nodes of an InfiniBand subnet by management datagrams, in process, many at a time.

libibumad (what libibmad, perfquery and opensm stand on) is called through ctypes: libibmad's own
calls wait for each answer before they send the next question, which a fabric of thousands of ports
has no time for. Only Get is ever sent: nothing in the fabric is changed, no counter is cleared.
"""

import ctypes
import errno
import os
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from collectors.collector import CollectorError, Unavailable
from collectors.fabric.mad_attributes import node_description, node_info
from collectors.fabric.words import guid_text

__all__ = [
    "CLASS_PORT_INFO",
    "NODE_DESCRIPTION",
    "NODE_INFO",
    "PORT_COUNTERS",
    "PORT_COUNTERS_EXTENDED",
    "PORT_INFO",
    "RCV_ERROR_DETAILS",
    "XMIT_DISCARD_DETAILS",
    "MadPort",
    "Query",
    "peer_of",
    "performance",
    "subnet",
]

#: Attributes of subnet management (IBA 14.2.5) and of performance management (IBA 16.1).
NODE_DESCRIPTION, NODE_INFO, PORT_INFO = 0x10, 0x11, 0x15
CLASS_PORT_INFO, PORT_COUNTERS, PORT_COUNTERS_EXTENDED = 0x01, 0x12, 0x1D
RCV_ERROR_DETAILS, XMIT_DISCARD_DETAILS = 0x15, 0x16

_SUBNET, _DIRECTED, _PERFORMANCE = 0x01, 0x81, 0x04
_GET = 0x01
_PERMISSIVE_LID = 0xFFFF
_QP1_KEY = 0x80010000
_HOPS = 63

# struct ib_user_mad with pkey_index: agent, status, timeout, retries, length in the machine's
# order; QP, key, LID, service level and the rest of the address in the wire's.
_HEADER = struct.Struct("=5I")
_ADDRESS = struct.Struct(">2IH6B16sI2x6x")
_HEAD = _HEADER.size + _ADDRESS.size
_MAD = 256
# Base version, class, class version, method, status, hops, transaction, attribute, modifier.
_COMMON = struct.Struct(">4BHBBQHxxI")
_ROUTE = struct.Struct(">Q2H")
_STATUS_AT, _TRANSACTION_AT = _HEAD + 4, _HEAD + 8
_DATA_AT = _HEAD + 64
_NO_ERROR_MASK = 0x7FFF  # the first bit is the direction of a directed route

#: An unanswered question stops holding one of the places this long after it was sent, so that a
#: dead rack does not hold up the living; it is still waited for.
_PATIENCE_S = 0.02
#: How much later than the kernel's own time limit an answer is given up.
_GRACE_S = 0.2
_LEFT_OUT = "the time of this sweep was over"
_DEVICES = Path("/dev/infiniband")


@dataclass(frozen=True, slots=True)
class Query:
    """One question, ready to send but for its transaction number; made by the functions below."""

    mad_class: int
    packet: bytes


def subnet(attribute: int, modifier: int = 0, *, to: int | tuple[int, ...]) -> Query:
    """A subnet management question to a LID, or along a directed route (one port a hop)."""
    if isinstance(to, int):
        mad = _COMMON.pack(1, _SUBNET, 1, _GET, 0, 0, 0, 0, attribute, modifier)
        return Query(_SUBNET, _address(to, 0, 0) + mad.ljust(_MAD, b"\0"))
    if len(to) > _HOPS:
        raise ValueError(f"a directed route has at most {_HOPS} hops, not {len(to)}")
    mad = _COMMON.pack(1, _DIRECTED, 1, _GET, 0, 0, len(to), 0, attribute, modifier)
    mad += _ROUTE.pack(0, _PERMISSIVE_LID, _PERMISSIVE_LID)
    mad = mad.ljust(128, b"\0") + bytes((0, *to))
    return Query(_DIRECTED, _address(_PERMISSIVE_LID, 0, 0) + mad.ljust(_MAD, b"\0"))


def performance(attribute: int, lid: int, port: int = 0) -> Query:
    """A performance management question about one port to the LID that answers for it."""
    mad = _COMMON.pack(1, _PERFORMANCE, 1, _GET, 0, 0, 0, 0, attribute, 0)
    mad = mad.ljust(64, b"\0") + bytes((0, port))
    return Query(_PERFORMANCE, _address(lid, 1, _QP1_KEY) + mad.ljust(_MAD, b"\0"))


class MadPort:
    """An open port of this machine, through which the subnet is asked; one thread may use it.

    A question is sent ``tries`` times, ``timeout_ms`` apart, before it counts as unanswered;
    ``outstanding`` are under way at once (subnet management has no flow control: too many are
    dropped by switches, and counted there). ``device`` None takes the first active port.
    Raises Unavailable with one sentence when there is no library, no device or no permission.
    """

    def __init__(
        self,
        device: str | None = None,
        port: int = 0,
        *,
        timeout_ms: int = 200,
        tries: int = 2,
        outstanding: int = 4,
        devices: Path = _DEVICES,
    ) -> None:
        self._library = _load()
        self._timeout_ms, self._retries = timeout_ms, tries - 1
        self._outstanding = outstanding
        self._give_up_s = timeout_ms / 1000 * tries + _GRACE_S
        self._number = int.from_bytes(os.urandom(3), "big")
        self._out = ctypes.create_string_buffer(_HEAD + _MAD)
        self._in = ctypes.create_string_buffer(_HEAD + _MAD)
        self._length = ctypes.c_int()
        self._fd = -1
        self._agents: dict[int, int] = {}
        self._open(device, port, devices)

    def ask(self, queries: Sequence[Query], until: float | None = None) -> list[bytes | str]:
        """Return the data of each answer, in order, or the reason why there is none.

        ``until`` is in monotonic seconds: what is not answered then is left out.
        Raises CollectorError when the device went away.
        """
        answers: list[bytes | str] = [_LEFT_OUT] * len(queries)
        waiting: dict[int, tuple[int, float]] = {}
        holding: dict[int, float] = {}
        sent = 0
        while sent < len(queries) or waiting:
            now = time.monotonic()
            if until is not None and now >= until:
                break
            _let_go(holding, now - _PATIENCE_S)
            if sent < len(queries) and len(holding) < self._outstanding:
                number = self._send(queries[sent])
                waiting[number] = (sent, now)
                holding[number] = now
                sent += 1
                continue
            self._receive(answers, waiting, holding)
            self._give_up(answers, waiting, time.monotonic())
        return answers

    def close(self) -> None:
        """Close the port."""
        if self._fd >= 0:
            self._library.umad_close_port(self._fd)
            self._fd = -1

    def _open(self, device: str | None, port: int, devices: Path) -> None:
        # umad_init() is left out: opening a port compares the ABI version too.
        self._fd = self._library.umad_open_port(device.encode() if device else None, port)
        if self._fd < 0:
            raise Unavailable(_why(device, -self._fd, devices))
        if self._library.umad_size() != _HEAD:
            self.close()
            raise Unavailable("the kernel's MAD interface is too old: it knows no partition keys")
        for mad_class in (_SUBNET, _DIRECTED, _PERFORMANCE):
            agent = self._library.umad_register(self._fd, mad_class, 1, 0, None)
            if agent < 0:
                self.close()
                raise Unavailable(f"the InfiniBand port takes no MADs: {os.strerror(-agent)}")
            self._agents[mad_class] = agent

    def _send(self, query: Query) -> int:
        self._number = number = (self._number + 1) & 0xFFFFFFFF
        ctypes.memmove(self._out, query.packet, len(query.packet))
        struct.pack_into(">Q", self._out, _TRANSACTION_AT, number)
        agent = self._agents[query.mad_class]
        failed = self._library.umad_send(
            self._fd, agent, self._out, _MAD, self._timeout_ms, self._retries
        )
        if failed < 0:
            raise CollectorError(f"a MAD could not be sent: {os.strerror(ctypes.get_errno())}")
        return number

    def _receive(
        self,
        answers: list[bytes | str],
        waiting: dict[int, tuple[int, float]],
        holding: dict[int, float],
    ) -> None:
        """Wait a moment for one answer and file it."""
        self._length.value = _MAD
        agent = self._library.umad_recv(
            self._fd, self._in, ctypes.byref(self._length), int(_PATIENCE_S * 1000)
        )
        if agent < 0:
            if -agent in (errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR):
                return
            raise CollectorError(f"the InfiniBand port went away: {os.strerror(-agent)}")
        (number,) = struct.unpack_from(">I", self._in, _TRANSACTION_AT + 4)
        found = waiting.pop(number, None)
        holding.pop(number, None)
        if found is not None:  # else it was given up before
            answers[found[0]] = self._answer()

    def _answer(self) -> bytes | str:
        (failed,) = struct.unpack_from("=I", self._in, 4)
        if failed:
            return self._silence() if failed == errno.ETIMEDOUT else os.strerror(failed)
        (status,) = struct.unpack_from(">H", self._in, _STATUS_AT)
        if status & _NO_ERROR_MASK:
            return f"refused with MAD status 0x{status & _NO_ERROR_MASK:04x}"
        return ctypes.string_at(ctypes.addressof(self._in) + _DATA_AT, _HEAD + _MAD - _DATA_AT)

    def _give_up(
        self, answers: list[bytes | str], waiting: dict[int, tuple[int, float]], now: float
    ) -> None:
        """The kernel ends a question itself; this is for when it does not."""
        while waiting:
            number, (at, sent) = next(iter(waiting.items()))
            if now - sent < self._give_up_s:
                break
            answers[at] = self._silence()
            del waiting[number]

    def _silence(self) -> str:
        return f"no answer, asked {self._retries + 1} times in {self._timeout_ms} ms each"


def peer_of(device: str, port: int) -> tuple[str, int, str | None] | None:
    """The switch at the other end of a local port's cable: its GUID, its port, its description.

    Asks one hop away; takes up to a second when nobody answers, so never call it where nothing may
    block. None when the peer is no switch, does not answer, or this process may not ask.
    """
    try:
        mads = MadPort(device, port)
    except CollectorError:
        return None
    try:
        info, name = mads.ask([subnet(NODE_INFO, to=(port,)), subnet(NODE_DESCRIPTION, to=(port,))])
        if isinstance(info, str):
            return None
        peer = node_info(info)
    except CollectorError:
        return None
    finally:
        mads.close()
    if not peer.is_switch:
        return None
    said = None if isinstance(name, str) else node_description(name)
    return guid_text(peer.guid), peer.local_port, said


def _address(lid: int, queue_pair: int, key: int) -> bytes:
    head = _HEADER.pack(0, 0, 0, 0, 0)
    return head + _ADDRESS.pack(queue_pair, key, lid, 0, 0, 0, 0, 0, 0, b"", 0)


def _let_go(holding: dict[int, float], before: float) -> None:
    while holding:
        number, sent = next(iter(holding.items()))
        if sent > before:
            break
        del holding[number]


def _load() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libibumad.so.3", use_errno=True)
    except OSError as error:
        raise Unavailable(
            "libibumad.so.3 is not installed (Debian: libibumad3, RHEL: libibumad)"
        ) from error
    library.umad_open_port.argtypes = [ctypes.c_char_p, ctypes.c_int]
    library.umad_register.argtypes = [
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_uint8,
        ctypes.c_void_p,
    ]
    library.umad_send.argtypes = [
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
    ]
    library.umad_recv.argtypes = [
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_int),
        ctypes.c_int,
    ]
    return library


def _why(device: str | None, number: int, devices: Path) -> str:
    """One sentence about a port that could not be opened."""
    found = sorted(devices.glob("umad*"))
    if not found:
        return (
            f"no InfiniBand port to ask: there is no {devices}/umad* "
            "(no adapter, or the kernel module ib_umad is not loaded)"
        )
    if not any(os.access(one, os.R_OK | os.W_OK) for one in found):
        return (
            f"{found[0]} may not be opened: run as root, or let udev give its group read and write"
        )
    return f"InfiniBand port {device or 'any active one'} cannot be opened: {os.strerror(number)}"
