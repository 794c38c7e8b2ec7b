"""Reads `nvidia-smi -q` (drivers 440 to 595), as text by indentation and as XML.

A section or key whose name is not known is passed over; what it would have told stays None.
"""

import re
from typing import Any, NoReturn
from xml.parsers import expat

from collectors.nvidia_smi.card import Card
from collectors.nvidia_smi.looks import Looks
from collectors.nvidia_smi.names import QUERY, XML, Names, sections
from collectors.nvidia_smi.value import mebibytes, moment, reason, text, whole

__all__ = ["QueryText", "QueryXml"]

_SECTIONS = {id(QUERY): sections(QUERY), id(XML): sections(XML)}
_CUT = "the input ends in this value"
#: No reading is longer; text beyond is not kept.
_MOST_TEXT = 4096
_MOST_PARTS = 4096


def _read(names: Names, card: Card, path: str, said: str) -> None:
    """Keep one value under its path, or of a section that has none the reason for all in it."""
    known = names.get(path)
    if known is not None:
        card.take(*known, said)
        return
    why = reason(said)
    if why is None:
        return
    for name in _SECTIONS[id(names)].get(path, ()):
        card.refuse(name, why)
    if not path.count("/"):
        card.heed(why)


def _part(into: dict[str, Any], name: str, kind: Any, said: str) -> None:  # noqa: ANN401
    """Keep a value of a MIG instance or process; one that is none is left out."""
    if reason(said) is None:
        try:
            into[name] = kind(said.strip())
        except ValueError:
            return


# ==============NVSMI LOG==============
_BANNER = re.compile(r"=+NVSMI LOG=+")
# Timestamp                                 : Wed Sep 25 10:40:24 2024
_TOP = re.compile(r"(Timestamp|Driver Version|CUDA Version|Attached GPUs)\s*: (.*)")
# GPU 00000000:07:00.0
_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*(?:: *(.*))?\Z")
_MIG = {
    "mig device/gpu instance id": "gi",
    "mig device/compute instance id": "ci",
    "mig device/uuid": "uuid",
    "mig device/gpu uuid": "uuid",
}
_PROCESS = {
    "processes/gpu instance id": ("gi", whole),
    "processes/compute instance id": ("ci", whole),
    "processes/process id": ("pid", whole),
    "processes/process id/name": ("name", text),
    "processes/process id/used gpu memory": ("memory_used_mib", mebibytes),
}


class QueryText:
    """The text of `-q`: sections by indentation, `key : value` lines."""

    def __init__(self, looks: Looks) -> None:
        self._looks = looks
        self._card: Card | None = None
        self._above: list[tuple[int, str]] = []

    @staticmethod
    def begins(line: str) -> bool:
        """Whether a line can only stand in such an output."""
        return bool(_BANNER.match(line) or _TOP.match(line) or _GPU.match(line))

    def take(self, line: str, *, cut: bool) -> None:
        """Take one line; ``cut`` when the input ends in it without a line end."""
        if _BANNER.match(line):
            self._looks.begin()
            self._card = None
        elif top := _TOP.match(line):
            self._top(top[1], top[2].strip())
        elif gpu := _GPU.match(line):
            self._open(gpu[1], gpu[2])
        elif self._card is not None and line[:1].isspace():
            self._inside(self._card, line, cut=cut)

    def _top(self, key: str, said: str) -> None:
        look = self._looks.current
        if self._card is not None:  # a second output without its banner
            look, self._card = self._looks.begin(), None
        if key == "Timestamp":
            look.at = moment(said, self._looks.zone)
        elif key == "Driver Version" and reason(said) is None:
            look.driver = said
        elif key == "Attached GPUs" and said.isdecimal():
            look.attached = int(said[:6])

    def _open(self, bus: str, why: str | None) -> None:
        card = Card()
        card.bus(bus)
        told = self._looks.current.card(card)
        if told is not None and told.answered:
            self._looks.begin()
            told = None
        if told is None:
            self._looks.add(card)
        self._card, self._above = told or card, []
        if why:
            self._card.refuse("handle", why.strip())

    def _inside(self, card: Card, line: str, *, cut: bool) -> None:
        key, colon, said = line.partition(":")
        indent = len(key) - len(key.lstrip())
        key = " ".join(key.split()).casefold()
        above = self._above
        while above and above[-1][0] >= indent:
            above.pop()
        above.append((indent, key))
        path = "/".join(name for _, name in above)
        if not colon:
            if path == "mig device":
                card.mig.append({})
            return
        said = said.strip()
        if cut and said[-1:].isalnum() and path in QUERY:
            card.refuse(QUERY[path][0], _CUT)
        elif path in _MIG:
            self._mig(card, _MIG[path], said)
        elif path.startswith("processes"):
            self._process(card, path, said)
        else:
            _read(QUERY, card, path, said)

    @staticmethod
    def _mig(card: Card, name: str, said: str) -> None:
        if card.mig and len(card.mig) < _MOST_PARTS:
            _part(card.mig[-1], name, text if name == "uuid" else whole, said)

    @staticmethod
    def _process(card: Card, path: str, said: str) -> None:
        if path == "processes":
            if said == "None":
                card.processes = []
            return
        known = _PROCESS.get(path)
        if known is None:
            return
        name, kind = known
        found = card.processes = [] if card.processes is None else card.processes
        if len(found) >= _MOST_PARTS:
            return
        if not found or name in found[-1] or (name == "gi" and "pid" in found[-1]):
            found.append({})
        _part(found[-1], name, kind, said)


_XML_MIG: dict[str, tuple[str, Any]] = {
    "gpu_instance_id": ("gi", whole),
    "compute_instance_id": ("ci", whole),
    "uuid": ("uuid", text),
    "gpu_uuid": ("uuid", text),
}
_XML_PROCESS: dict[str, tuple[str, Any]] = {
    "pid": ("pid", whole),
    "process_name": ("name", text),
    "used_memory": ("memory_used_mib", mebibytes),
    "gpu_instance_id": ("gi", whole),
    "compute_instance_id": ("ci", whole),
}
_ENDS = "</nvidia_smi_log>"


class QueryXml:
    """The XML of `-q -x` (DTD v10 to v13), read as it comes.

    The parser fetches nothing, and a document that declares entities is refused: nvidia-smi
    writes none. One that is damaged or cut short tells what came before.
    """

    def __init__(self, looks: Looks) -> None:
        self._looks = looks
        self._parser: expat.XMLParserType | None = None
        self._card: Card | None = None
        self._part: dict[str, Any] | None = None
        self._path: list[str] = []
        self._said: list[str] = []
        self._said_size = 0
        self._leaf = False
        self._refused = False

    @staticmethod
    def begins(line: str) -> bool:
        """Whether a line begins such a document."""
        return line.lstrip("\ufeff \t").startswith(
            ("<?xml ", "<!DOCTYPE nvidia_smi_log", "<nvidia_smi_log")
        )

    @property
    def reading(self) -> bool:
        """Whether a document has begun and not ended."""
        return self._parser is not None or self._refused

    def take(self, line: str) -> None:
        """Take one line of a document."""
        if self._refused and not line.startswith("<?xml "):
            self._refused = _ENDS not in line
            return
        self._refused = False
        if self._parser is None:
            self._open()
            line = line.lstrip("\ufeff \t")
        assert self._parser is not None
        if line.startswith("<?xml ") and self._path:  # the one before was cut short
            self._open()
        try:
            self._parser.Parse(line, False)
        except expat.ExpatError:
            self._close()
        except _Refused:
            self._close()
            self._refused = _ENDS not in line
        if _ENDS in line:
            self._close()

    def _open(self) -> None:
        parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.EntityDeclHandler = _refuse
        self._parser, self._card, self._part = parser, None, None
        self._path = []

    def _close(self) -> None:
        self._parser = self._card = None
        self._path = []

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        tag = tag.casefold()
        if not self._path:
            if tag != "nvidia_smi_log":
                raise _Refused(tag)
            self._looks.begin()
        self._path.append(tag)
        self._said, self._said_size, self._leaf = [], 0, True
        if self._path == ["nvidia_smi_log", "gpu"]:
            self._card = Card()
            if "id" in attributes:
                self._card.bus(attributes["id"])
            told = self._looks.current.card(self._card)
            if told is None:
                self._looks.add(self._card)
            self._card = told or self._card
        elif self._card is not None:
            self._inside(self._card, tag)

    def _inside(self, card: Card, tag: str) -> None:
        if tag == "mig_device" and len(card.mig) < _MOST_PARTS:
            self._part = {}
            card.mig.append(self._part)
        elif tag == "processes" and card.processes is None:
            card.processes = []
        elif tag == "process_info" and self._path[-2] == "processes":
            self._part = {}
            if card.processes is not None and len(card.processes) < _MOST_PARTS:
                card.processes.append(self._part)

    def _text(self, said: str) -> None:
        if self._leaf and self._said_size < _MOST_TEXT:
            self._said.append(said)
            self._said_size += len(said)

    def _end(self, tag: str) -> None:
        leaf, self._leaf = self._leaf, False
        path = self._path
        tag = tag.casefold()
        if leaf:
            self._value("/".join(path[2:]), path, "".join(self._said).strip())
        if tag in ("mig_device", "process_info"):
            self._part = None
        elif path == ["nvidia_smi_log", "gpu"]:
            self._card = None
        path.pop()

    def _value(self, below: str, path: list[str], said: str) -> None:
        card = self._card
        if card is None:
            self._top(path[-1], said)
        elif "mig_device" in path:
            if self._part is not None and path[-2] == "mig_device" and path[-1] in _XML_MIG:
                _part(self._part, *_XML_MIG[path[-1]], said)
        elif "process_info" in path:
            if self._part is not None and path[-1] in _XML_PROCESS:
                _part(self._part, *_XML_PROCESS[path[-1]], said)
        elif said:
            if below == "processes":
                card.processes = None
            _read(XML, card, below, said)

    def _top(self, tag: str, said: str) -> None:
        look = self._looks.current
        if tag == "timestamp":
            look.at = moment(said, self._looks.zone)
        elif tag == "driver_version" and reason(said) is None:
            look.driver = said
        elif tag == "attached_gpus" and said.isdecimal():
            look.attached = int(said[:6])


class _Refused(Exception):  # noqa: N818 (no error: it ends a document)
    """A document that is not nvidia-smi's."""


def _refuse(*_: object) -> NoReturn:
    raise _Refused("entities")
