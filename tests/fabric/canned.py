"""MADs built by the layouts of the InfiniBand Architecture, and a tiny fabric that answers them.

For what the simulator does not have: 64-bit error counters, NDR and XDR, LIDs that move, nodes
that refuse.
"""

import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

LATE = "the time of this sweep was over"
SILENCE = "no answer, asked 2 times in 200 ms each"
REFUSAL = "refused with MAD status 0x000c"

NODE_DESCRIPTION, NODE_INFO, PORT_INFO = 0x10, 0x11, 0x15
CLASS_PORT_INFO, COUNTERS, EXTENDED, RCV_DETAILS, XMIT_DETAILS = 0x01, 0x12, 0x1D, 0x15, 0x16


def node_info(kind: int, ports: int, guid: int, port_guid: int, local: int) -> bytes:
    head = struct.pack(">BBBBQQQ", 1, 1, kind, ports, guid & ~0xF, guid, port_guid)
    return (head + struct.pack(">HHI", 32, 0x1021, 0xA0) + bytes((local, 0, 2, 0xC9))).ljust(
        64, b"\0"
    )


def port_info(
    *,
    lid: int = 0,
    state: int = 4,
    physical: int = 5,
    width: tuple[int, int, int] = (3, 3, 2),
    speed: tuple[int, int, int] = (7, 7, 4),
    extended: tuple[int, int, int] = (15, 15, 8),
    second: tuple[int, int, int] = (0, 0, 0),
) -> bytes:
    """Widths and speeds are (enabled, supported, active), in the bits of the architecture."""
    data = bytearray(64)
    struct.pack_into(">H", data, 16, lid)
    data[29], data[30], data[31] = width
    data[32] = speed[1] << 4 | state
    data[33] = physical << 4 | 2
    data[35] = speed[2] << 4 | speed[0]
    data[56] = second[2] << 5 | second[1] << 3 | second[0]
    data[62] = extended[2] << 4 | extended[1]
    data[63] = extended[0]
    return bytes(data)


def class_port_info(mask: int, second: int = 0) -> bytes:
    return struct.pack(">BBHI", 1, 1, mask, second << 5 | 18).ljust(192, b"\0")


def counters(errors: Sequence[int], both: int, tail: Sequence[int], port: int = 1) -> bytes:
    """Nine error counters, the byte of two, then QP1Dropped to PortXmitWait (seven)."""
    data = struct.pack(">BBH", 0, port, 0xFFFF)
    data += struct.pack(">HBBHHHHBB", *errors) + bytes((0, both)) + struct.pack(">HHIIIII", *tail)
    return data.ljust(192, b"\0")


def extended(data_counters: Sequence[int], errors: Sequence[int] = (0,) * 14) -> bytes:
    return (
        struct.pack(">BBHI", 0, 1, 0xFFFF, 0) + struct.pack(">22Q", *data_counters, *errors)
    ).ljust(192, b"\0")


def details(*values: int) -> bytes:
    return (struct.pack(">BBH", 0, 1, 0xFFFF) + struct.pack(f">{len(values)}H", *values)).ljust(
        192, b"\0"
    )


@dataclass
class Part:
    """One node of the tiny fabric; ``ports`` has PortInfo, ``peers`` (node, port) by port."""

    guid: int
    kind: int
    name: str
    lid: int
    ports: dict[int, bytes]
    peers: dict[int, tuple["Part", int]] = field(default_factory=dict)
    performance: dict[tuple[int, int], Any] = field(default_factory=dict)
    answers: bool = True


class Fabric:
    """Answers as a `collectors.fabric.discovery.Asker`; the first part is where the asker sits."""

    def __init__(self, *parts: Part) -> None:
        self.parts = parts
        self.asked: list[tuple[str, int, int]] = []
        #: Directed answers to lose, once each: kind, attribute and node.
        self.lose: set[tuple[str, int, int]] = set()
        #: Whether directed questions over two hops take all the time there is.
        self.crawls = False
        #: The same for all questions.
        self.stops = False

    def ask(self, queries: Sequence[Any], until: float | None = None) -> list[bytes | str]:
        far = any(one.packet[65] == 0x81 and one.packet[71] > 1 for one in queries)
        if (self.stops or (self.crawls and far)) and until is not None:
            time.sleep(max(0.0, until - time.monotonic()))
            return [LATE] * len(queries)
        return [self._answer(one.packet) for one in queries]

    def _answer(self, packet: bytes) -> bytes | str:
        lid = struct.unpack_from(">H", packet, 28)[0]
        mad = packet[64:]
        (attribute,), (modifier,) = (
            struct.unpack_from(">H", mad, 16),
            struct.unpack_from(">I", mad, 20),
        )
        found = self._follow(mad[129 : 129 + mad[7]]) if mad[1] == 0x81 else self._at(lid)
        if found is None or not found[0].answers:
            return SILENCE
        part, local = found
        lost = ("subnet", attribute, part.guid)
        if mad[1] == 0x81 and lost in self.lose:
            self.lose.discard(lost)
            return SILENCE
        if mad[1] == 0x04:
            self.asked.append(("performance", attribute, mad[65]))
            return part.performance.get((attribute, mad[65]), REFUSAL)
        self.asked.append(("subnet", attribute, modifier))
        if attribute == NODE_INFO:
            count = max(part.ports)
            return node_info(part.kind, count, part.guid, part.guid + local, local)
        if attribute == NODE_DESCRIPTION:
            return part.name.encode("latin-1").ljust(64, b"\0")
        return part.ports[modifier]

    def _follow(self, path: bytes) -> tuple[Part, int] | None:
        part, local = self.parts[0], 1
        for hop in path:
            if hop not in part.peers:
                return None
            part, local = part.peers[hop]
        return part, local

    def _at(self, lid: int) -> tuple[Part, int] | None:
        return next(
            ((one, 1 if one.kind == 1 else 0) for one in self.parts if one.lid == lid), None
        )
