"""One vocabulary for ports, whoever was asked: states, rates, node descriptions and GUIDs.

The kernel, the subnet's MADs, infiniband-diags and mlxlink each write the same thing differently;
records have the words of this module.
"""

import re
from collections.abc import Iterable

__all__ = [
    "PHYSICAL_STATES",
    "PORT_STATES",
    "described",
    "guid_text",
    "kind_of",
    "lane_gbps",
    "physical_state",
    "port_state",
    "rate_gbps",
]

#: PortInfo.PortState and PortInfo.PortPhysicalState (InfiniBand Architecture 14.2.5.6), in the
#: words of infiniband-diags.
PORT_STATES = {1: "Down", 2: "Initialize", 3: "Armed", 4: "Active", 5: "Active_Defer"}
PHYSICAL_STATES = {
    1: "Sleep",
    2: "Polling",
    3: "Disabled",
    4: "PortConfigurationTraining",
    5: "LinkUp",
    6: "LinkErrorRecovery",
    7: "PhyTest",
}

#: Data rate of one lane by the name of the speed, as the kernel counts it in sysfs's `rate`
#: (drivers/infiniband/core/sysfs.c, rate_show).
_BY_NAME = {
    "SDR": 2.5,
    "DDR": 5.0,
    "QDR": 10.0,
    "FDR10": 10.0,
    "FDR": 14.0,
    "EDR": 25.0,
    "HDR": 50.0,
    "NDR": 100.0,
    "XDR": 200.0,
}
#: By the signalling rate, which iblinkinfo prints.
_BY_SIGNALLING = {
    "2.5": 2.5,
    "5.0": 5.0,
    "10.0": 10.0,
    "14.0625": 14.0,
    "25.78125": 25.0,
    "53.125": 50.0,
    "106.25": 100.0,
    "212.5": 200.0,
}

# `gpu017 mlx5_0`, `gpu017 HCA-1`: set by rdma-ndd; the firmware's own name of the card has no host.
_OF_HOST = re.compile(r"(\S+) (?:(mlx\d+_\w+|ib\w+|roce\w+|rdma\w+|hfi\d+_\d+)|HCA-\d+)\Z")
# `MF0;leaf01:MQM8700/U1`, `Quantum Mellanox Technologies`, `SwitchIB Mellanox Technologies`.
_SWITCH = re.compile(r"MF0;|Quantum|Switch|Infiniscale", re.IGNORECASE)
# `MT4129 ConnectX7   Mellanox Technologies`
_ADAPTER = re.compile(r"ConnectX|Connect-IB|BlueField|\bHCA\b", re.IGNORECASE)
#: An adapter has no more ports than that.
_ADAPTER_PORTS = 2


def lane_gbps(speed: str) -> float | None:
    """The data rate of one lane: ``HDR`` and ``53.125`` are 50.0; None for an unknown word."""
    return _BY_NAME.get(speed, _BY_SIGNALLING.get(speed))


def rate_gbps(width: int | None, lane: float | None) -> float | None:
    """The data rate of a port of ``width`` lanes; None when one of both is not known."""
    return None if width is None or lane is None else width * lane


def port_state(text: str) -> str | None:
    """A port's state: sysfs's ``4: ACTIVE`` and the tools' ``Active`` are ``Active``."""
    return _word(text, PORT_STATES)


def physical_state(text: str) -> str | None:
    """A port's physical state: ``5: LinkUp`` and ``LinkUp`` are ``LinkUp``."""
    return _word(text, PHYSICAL_STATES)


def described(name: str | None) -> tuple[str | None, str | None]:
    """Host and device that an adapter's description names; None each where it does not."""
    found = _OF_HOST.match(name or "")
    return (None, None) if found is None else (found[1], found[2])


def kind_of(name: str | None, ports: Iterable[int]) -> str:
    """``switch``, ``hca`` or ``unknown``, for texts that do not say what a node is."""
    text, numbers = name or "", list(ports)
    if described(text)[0] is not None or _ADAPTER.search(text):
        return "hca"
    if 0 in numbers or max(numbers, default=0) > _ADAPTER_PORTS or _SWITCH.search(text):
        return "switch"
    return "unknown"


def guid_text(guid: int | str) -> str:
    """A GUID as every record has it: ``0x`` and 16 hex digits.

    A string is hex with or without ``0x`` and colons; raises ValueError when it is not.
    """
    value = guid if isinstance(guid, int) else int(guid.replace(":", ""), 16)
    return f"0x{value:016x}"


def _word(text: str, words: dict[int, str]) -> str | None:
    number, colon, word = text.strip().partition(":")
    if colon and number.isdigit():
        return words.get(int(number), word.strip() or None)
    return number or None
