"""Reads what mlxlink prints of one port: link, error rates and the module in the cage.

Copper without electronics has nothing to measure: its zeros are not values.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from collectors.fabric.counters import saturated
from collectors.fabric.text_counters import whole
from collectors.fabric.topology import Node
from collectors.fabric.words import lane_gbps, physical_state, port_state, rate_gbps
from evidence.records import FabricPort, Optics

__all__ = ["SECTIONS", "MlxLink", "Target", "json_fields", "port_of", "target_of"]

#: One port's output has a few KiB; what grows beyond that is none.
_JSON_BYTES = 4 << 20

#: Titles of mlxlink's sections.
SECTIONS = frozenset({
    "Operational Info",
    "Supported Info",
    "Troubleshooting Info",
    "Tool Information",
    "Module Info",
    "Physical Counters and BER Info",
})  # fmt: skip

# Rx Power Current [dBm]             : 1.886,1.989,2.281,1.976 [-10.41..6]
_FIELD = re.compile(r"(?P<name>[A-Z][^:]*?)\s*:(?:\s+(?P<value>.*?))?\s*\Z")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# 54 [-5..75]
_RANGED = re.compile(
    r"(?P<values>[^\[]*)(?:\[(?P<low>[^\].]*(?:\.\d+)?)\.\.(?P<high>[^\]]*)\])?\s*\Z"
)
# IB-NDR, 400G, 100GbE, 200G_4X
_SPEED = re.compile(r"IB-(?P<name>\w+)|(?P<gbps>\d+(?:\.\d+)?)G")
# 15E-255: the firmware's word for a rate it has not seen one error for.
_BER = re.compile(r"\d{1,9}(?:\.\d+)?(?:E[+-]?(?P<power>\d{1,4}))?\Z", re.IGNORECASE)
_NOTHING_MEASURED = 255
#: A module that receives no light says so as -inf, or as the least that it can tell.
_DARK_DBM = -40.0
_SILENT = {"", "N/A", "NA", "-"}

#: Field of a section -> counter; they are the link's own, cleared apart from those of the PMA.
_COUNTERS = {
    "Symbol Errors": "phy_symbol_errors",
    "Effective Physical Errors": "phy_effective_errors",
    "Link Down Counter": "phy_link_downed",
    "Link Error Recovery Counter": "phy_link_error_recovery",
}
_PER_LANE = ("Raw Physical Errors Per Lane", "phy_raw_errors_lane")
_RATES = {
    "Raw Physical BER": "raw_ber",
    "Effective Physical BER": "effective_ber",
    "Symbol BER": "symbol_ber",
}
_NAMES = {
    "Vendor Name": "vendor",
    "Vendor Part Number": "part",
    "Vendor Serial Number": "serial",
}
#: Field -> (value, low limit, high limit, factor); limits that a record has no place for are None.
_MEASURED = {
    "Temperature [C]": ("temperature_c", None, "temperature_high_c", 1.0),
    "Voltage [mV]": ("voltage_v", None, None, 0.001),
    "Bias Current [mA]": ("bias_ma", None, None, 1.0),
    "Rx Power Current [dBm]": ("rx_dbm", "rx_low_dbm", "rx_high_dbm", 1.0),
    "Tx Power Current [dBm]": ("tx_dbm", "tx_low_dbm", "tx_high_dbm", 1.0),
}
_BY_LANE = frozenset({"bias_ma", "rx_dbm", "tx_dbm"})


# mlx5_0.json, gpu017-mlx5_3.txt, `-d mlx5_bond_0`, /var/lib/mlxlink/rocep24s0f1.json
_DEVICE = re.compile(r"(?<![a-z0-9])(mlx\d+_(?:bond_)?\d+|(?:ibp|ibs|ibo|roce|rdma)[a-z0-9]*\d)")
# lid-44-p12.json, `-d lid-0x2c -p 12`
_LID = re.compile(r"lid-(0x[0-9a-f]{1,4}|\d{1,5})")
_PORT = re.compile(r"(?:-p |[-_.]p(?:ort)?[-_]?)(\d{1,3})(?!\d)")


@dataclass(frozen=True, slots=True)
class Target:
    """Which port was asked: that of a device of this node, or one of a switch by its LID."""

    device: str | None = None
    lid: int | None = None
    port: int = 1

    @property
    def stand_in(self) -> str:
        """What stands for the GUID of the node, which mlxlink does not print."""
        return f"lid:{self.lid}" if self.lid else f"device:{self.device or ''}"


def target_of(text: str) -> Target:
    """Whom an output is about, by the command that printed it or the name of its file."""
    device, lid, port = _DEVICE.search(text), _LID.search(text), _PORT.search(text)
    return Target(
        device=None if device is None or lid else device[1],
        lid=int(lid[1], 0) if lid else None,
        port=int(port[1]) if port else 1,
    )


class _TextFields:
    """Lines of mlxlink's text output, taken one by one."""

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}
        self._section = ""

    def feed(self, line: str) -> bool:
        """Take a line; False when it is none of mlxlink's."""
        text = _COLOUR.sub("", line).strip()
        if text in SECTIONS:
            self._section = text
            return True
        if not text or set(text) == {"-"}:
            return bool(self._section)
        found = _FIELD.match(text)
        if found is None or not self._section:
            return False
        self.fields[found["name"]] = found["value"] or ""
        return True

    def repeats(self, line: str) -> bool:
        """Whether a line begins the output of the next port."""
        return bool(self.fields) and line.strip() == "Operational Info"


def json_fields(text: str) -> dict[str, str]:
    """Every field of ``mlxlink --json`` by its name, lists joined by commas.

    Raises ValueError with one sentence when the text is not JSON, or holds mlxlink's own error
    instead of an output.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"broken JSON: {error}") from None
    output = _inside(found, "result", "output")
    fields = {
        name: _plain(value)
        for section in output.values()
        if isinstance(section, dict)
        for name, value in section.items()
    }
    if not fields:
        message = _inside(found, "status").get("message")
        raise ValueError(f"mlxlink says: {message}" if message else "mlxlink printed no output")
    return fields


def _inside(value: object, *names: str) -> dict[str, Any]:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _plain(value: object) -> str:
    if isinstance(value, dict):
        value = value.get("values", list(value.values()))
    if isinstance(value, list):
        return ",".join(map(_plain, value))
    return "" if value is None else str(value).strip()


def port_of(fields: Mapping[str, str], port: int) -> FabricPort:
    """One port from mlxlink's fields; what is there but says nothing stands in ``unread``."""
    unread: dict[str, str] = {}
    width, rate = _rate(fields, unread)
    counters = _counters(fields, unread)
    optics = _optics(fields, unread)
    return FabricPort(
        port=port,
        state=port_state(fields.get("State", "")),
        physical_state=physical_state(fields.get("Physical state", "")),
        width=width,
        rate_gbps=rate,
        counters=counters,
        saturated=saturated(counters),
        unread=unread,
        optics=None if optics == Optics() else optics,
    )


def _rate(fields: Mapping[str, str], unread: dict[str, str]) -> tuple[int | None, float | None]:
    lanes, speed = fields.get("Width", ""), fields.get("Speed", "")
    width = int(lanes[:-1]) if re.fullmatch(r"\d{1,2}x", lanes) else None
    found = _SPEED.match(speed)
    if found is None:
        if speed:
            unread["rate_gbps"] = speed
        return width, None
    if found["gbps"] is not None:
        return width, float(found["gbps"])
    return width, rate_gbps(width, lane_gbps(found["name"]))


def _counters(fields: Mapping[str, str], unread: dict[str, str]) -> dict[str, int]:
    texts = {ours: fields[name] for name, ours in _COUNTERS.items() if name in fields}
    per_lane, prefix = _PER_LANE
    if fields.get(per_lane):
        lanes = fields[per_lane].split(",")
        texts |= {f"{prefix}{at}": text.strip() for at, text in enumerate(lanes)}
    counters = {}
    for name, text in texts.items():
        if (number := whole(text)) is not None:
            counters[name] = number
        else:
            unread[name] = text or "empty"
    return counters


def _optics(fields: Mapping[str, str], unread: dict[str, str]) -> Optics:
    known: dict[str, Any] = {
        ours: fields[name] for name, ours in _NAMES.items() if fields.get(name, "") not in _SILENT
    }
    for name, ours in _RATES.items():
        if name in fields:
            known[ours] = _ber(fields[name], ours, unread)
    cable = fields.get("Cable Type", "")
    if "passive" in cable.lower():
        unread["optics"] = cable
        return Optics(**known)
    for name, places in _MEASURED.items():
        if name in fields:
            known |= _measured(fields[name], places, unread)
    return Optics(**known)


def _ber(text: str, name: str, unread: dict[str, str]) -> float | None:
    found = _BER.match(text)
    if found is None or int(found["power"] or 0) >= _NOTHING_MEASURED:
        unread[name] = text or "empty"
        return None
    return float(text)


def _measured(
    text: str, places: tuple[str, str | None, str | None, float], unread: dict[str, str]
) -> dict[str, Any]:
    """A measured value (by lane where it is one), and the module's own limits for it."""
    name, low_name, high_name, factor = places
    found = _RANGED.match(text)
    values = [one.strip() for one in (found["values"] if found else text).split(",")]
    low, high = (_number(found[end] or "") for end in ("low", "high")) if found else (None, None)
    numbers = [_number(one) for one in values]
    if low == high == 0.0 and not any(numbers):
        # A cage that cannot measure prints `0 [0..0]`.
        unread[name] = text
        return {}
    bad = [f"lane {at}: {one}" for at, one in enumerate(values) if numbers[at] is None]
    if bad:
        unread[name] = ", ".join(bad) if len(values) > 1 else text or "empty"
    read = tuple(round(one * factor, 6) for one in numbers if one is not None)
    known: dict[str, Any] = {}
    if read:
        known[name] = read if name in _BY_LANE else read[0]
    limits = ((low_name, low), (high_name, high))
    return known | {place: limit for place, limit in limits if place and limit is not None}


def _number(text: str) -> float | None:
    if text.lower() == "-inf":
        return _DARK_DBM
    found = re.fullmatch(r"[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?", text, re.IGNORECASE)
    return float(text) if found and math.isfinite(float(text)) else None


class MlxLink:
    """One port's output of mlxlink, as text or JSON."""

    def __init__(self, line: int, target: Target) -> None:
        self.target = target
        self._line = line
        self._text = _TextFields()
        self._json: list[str] = []
        self._size = 0
        self._depth = 0

    def repeats(self, line: str) -> bool:
        """Whether a line begins the output of the next port."""
        return line.startswith("{") if self._json else self._text.repeats(line)

    def feed(self, line: str) -> bool:
        """Take a line; False when this was the last one."""
        if not self._json and not line.lstrip().startswith("{"):
            self._text.feed(line)
            return True
        self._json.append(line)
        self._size += len(line)
        # A brace inside a string would mislead this count; no field of mlxlink has one.
        self._depth += line.count("{") - line.count("}")
        return self._depth > 0 and self._size < _JSON_BYTES

    def node(self) -> Node:
        """What it told, as a node of one port."""
        target = self.target
        kind = "hca" if target.device else "switch" if target.lid else "unknown"
        try:
            fields = json_fields("\n".join(self._json)) if self._json else self._text.fields
            port = port_of(fields, target.port)
        except ValueError as error:
            port = FabricPort(port=target.port, unread={"mlxlink": str(error)})
        node = Node(target.stand_in, kind=kind, lid=target.lid, line=self._line)
        node.ports[target.port] = replace(port, lid=target.lid)
        return node
