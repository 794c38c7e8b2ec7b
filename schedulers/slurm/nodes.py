"""Nodes as scontrol shows them: flags of their state, reason, who set it and when."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from schedulers.slurm import marks
from schedulers.slurm.tools import Tools, blocks, moment

__all__ = ["Node", "Nodes"]

# NodeName=gpu-00 Arch=x86_64 CoresPerSocket=1
_NAME = re.compile(r"NodeName=(\S+)")
#    State=IDLE+DRAIN ThreadsPerCore=1 TmpDisk=0
_STATE = re.compile(r"^   State=(\S+)")
# after three blanks: ActiveFeatures=h100,r12
_FEATURES = re.compile(r"^   ActiveFeatures=(\S+)")
#    BootTime=2026-12-01T09:34:17 SlurmdStartTime=2026-12-01T13:37:08
_BOOT = re.compile(r"^   BootTime=(\S+)")
#    Reason=bad fan [ops@2026-12-01T13:37:08]
_REASON = re.compile(r"^   Reason=(.*?)(?: \[([^\[\]@]*)@([^\[\]]*)\])?\s*$", re.DOTALL)
_TOO_LITTLE = (
    r"(?:Low (?:socket\*core(?:\*thread)? count|CPUs|RealMemory|TmpDisk)"
    r"|gres/\S+ count (?:reported lower than configured|too low))(?: \([^()]*\))?"
)
#: Reasons that slurmctld and slurmd write by themselves, whole: nobody's decision, and told again
#: when they hold (slurmctld's node_mgr.c, ping_nodes.c). A person's may begin alike.
_SLURMS_OWN = re.compile(
    rf"(?:Not responding|Node unexpectedly rebooted|{_TOO_LITTLE}(?:, {_TOO_LITTLE})*"
    rf"|reboot (?:requested|issued|complete|timed out)|Reboot ASAP){marks.REBOOTED}"
)


@dataclass(frozen=True, slots=True)
class Node:
    """One node; ``flags`` are its state's words, the base state first: ``IDLE``, ``DRAIN``."""

    name: str
    flags: tuple[str, ...]
    features: frozenset[str] = frozenset()
    reason: str = ""
    by: str = ""
    since: datetime | None = None
    booted_at: datetime | None = None

    @property
    def drained(self) -> bool:
        """Whether it gets no new work; a reason alone says nothing, it may be left over."""
        return "DRAIN" in self.flags

    @property
    def out(self) -> bool:
        """Whether somebody took it out, drained or down."""
        return self.drained or self.flags[0] in {"DOWN", "FAIL", "ERROR"} or "FAIL" in self.flags

    @property
    def marks(self) -> tuple[marks.Mark, ...]:
        """What it is out for, of ours; empty where it is not drained."""
        return marks.read(self.reason) if self.drained else ()

    @property
    def foreign(self) -> bool:
        """Whether a person or another tool took it out, and not Slurm for an error of its own."""
        if not self.out or marks.is_ours(self.reason):
            return False  # a node that is down keeps the reason of a drain that has ended
        return bool(self.reason) and not _SLURMS_OWN.fullmatch(self.reason)


class Nodes:
    """Reads nodes and changes their drain."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def all(self) -> dict[str, Node]:
        """Every node by its name; raises ToolsError."""
        return self._read()

    def some(self, names: Iterable[str]) -> dict[str, Node]:
        """These nodes; a name that Slurm does not know is left out. Raises ToolsError."""
        wanted = sorted(set(names))
        found = self._read(wanted[0]) if len(wanted) == 1 else self._read()
        return {name: found[name] for name in wanted if name in found}

    def drain(self, node: Node, held: Iterable[marks.Mark]) -> Node:
        """Drain a node for these marks; returns it as it should be now. Raises ToolsError."""
        reason = marks.written(held)
        self._tools.run(
            "scontrol", "update", f"nodename={node.name}", "state=drain", f"reason={reason}"
        )
        return replace(
            node, flags=(*(f for f in node.flags if f != "DRAIN"), "DRAIN"), reason=reason
        )

    def undrain(self, node: Node) -> Node:
        """End a drain and nothing else: a node that is down stays down. Raises ToolsError."""
        self._tools.run("scontrol", "update", f"nodename={node.name}", "state=undrain")
        return replace(node, flags=tuple(f for f in node.flags if f != "DRAIN"), reason="")

    def _read(self, name: str | None = None) -> dict[str, Node]:
        arguments = ["show", "node", *([] if name is None else [name])]
        try:
            text = self._tools.run("scontrol", *arguments)
        except Exception as error:
            if name is not None and "not found" in str(error):
                return {}
            raise
        found = {}
        for block in blocks(text):
            node = _node(block)
            if node is not None:
                found[node.name] = node
        return found


def _node(lines: list[str]) -> Node | None:
    name = _NAME.match(lines[0])
    if name is None:
        return None
    flags: tuple[str, ...] = ("UNKNOWN",)
    features: frozenset[str] = frozenset()
    reason, by, since, booted = "", "", None, None
    for number, line in enumerate(lines):
        if found := _STATE.match(line):
            base, *more = re.sub(r"[*~#!%$@^-]+(?=\+|$)", "", found[1]).split("+")
            flags = (base, *more)
        elif found := _FEATURES.match(line):
            features = frozenset(found[1].split(","))
        elif found := _BOOT.match(line):
            booted = moment(found[1])
        elif line.startswith("   Reason="):
            # A reason of several lines is continued with more blanks; our own never is.
            rest = [one for one in lines[number + 1 :] if one.startswith("          ")]
            if found := _REASON.match("\n".join([line, *(one.strip() for one in rest)])):
                reason, by, since = found[1].strip(), found[2] or "", moment(found[3])
    return Node(name[1], flags, features, reason, by, since, booted)
