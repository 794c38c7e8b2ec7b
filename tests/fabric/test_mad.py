"""MADs on their way: what is sent, what comes back, and what is said when nothing can be asked."""

import ctypes
import ctypes.util
from pathlib import Path
from typing import Any

import pytest

from collectors.collector import Unavailable
from collectors.fabric.mad import (
    NODE_INFO,
    PORT_COUNTERS,
    PORT_INFO,
    MadPort,
    Query,
    peer_of,
    performance,
    subnet,
)


class _Route(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_int),
        ("ports", ctypes.c_uint8 * 64),
        ("source", ctypes.c_uint16),
        ("destination", ctypes.c_uint16),
    )


class _Address(ctypes.Structure):
    _fields_ = (
        ("lid", ctypes.c_int),
        ("route", _Route),
        ("grh", ctypes.c_int),
        ("gid", ctypes.c_uint8 * 16),
        ("queue_pair", ctypes.c_uint32),
        ("key", ctypes.c_uint32),
        ("level", ctypes.c_uint8),
        ("partition", ctypes.c_uint),
    )


class _Call(ctypes.Structure):
    _fields_ = (
        ("mad_class", ctypes.c_int),
        ("method", ctypes.c_int),
        ("attribute", ctypes.c_uint),
        ("modifier", ctypes.c_uint),
        ("status", ctypes.c_uint32),
        ("data_at", ctypes.c_int),
        ("data_size", ctypes.c_int),
        ("management_key", ctypes.c_uint64),
        ("transaction", ctypes.c_uint64),
        ("mask", ctypes.c_uint64),
        ("record_size", ctypes.c_uint),
        ("timeout", ctypes.c_int),
        ("vendor", ctypes.c_uint32),
    )


def libibmads(call: _Call, to: _Address, data: bytes) -> bytes:
    """The packet that libibmad builds for a call, its transaction number set to 0."""
    library = ctypes.CDLL("libibmad.so.5")
    library.mad_build_pkt.argtypes = [ctypes.c_void_p] * 5
    out = ctypes.create_string_buffer(64 + 256)
    given = ctypes.create_string_buffer(data, 192)
    library.mad_build_pkt(out, ctypes.byref(call), ctypes.byref(to), None, given)
    # Until it has opened a port, the library leaves the 8 bytes of the partition key out.
    head = library.umad_size()
    packet = bytearray(out.raw[:head].ljust(64, b"\0") + out.raw[head : head + 256])
    packet[72:80] = bytes(8)
    return bytes(packet)


@pytest.mark.usefixtures("simulator")
def test_a_question_to_a_lid_is_what_libibmad_would_send() -> None:
    call = _Call(1, 1, PORT_INFO, 7, 0, 64, 64)
    assert subnet(PORT_INFO, 7, to=258) == Query(1, libibmads(call, _Address(lid=258), b""))


@pytest.mark.usefixtures("simulator")
def test_a_directed_question_is_what_libibmad_would_send() -> None:
    to = _Address(lid=0)
    to.route.count, to.route.source, to.route.destination = 3, 0xFFFF, 0xFFFF
    for hop, port in enumerate((1, 20, 3), start=1):
        to.route.ports[hop] = port
    packet = libibmads(_Call(0x81, 1, NODE_INFO, 0, 0, 64, 64), to, b"")
    assert subnet(NODE_INFO, to=(1, 20, 3)) == Query(0x81, packet)


@pytest.mark.usefixtures("simulator")
def test_a_question_for_counters_is_what_libibmad_would_send() -> None:
    to = _Address(lid=40, queue_pair=1, key=0x80010000)
    packet = libibmads(_Call(4, 1, PORT_COUNTERS, 0, 0, 64, 192), to, bytes((0, 9)))
    assert performance(PORT_COUNTERS, 40, 9) == Query(4, packet)


def test_a_route_of_too_many_hops_is_misuse() -> None:
    with pytest.raises(ValueError, match="at most 63 hops"):
        subnet(NODE_INFO, to=(1,) * 64)


def test_a_machine_without_infiniband_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(
        Unavailable, match=r"libibumad|no InfiniBand port to ask: there is no .*umad"
    ):
        MadPort(devices=tmp_path)


@pytest.mark.usefixtures("simulator")
def test_a_device_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "umad0").touch()
    with pytest.raises(Unavailable, match=r"InfiniBand port mlx5_9 cannot be opened: \w+"):
        MadPort("mlx5_9", devices=tmp_path)


def test_a_port_without_a_fabric_has_no_peer() -> None:
    assert peer_of("mlx5_0", 1) is None


@pytest.mark.integration
def test_the_switch_port_at_the_other_end_is_found(fabric: Any, inside: Any) -> None:
    code = (
        "import json; from collectors.fabric.mad import peer_of; "
        "print(json.dumps(peer_of('ibsim0', 1)))"
    )
    leaf = f"0x{fabric.tree.leaf(0):016x}"
    assert inside(code) == [leaf, 1, "MF0;leaf-1:MQM9700/U1"]
    fabric.unlink(fabric.tree.leaf(0), 1)
    assert inside(code) is None


@pytest.mark.integration
def test_answers_come_back_in_order_and_silence_has_its_reason(fabric: Any, inside: Any) -> None:
    code = """
import json, sys
from collectors.fabric.mad import *
mads = MadPort(timeout_ms=40, tries=3, outstanding=2)
lid = int(sys.argv[1])
nobody = performance(PORT_COUNTERS, 4000, 1)
asked = [subnet(NODE_INFO, to=lid), nobody, subnet(PORT_INFO, 200, to=lid)]
found = mads.ask(asked * 4)
print(json.dumps([one.hex() if isinstance(one, bytes) else one for one in found]))
"""
    leaf = fabric.tree.leaf(1)
    found = inside(code, fabric.lid(leaf))
    found = [one[:128] if len(one) > 128 else one for one in found]  # 64 bytes are the answer
    assert found == found[:3] * 4
    assert bytes.fromhex(found[0])[12:20] == leaf.to_bytes(8, "big")
    assert found[1] == "no answer, asked 3 times in 40 ms each"
    assert found[2] == "refused with MAD status 0x001c"


@pytest.mark.integration
def test_nothing_is_asked_when_the_time_is_over(inside: Any) -> None:
    code = """
import json, time
from collectors.fabric.mad import *
print(json.dumps(MadPort().ask([subnet(NODE_INFO, to=())] * 3, time.monotonic() - 1)))
"""
    assert inside(code) == ["the time of this sweep was over"] * 3


@pytest.mark.integration
def test_what_is_never_answered_at_all_is_given_up_and_its_late_answer_ignored(
    fabric: Any, inside: Any
) -> None:
    code = """
import json, os, signal, sys
from collectors.fabric.mad import *
mads = MadPort(timeout_ms=20, tries=1, outstanding=3)
fabric, lid, other = map(int, sys.argv[1:])
os.kill(fabric, signal.SIGSTOP)
lost = mads.ask([subnet(NODE_INFO, to=lid)] * 6)
os.kill(fabric, signal.SIGCONT)
found = mads.ask([subnet(NODE_INFO, to=other)] * 6)
print(json.dumps([lost, [one[12:20].hex() for one in found]]))
"""
    leaves = [fabric.tree.leaf(number) for number in range(2)]
    lost, found = inside(code, fabric.pid, *map(fabric.lid, leaves))
    assert lost == ["no answer, asked 1 times in 20 ms each"] * 6
    assert found == [f"{leaves[1]:016x}"] * 6
