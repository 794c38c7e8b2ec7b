"""Reads the counters of many ports in three passes: abilities, counters, and details of what grew.

Details (what receive errors and discards are made of) are asked only when their sum grew.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from collectors.fabric.discovery import Asker
from collectors.fabric.mad import (
    CLASS_PORT_INFO,
    PORT_COUNTERS,
    PORT_COUNTERS_EXTENDED,
    RCV_ERROR_DETAILS,
    XMIT_DISCARD_DETAILS,
    performance,
)
from collectors.fabric.mad_attributes import (
    DATA,
    ClassPortInfo,
    class_port_info,
    port_counters,
    port_counters_extended,
    rcv_error_details,
    xmit_discard_details,
)

__all__ = ["Reading", "read_counters"]

_End = tuple[int, int]

#: The attribute that tells what a counter is made of, and how to read it.
_DETAILS: dict[str, tuple[int, Callable[[bytes], dict[str, int]]]] = {
    "port_rcv_errors": (RCV_ERROR_DETAILS, rcv_error_details),
    "port_xmit_discards": (XMIT_DISCARD_DETAILS, xmit_discard_details),
}


@dataclass(slots=True)
class Reading:
    """Counters of one port in one sweep; ``wide`` names those that were read with 64 bits."""

    counters: dict[str, int] = field(default_factory=dict)
    wide: frozenset[str] = frozenset()
    unread: dict[str, str] = field(default_factory=dict)

    def fell(self, before: "Reading | None") -> bool:
        """Whether a counter is lower than it was: somebody cleared it, or the device restarted.

        One that was read with another width is not compared.
        """
        return before is not None and any(
            value < before.counters.get(name, 0) and (name in self.wide) == (name in before.wide)
            for name, value in self.counters.items()
        )

    def after(self, before: "Reading | None") -> "Reading":
        """What to compare the next reading with: this one, and what only an earlier one had."""
        if before is None or self.fell(before):
            return self
        kept = before.counters.keys() - self.counters.keys()
        return Reading(before.counters | self.counters, self.wide | before.wide & kept)

    def grew(self, name: str, before: "Reading | None") -> bool:
        """Whether a counter is higher than it was; one seen for the first time, higher than 0."""
        return self.counters.get(name, 0) > (before.counters.get(name, 0) if before else 0)


def read_counters(
    mads: Asker,
    ports: Sequence[tuple[_End, int]],
    able: dict[_End, ClassPortInfo],
    before: Mapping[_End, Reading],
    refused: set[tuple[int, int]],
    until: float | None = None,
) -> dict[_End, Reading]:
    """Read every port of ``ports`` (its end of the link, and the LID that answers for it).

    ``able`` keeps what each performance agent (node GUID, LID) can do, ``refused`` which details
    it (by GUID) does not have; both are filled here. ``before`` has the last readings.
    """
    readings = {end: Reading() for end, _ in ports}
    unable = _ask_abilities(mads, ports, able, until)
    ready = []
    for end, lid in ports:
        if (end[0], lid) in unable:
            readings[end].unread["counters"] = unable[end[0], lid]
        else:
            ready.append((end, lid))
    _ask_counters(mads, ready, able, readings, until)
    _ask_details(mads, ready, readings, before, refused, until)
    return readings


def _ask_abilities(
    mads: Asker,
    ports: Sequence[tuple[_End, int]],
    able: dict[_End, ClassPortInfo],
    until: float | None,
) -> dict[_End, str]:
    """Ask the agents that were not asked before; return those that did not answer, and why."""
    unable = {}
    agents = list(dict.fromkeys((end[0], lid) for end, lid in ports))
    new = [agent for agent in agents if agent not in able]
    answers = mads.ask([performance(CLASS_PORT_INFO, lid) for _, lid in new], until)
    for agent, answer in zip(new, answers, strict=True):
        if isinstance(answer, bytes):
            able[agent] = class_port_info(answer)
        else:
            unable[agent] = answer
    return unable


def _ask_counters(
    mads: Asker,
    ports: Sequence[tuple[_End, int]],
    able: Mapping[_End, ClassPortInfo],
    readings: Mapping[_End, Reading],
    until: float | None,
) -> None:
    """Fill in the counters: all from one attribute where the agent has 64 bits for errors too."""
    asked = []
    for end, lid in ports:
        can = able[end[0], lid]
        if not can.wide_errors:
            asked.append((end, lid, PORT_COUNTERS, can))
        if can.wide_errors or can.wide_data:
            asked.append((end, lid, PORT_COUNTERS_EXTENDED, can))
    answers = mads.ask([performance(what, lid, end[1]) for end, lid, what, _ in asked], until)
    for (end, _, what, can), answer in zip(asked, answers, strict=True):
        reading = readings[end]
        if isinstance(answer, str):
            extended_only = what == PORT_COUNTERS_EXTENDED and not can.wide_errors
            reading.unread["data_counters" if extended_only else "counters"] = answer
        elif what == PORT_COUNTERS:
            found = port_counters(answer, can)
            # Where there are 64 bits for them, 32 are not looked at, whatever became of the 64.
            for name in DATA if can.wide_data else ():
                del found[name]
            reading.counters |= found
        else:
            found = port_counters_extended(answer, can)
            reading.counters |= found
            reading.wide = frozenset(found)


def _ask_details(
    mads: Asker,
    ports: Sequence[tuple[_End, int]],
    readings: Mapping[_End, Reading],
    before: Mapping[_End, Reading],
    refused: set[tuple[int, int]],
    until: float | None,
) -> None:
    asked = [
        (end, lid, counter)
        for end, lid in ports
        for counter, (what, _) in _DETAILS.items()
        if (end[0], what) not in refused and readings[end].grew(counter, before.get(end))
    ]
    answers = mads.ask(
        [performance(_DETAILS[counter][0], lid, end[1]) for end, lid, counter in asked], until
    )
    for (end, _, counter), answer in zip(asked, answers, strict=True):
        what, decode = _DETAILS[counter]
        if isinstance(answer, bytes):
            readings[end].counters |= decode(answer)
            continue
        readings[end].unread[f"{counter} in detail"] = answer
        if answer.startswith("refused"):
            refused.add((end[0], what))
