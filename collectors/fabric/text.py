"""Turns what infiniband-diags and mlxlink print into records.

One text may hold the outputs of several tools (ibqueryerrors, perfquery, ibportstate, iblinkinfo,
ibnetdiscover), in any order. perfquery and ibportstate name a port by its LID, mlxlink by its
device: unless another output earlier in the same text says whose LID that is, ``guid`` is then
``lid:44`` or ``device:mlx5_0``. Of an adapter most tools print the port's GUID only.
"""

import re
import zlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from collectors.fabric.mlxlink_output import SECTIONS, MlxLink, target_of
from collectors.fabric.text_counters import PerfQuery, QueryErrors, Section
from collectors.fabric.text_portstate import PortState
from collectors.fabric.topology import LinkInfo, NetDiscover, Node
from collectors.fabric.words import described
from evidence.identity import digest
from evidence.records import FabricRecord

__all__ = ["parse_stream", "recognise", "record_of"]

#: Lines looked at by `recognise`.
_LOOKED_AT = 2000
#: A line is not longer than that, but for JSON on one line: an expression must not run away on it.
_MOST_BYTES = 4096

_SECTIONS: dict[str, type[QueryErrors | PerfQuery | PortState | LinkInfo | NetDiscover]] = {
    "ibqueryerrors": QueryErrors,
    "perfquery": PerfQuery,
    "ibportstate": PortState,
    "iblinkinfo": LinkInfo,
    "ibnetdiscover": NetDiscover,
}
#: What begins a line of each tool; the parser of the tool has the last word.
_BEGINNINGS = {
    "ibqueryerrors": re.compile(
        r"(?:Errors|Data Counters) for (?:0x|\")|\s+GUID 0x[0-9a-f]+ port |## Summary: \d+ nodes"
    ),
    "perfquery": re.compile(r"# [\w ]+ counters: Lid \d+ port "),
    "ibportstate": re.compile(r"# Port info: Lid \d+ port "),
    "iblinkinfo": re.compile(
        r"(?:CA|RT|Router): .*:\Z|Switch: 0x[0-9a-f]+ .*:\Z|(?!.*Link info:).* ==\([^=/]*/"
    ),
    "ibnetdiscover": re.compile(
        r"# Topology file: generated|(?:CA|SW|RT) +\d+ +\d+ 0x[0-9a-f]{16} "
        r"|(?:Switch|Ca|Rt)\s+\d+ \"[SHR]-[0-9a-f]{16}\""
    ),
}
_MLXLINK_JSON = re.compile(r"\"(?:Operational Info|Module Info|Physical Counters and BER Info)\"")
# $ mlxlink -d mlx5_3 -m -c
_COMMAND = re.compile(r"(?:.*[$#>] )?(?:sudo )?(?:\S*/)?mlxlink\s(.*)\Z")
# # Topology file: generated on Tue Dec  1 09:43:28 2026
_GENERATED = re.compile(r"# Topology file: generated on \w{3} (\w{3} +\d+ [\d:]{8} \d{4})")


def recognise(head: list[bytes]) -> bool:
    """Whether the first lines of a file are some fabric tool's."""
    for raw in head[:_LOOKED_AT]:
        line = raw[:_MOST_BYTES].decode("utf-8", "replace").rstrip()
        if _tool(line) is not None or line.strip() in SECTIONS or _MLXLINK_JSON.search(line):
            return True
    return False


def parse_stream(
    lines: Iterable[bytes], *, subnet: str, now: datetime, file: str | None = None
) -> Iterator[FabricRecord]:
    """Yield a record of each switch and adapter that a text tells of, once a sweep.

    ``now`` is when the text was read; ``at`` is set where the text itself has a time (taken for
    UTC). A port that is told of again begins the next sweep. Lines that are broken or of no tool
    are passed over; what a cut line would have said stands in ``unread``.

    An error of the input (a truncated gzip) is raised after the records of what came before it.
    """
    text = _Text(subnet, now, file)
    broken: Exception | None = None
    try:
        for number, raw in enumerate(lines, 1):
            most = len(raw) if raw.startswith(b"{") else _MOST_BYTES
            yield from text.feed(raw[:most].decode("utf-8", "replace").rstrip(), number)
    except (OSError, EOFError, zlib.error) as error:
        broken = error
    yield from text.end()
    if broken is not None:
        raise broken


def record_of(
    node: Node,
    *,
    subnet: str,
    now: datetime,
    source: str,
    file: str | None = None,
    at: datetime | None = None,
    host: str | None = None,
    device: str | None = None,
) -> FabricRecord:
    """One node as a record; its id is a function of what it says and where it stood.

    ``host`` and ``device`` are those that its description names, where they are not given.
    """
    named_host, named_device = described(node.name) if node.kind == "hca" else (None, None)
    record = FabricRecord(
        id="",
        observed_at=now,
        subnet=subnet,
        guid=node.guid,
        name=node.name,
        kind=node.kind or "unknown",
        host=host or named_host,
        device=device or named_device,
        at=at,
        source=source,
        file=file,
        ports=tuple(node.ports[at] for at in sorted(node.ports)),
    )
    said = msgspec.json.encode(replace(record, observed_at=datetime(1, 1, 1, tzinfo=UTC)))
    return replace(record, id=digest("fabric", node.line, said.decode()))


class _Text:
    """One text: the section that is being read, and what earlier ones told of GUIDs."""

    def __init__(self, subnet: str, now: datetime, file: str | None) -> None:
        self._subnet, self._now, self._file = subnet, now, file
        self._tool = ""
        self._section: Section | None = None
        self._at: datetime | None = None
        self._mlxlink: MlxLink | None = None
        self._target = target_of((file or "").rpartition("/")[2])
        self._by_lid: dict[int, Node] = {}
        self._node_of: dict[str, str] = {}

    def feed(self, line: str, number: int) -> Iterator[FabricRecord]:
        tool = _tool(line)
        if tool is not None and tool != self._tool:
            yield from self.end()
            self._tool, self._section = tool, _SECTIONS[tool]()
        elif tool is None and _begins_mlxlink(line, self._mlxlink):
            yield from self.end()
            self._tool, self._mlxlink = "mlxlink", MlxLink(number, self._target)
        elif "mlxlink" in line and (command := _COMMAND.match(line)):
            yield from self.end()
            self._target = target_of(command[1])
            return
        if self._mlxlink is not None:
            if not self._mlxlink.feed(line):
                yield from self.end()
        elif self._section is not None:
            yield from self._feed_section(self._section, line, number)

    def _feed_section(self, section: Section, line: str, number: int) -> Iterator[FabricRecord]:
        if section.repeats(line):
            tool = self._tool
            yield from self.end()
            self._tool, self._section = tool, section.again()
            section = self._section
        if self._tool == "ibnetdiscover" and (found := _GENERATED.match(line)):
            self._at = _time(found[1])
        section.feed(line, number)

    def end(self) -> Iterator[FabricRecord]:
        """End what is being read, and yield what it told."""
        section, mlxlink, tool = self._section, self._mlxlink, self._tool
        at, self._at = self._at, None
        self._section, self._mlxlink, self._tool = None, None, ""
        if mlxlink is not None:
            nodes = [mlxlink.node()]
        elif section is not None:
            if isinstance(section, NetDiscover):
                self._node_of |= section.node_of
            nodes = section.nodes.joined()
        else:
            return
        for node in nodes:
            self._complete(node)
            yield record_of(
                node,
                subnet=self._subnet,
                now=self._now,
                source=tool,
                file=self._file,
                at=at,
                device=mlxlink.target.device if mlxlink is not None else None,
            )

    def _complete(self, node: Node) -> None:
        """Name the node that a LID or a port's GUID stands for, as far as the text has told."""
        known = self._by_lid.get(node.lid or 0)
        if not node.guid.startswith("0x") and known is not None:
            node.guid, node.name, node.kind = known.guid, known.name, known.kind
        node.guid = self._node_of.get(node.guid, node.guid)
        if node.guid.startswith("0x") and node.lid:
            self._by_lid[node.lid] = node
        for at, port in node.ports.items():
            peer = port.peer_guid
            if peer in self._node_of:
                node.ports[at] = replace(port, peer_guid=self._node_of[peer])


def _begins_mlxlink(line: str, current: MlxLink | None) -> bool:
    if current is not None:
        return current.repeats(line)
    return line.strip() in SECTIONS or line.startswith("{")


def _tool(line: str) -> str | None:
    """The tool whose line this surely is; None for the lines that any tool could print."""
    for tool, beginning in _BEGINNINGS.items():
        if beginning.match(line, 0, _MOST_BYTES):
            return tool
    return None


def _time(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, "%b %d %H:%M:%S %Y").replace(tzinfo=UTC)
    except ValueError:
        return None
