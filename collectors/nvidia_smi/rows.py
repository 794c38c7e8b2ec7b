"""Reads what nvidia-smi prints as rows: CSV of `--query-gpu`, the table, `-L`, and its messages."""

import re

from collectors.nvidia_smi.card import Card
from collectors.nvidia_smi.looks import Looks
from collectors.nvidia_smi.names import CSV
from collectors.nvidia_smi.value import (
    fraction,
    mebibytes,
    moment,
    performance_state,
    reason,
    text,
    whole,
    yes,
)

__all__ = ["CsvRows", "Listing", "Messages", "TableRows"]

_BUS = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{8,96}\Z")
_CUT = "the input ends in this cell"


def _is_noise(why: str) -> bool:
    return why == "empty" or why.startswith("unreadable")


def _uuid(value: str) -> str:
    if not _UUID.match(value):
        raise ValueError(value)
    return value


# `pci.bus_id`, `memory.used [MiB]`
_COLUMN = re.compile(r"([A-Za-z0-9_.]+)(?: \[[^\],]{1,8}\])?\Z")
_ABOUT = {"timestamp", "pci.bus_id", "gpu_bus_id", "driver_version", "hostname", "count"}
_TELLING = {"gpu_name", "gpu_uuid", "gpu_bus_id", "gpu_serial", "driver_version", "pstate"}
#: More GPUs than any node has.
_MOST_CARDS = 1024
#: Columns of the queries whose rows are not GPUs: processes and retired pages.
_OTHER_ROWS = {"pid", "process_name", "retired_pages.address", "retired_pages.cause"}


class CsvRows:
    """`--query-gpu=... --format=csv[,nounits]`; without its header nothing can be read.

    A look ends where the order of the GPUs begins anew: its rows have times of their own.
    """

    def __init__(self, looks: Looks) -> None:
        self._looks = looks
        self._columns: list[str] = []
        self._order: dict[object, int] = {}
        self._last = -1

    @staticmethod
    def begins(line: str) -> bool:
        """Whether a line is the header of such an output, of whatever query."""
        return bool(_columns(line))

    def header(self, line: str) -> None:
        """Take the header."""
        columns = _columns(line)
        self._columns = [] if _OTHER_ROWS & set(columns) else columns
        self._order.clear()
        self._last = -1

    def take(self, line: str, *, cut: bool) -> bool:
        """Take one row; False when it is none."""
        cells = [cell.strip() for cell in line.split(",")]
        short = cut and len(cells) < len(self._columns)
        if not self._columns or (len(cells) != len(self._columns) and not short):
            return False
        card = Card()
        about: dict[str, str] = {}
        if short:
            for column in self._columns[len(cells) - 1 :]:
                if column in CSV:
                    card.refuse(CSV[column][0], _CUT)
            cells.pop()
        for column, said in zip(self._columns, cells, strict=False):
            self._cell(card, about, column, said)
        if not card.values and all(_is_noise(why) for why in card.unread.values()):
            return False
        self._put(card, about)
        return True

    @staticmethod
    def _cell(card: Card, about: dict[str, str], column: str, said: str) -> None:
        if column in ("pci.bus_id", "gpu_bus_id"):
            card.bus(said)
        elif column in ("uuid", "gpu_uuid"):
            card.take("uuid", _uuid, said)
        elif column in CSV:
            card.take(*CSV[column], said)
        elif column in _ABOUT:
            about[column] = said

    def _put(self, card: Card, about: dict[str, str]) -> None:
        place = self._order.get(card.key, -1)
        if place < 0 and card.key is not None and len(self._order) < _MOST_CARDS:
            place = self._order[card.key] = len(self._order)
        look = self._looks.current
        told = look.card(card)
        if self._last < 0 or place <= self._last or (told is not None and told.answered):
            look = self._looks.begin()
            told = look.card(card)
        self._last = place
        if told is not None:  # a message has spoken of it before
            card.told_before(told)
            look.cards[look.cards.index(told)] = card
        else:
            self._looks.add(card)
        at = moment(about.get("timestamp", ""), self._looks.zone)
        look = self._looks.current
        look.at = look.at or at
        if reason(driver := about.get("driver_version", "")) is None:
            look.driver = driver
        if reason(host := about.get("hostname", "")) is None:
            look.host = host
        if about.get("count", "").isdecimal():
            look.attached = int(about["count"][:6])


def _columns(line: str) -> list[str]:
    """The columns of a header of `--query-gpu` and its siblings; none where it is no header."""
    columns = []
    for cell in line.strip().split(","):
        found = _COLUMN.match(cell.strip())
        if found is None:
            return []
        columns.append(found[1].casefold())
    known = [column for column in columns if column in CSV or column in _ABOUT]
    telling = any("." in column or column in _TELLING for column in known)
    named = "uuid" in known and ("index" in known or "name" in known)
    return columns if telling or named else []


# |   3  NVIDIA A30          Off  | 00000000:41:00.0 Off |                    0 |
_FIRST = re.compile(
    rf"\|\s+(\d{{1,4}})\s+(\S.*?)\s+(On|Off|N/A|ERR!)\s*\|\s*({_BUS})\s+\S+\s*\|\s*(\S.*?)\s*\|"
)
# | N/A   42C    P0   141W / 165W |  14992MiB / 24576MiB |     33%      Default |
_SECOND = re.compile(
    r"\|\s*(\S+)\s+(\S+)\s+(\S+)\s+(\S+)\s*/\s*(\S+)\s*\|\s*(\S+)\s*/\s*(\S+)\s*\|\s*(\S+)\s+\S"
)
# |                               |                      |             Disabled |
_THIRD = re.compile(r"\|\s+\|\s+\|\s+(\S+)\s*\|")
# | NVIDIA-SMI 525.85.12    Driver Version: 525.85.12    CUDA Version: 12.0     |
_HEAD = re.compile(r"\|\s*NVIDIA-SMI\s+\S+.*?Driver Version:\s*(\S+)")
# |  0    2   0   0  |              26MiB / 40448MiB    | 60      0 |  3   0    3    0    3 |
_TABLE_MIG = re.compile(r"\|\s+(\d{1,4})\s+(\d{1,3})\s+(\d{1,3})\s+\d{1,3}\s+\|\s+\d+MiB\s*/")
# |    0   N/A  N/A      7031      C   python3                          1024MiB |
_TABLE_PROCESS = re.compile(
    r"\|\s+(\d{1,4})\s+(?:(N/A|\d{1,3})\s+(N/A|\d{1,3})\s+)?(\d{1,10})\s+(?:C|G|C\+G|M\+C)\s+"
    r"(\S.*?)\s+(\d{1,9}MiB|N/A)\s*\|"
)
_NO_PROCESS = "No running processes found"


class TableRows:
    """The table that nvidia-smi prints when asked for nothing in particular."""

    def __init__(self, looks: Looks) -> None:
        self._looks = looks
        self._card: Card | None = None
        self._rows = 0

    @staticmethod
    def begins(line: str) -> bool:
        """Whether a line can only stand in such a table."""
        return line.startswith("|") and bool(_HEAD.match(line) or _FIRST.match(line))

    def take(self, line: str) -> None:
        """Take one line of a table."""
        if head := _HEAD.match(line):
            look = self._looks.begin()
            look.driver = head[1]
        elif first := _FIRST.match(line):
            self._first(first)
        elif self._card is not None and self._rows == 1 and (second := _SECOND.match(line)):
            self._second(self._card, second)
        elif self._card is not None and self._rows == 2 and (third := _THIRD.match(line)):  # noqa: PLR2004
            self._card.take("mig_enabled", yes, third[1])
            self._rows = 3
        elif mig := _TABLE_MIG.match(line):
            self._mig(mig)
        elif process := _TABLE_PROCESS.match(line):
            self._process(process)
        elif _NO_PROCESS in line:
            for card in self._looks.current.cards:
                card.processes = card.processes or []

    def _first(self, found: re.Match[str]) -> None:
        card = Card()
        card.take("index", whole, found[1])
        card.bus(found[4])
        card.take("name", text, found[2])
        card.take("persistence_mode", yes, found[3])
        errors = "hidden by MIG" if found[5] in ("On", "Off") else ""
        if errors:
            card.refuse("ecc_volatile_uncorrected", errors)
        else:
            card.take("ecc_volatile_uncorrected", whole, found[5])
        told = self._looks.current.card(card)
        if told is not None and told.answered:
            self._looks.begin()
            told = None
        if told is not None:
            card.told_before(told)
            self._looks.current.cards.remove(told)
        self._looks.add(card)
        self._card, self._rows = card, 1

    def _second(self, card: Card, found: re.Match[str]) -> None:
        _, heat, state, power, limit, used, total, busy = found.groups()
        card.take("temperature_c", whole, heat)
        card.take("performance_state", performance_state, state)
        card.take("power_w", fraction, power)
        card.take("power_limit_w", fraction, limit)
        card.take("memory_used_mib", mebibytes, used)
        card.take("memory_total_mib", mebibytes, total)
        card.take("utilization_pct", whole, busy)
        self._rows = 2

    def _at(self, index: str) -> Card | None:
        number = int(index)
        cards = self._looks.current.cards
        return next((card for card in cards if card.values.get("index") == number), None)

    def _mig(self, found: re.Match[str]) -> None:
        if card := self._at(found[1]):
            card.mig.append({"gi": int(found[2]), "ci": int(found[3])})

    def _process(self, found: re.Match[str]) -> None:
        card = self._at(found[1])
        if card is None:
            return
        _, gi, ci, pid, name, memory = found.groups()
        one: dict[str, object] = {"pid": int(pid), "name": name}
        if gi and gi.isdecimal():
            one["gi"] = int(gi)
        if ci and ci.isdecimal():
            one["ci"] = int(ci)
        if memory != "N/A":
            one["memory_used_mib"] = mebibytes(memory)
        card.processes = [*(card.processes or []), one]


# GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-b1028956-cfa2-0990-bf4a-5da9abb51763)
_LISTED = re.compile(r"GPU (\d{1,4}): (\S.*?) \(UUID: ([^)]{8,96})\)")


class Listing:
    """`nvidia-smi -L`: names and UUIDs; it lists lost GPUs too and tells nothing of health."""

    def __init__(self, looks: Looks) -> None:
        self._looks = looks

    @staticmethod
    def begins(line: str) -> bool:
        """Whether a line is of such a list."""
        return bool(_LISTED.match(line))

    def take(self, line: str) -> None:
        """Take one line of a list."""
        found = _LISTED.match(line)
        assert found is not None
        card = Card(listed=True)
        card.take("index", whole, found[1])
        card.take("name", text, found[2])
        card.take("uuid", _uuid, found[3])
        look = self._looks.current
        told = look.card(card)
        if (told is not None and (told.answered or told.listed)) or any(
            one.answered for one in look.cards
        ):
            self._looks.begin_by_message()
            told = None
        if told is None:
            self._looks.add(card)
        else:
            told.values |= card.values


# Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the system ...
# Unable to determine the device handle for GPU0000:CB:00.0: Unknown Error
# Unable to determine the device handle for GPU1: 0000:34:00.0: Unknown Error
_HANDLE = re.compile(
    rf"Unable to determine the device handle for GPU\s*(?:({_BUS})|(\d{{1,4}})(?::\s*({_BUS}))?)"
    r"\s*:\s*(\S.*)",
    re.IGNORECASE,
)
# error getting device handle for index '6': Unknown Error
_BY_INDEX = re.compile(r"error getting device handle for index '?(\d{1,4})'?\s*:\s*(\S.*)")
# WARNING: infoROM is corrupted at gpu 0000:3B:00.0
_INFOROM = re.compile(rf"WARNING: infoROM is corrupted at gpu ({_BUS})", re.IGNORECASE)
# Failed to initialize NVML: Driver/library version mismatch
_INIT = re.compile(r"Failed to initialize NVML: (\S.*)")
# NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure ...
_DRIVER = re.compile(r"NVIDIA-SMI has failed because (it couldn't communicate with[^.]*)")
_NONE = re.compile(r"No devices were found\s*\Z")

_NOT_FOUND, _NOT_LOADED, _UNKNOWN = 6, 9, 999
#: NVML's codes for the words that nvidia-smi prints when NVML itself does not start (nvml.h).
_CODES = {
    "insufficient permissions": 4,
    "driver not loaded": _NOT_LOADED,
    "nvml shared library not found": 12,
    "gpu access blocked by the operating system": 17,
    "driver/library version mismatch": 18,
}


class Messages:
    """What nvidia-smi says instead of an answer, about one GPU or about NVML as a whole."""

    def __init__(self, looks: Looks) -> None:
        self._looks = looks

    @staticmethod
    def begins(line: str) -> bool:
        """Whether a line is such a message."""
        return bool(
            _HANDLE.search(line)
            or _BY_INDEX.match(line)
            or _INFOROM.match(line)
            or _INIT.match(line)
            or _DRIVER.match(line)
            or _NONE.match(line)
        )

    def take(self, line: str) -> None:
        """Take one message."""
        card = Card()
        if found := _HANDLE.search(line):
            bus, index, bus_after, why = found.groups()
            if bus or bus_after:
                card.bus(bus or bus_after)
            if index:
                card.take("index", whole, index)
            self._refused(card, why)
        elif found := _BY_INDEX.match(line):
            card.take("index", whole, found[1])
            self._refused(card, found[2])
        elif found := _INFOROM.match(line):
            card.bus(found[1])
            card.unread["inforom"] = "infoROM is corrupted"
            told = self._told(card)
            if told is None:
                self._looks.add(card, by_message=True)
            else:
                told.unread |= card.unread
        elif found := _INIT.match(line):
            words = found[1].strip()
            self._failed(_CODES.get(words.casefold(), _UNKNOWN), words)
        elif found := _DRIVER.match(line):
            self._failed(_NOT_LOADED, found[1].strip())
        elif _NONE.match(line):
            self._failed(_NOT_FOUND, "No devices were found")

    def _refused(self, card: Card, why: str) -> None:
        why = why.strip()
        card.refuse("handle", "GPU is lost" if "GPU is lost" in why else why[:256])
        if not card.troubled:
            card.troubled[None] += 1
        told = self._told(card)
        if told is not None and told.answered:
            self._looks.begin_by_message()
            told = None
        if told is None:
            self._looks.add(card, by_message=True)
        else:
            told.values |= card.values
            told.unread |= card.unread
            told.heed(card.unread["handle"])

    def _told(self, card: Card) -> Card | None:
        """The card where the current look has it; a look in which NVML failed has none."""
        if self._looks.current.error is not None:
            self._looks.begin_by_message()
        return self._looks.current.card(card)

    def _failed(self, code: int, words: str) -> None:
        look = self._looks.current
        if not look.empty:
            look = self._looks.begin_by_message()
        look.error, look.error_text = code, words[:256]
