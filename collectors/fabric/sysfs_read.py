"""Reads one RDMA adapter from sysfs; any of these files may hang with the adapter's firmware.

Layout and units: the kernel's Documentation/ABI/stable/sysfs-class-infiniband.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from collectors.fabric.counters import COUNTERS, saturated
from collectors.fabric.text_counters import whole
from collectors.fabric.words import guid_text, physical_state, port_state
from evidence.records import FabricPort

__all__ = ["Adapter", "States", "port_numbers", "read_adapter", "read_states"]

#: By port: its state, physical state and rate, as sysfs words them.
States = dict[int, tuple[str, ...]]

_MOST_BYTES = 4096
# 400 Gb/sec (4X NDR)
_RATE = re.compile(r"(\d{1,6}(?:\.\d+)?) Gb/sec(?: \((\d{1,2})X)?")
_DOWN = "Down"
#: In hw_counters, but a setting: how long the driver keeps what it has read.
_NOT_COUNTERS = frozenset({"lifespan"})
#: Not every driver has its own counters.
_OPTIONAL = frozenset({"hw_counters"})
#: Only a driver that reads the data counters with 64 bits has these.
_WIDE_MARK = "unicast_rcv_packets"
_GID_WORDS = 8


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter as it was read; ``guid`` is empty where it could not be."""

    guid: str
    name: str | None
    ports: tuple[FabricPort, ...]
    states: States


def read_adapter(folder: Path) -> Adapter:
    """Read an adapter's folder under ``/sys/class/infiniband``, every port with its counters.

    What cannot be read is None, with its reason in the port's ``unread``. Raises OSError when the
    folder is gone.
    """
    states = read_states(folder)
    words, _ = _read(f"{folder}/node_guid")
    name, _ = _read(f"{folder}/node_desc")
    ports = tuple(_port(f"{folder}/ports/{at}", at, told) for at, told in states.items())
    return Adapter(guid=_guid(words) or "", name=name or None, ports=ports, states=states)


def read_states(folder: Path) -> States:
    """Read the state, physical state and rate of every port; raises OSError as `read_adapter`."""
    return {
        at: tuple(
            _read(f"{folder}/ports/{at}/{name}")[0] for name in ("state", "phys_state", "rate")
        )
        for at in port_numbers(folder)
    }


def port_numbers(folder: Path) -> list[int]:
    """The ports of an adapter by their folders, which are there whatever its firmware does."""
    names = (one.name for one in (folder / "ports").iterdir())
    return sorted(int(name) for name in names if name.isdecimal())


def _port(folder: str, at: int, told: tuple[str, ...]) -> FabricPort:
    unread: dict[str, str] = {}
    state = port_state(told[0])
    layer, _ = _read(f"{folder}/link_layer")
    counters = _counters(folder, "counters", unread)
    wide = _wide(counters)
    for name, value in _counters(folder, "hw_counters", unread).items():
        counters.setdefault(name, value)
    width, rate = _rate(told[2], state, unread)
    return FabricPort(
        port=at,
        state=state,
        physical_state=physical_state(told[1]),
        rate_gbps=rate,
        width=width,
        lid=_lid(f"{folder}/lid"),
        port_guid=_port_guid(folder) if layer == "InfiniBand" else None,
        link_layer=layer or None,
        counters=counters,
        saturated=saturated(counters, wide),
        unread=unread,
    )


def _rate(text: str, state: str | None, unread: dict[str, str]) -> tuple[int | None, float | None]:
    """Width and data rate; sysfs has those of a port that is down too, where they mean nothing."""
    found = _RATE.match(text)
    if state == _DOWN or found is None:
        unread["rate_gbps"] = "the port is down" if state == _DOWN else text or "unreadable"
        return None, None
    return (None if found[2] is None else int(found[2])), float(found[1])


def _counters(port: str, folder: str, unread: dict[str, str]) -> dict[str, int]:
    """Every counter of a folder, by its name in lower case (``VL15_dropped`` is alone with it)."""
    try:
        with os.scandir(f"{port}/{folder}") as entries:
            names = sorted(entry.name for entry in entries)
    except OSError as error:
        if folder not in _OPTIONAL:
            unread[folder] = _words(error)
        return {}
    counters: dict[str, int] = {}
    reasons: dict[str, str] = {}
    for name in names:
        if name in _NOT_COUNTERS:
            continue
        text, reason = _read(f"{port}/{folder}/{name}")
        value = whole(text)
        if value is not None:
            counters[name.lower()] = value
        else:
            reasons[name.lower()] = reason or text or "empty"  # `N/A (no PMA)`
    if len(reasons) > 1 and not counters and len(set(reasons.values())) == 1:
        reasons = {folder: next(iter(reasons.values()))}
    unread |= reasons
    return counters


def _wide(counters: dict[str, int]) -> frozenset[str]:
    """The data counters that were read with 64 bits."""
    marked = _WIDE_MARK in counters
    return frozenset(
        name
        for name, value in counters.items()
        if (known := COUNTERS.get(name)) is not None
        and (value >> known.bits or (marked and name.endswith(("_data", "_packets"))))
    )


def _lid(file: str) -> int | None:
    text, _ = _read(file)
    try:
        return int(text, 0) or None  # 0x2c
    except ValueError:
        return None


def _guid(text: str) -> str | None:
    # b83f:d203:00e4:1a5c
    try:
        guid = guid_text(text)
    except ValueError:
        return None
    return guid if int(guid, 16) else None


def _port_guid(folder: str) -> str | None:
    # fe80:0000:0000:0000:b83f:d203:00e4:1a5c: the subnet's prefix, then the port's GUID
    text, _ = _read(f"{folder}/gids/0")
    words = text.split(":")
    return _guid("".join(words[_GID_WORDS // 2 :])) if len(words) == _GID_WORDS else None


def _read(file: str) -> tuple[str, str | None]:
    """A file's text without blanks around it, or an empty one and the reason.

    Some four hundred files a sweep on a machine with eight adapters: hence no pathlib here.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(descriptor, _MOST_BYTES)
        finally:
            os.close(descriptor)
    except OSError as error:
        return "", _words(error)
    return text.decode("utf-8", "replace").strip("\0 \t\r\n"), None


def _words(error: OSError) -> str:
    return error.strerror or type(error).__name__
