"""Which rule made a verdict as sure as it is: the name by which a policy can hold it back."""

from collections.abc import Mapping

from evidence.decisions import Says, Status, Witness
from rules.catalog import Role
from rules.causality import chain_confirmed
from rules.host_state import FactKind, Incident
from rules.scene import Judgement
from rules.silence import RULE as SILENT
from rules.verdict_growth import GROWTH
from rules.widening import NODE_DARK, NODE_LOST, NODE_SILENT

__all__ = ["rule_of"]

_BY_SUBJECT: Mapping[str, str] = {
    NODE_LOST: "all-gpus",
    NODE_DARK: "dark-node",
    NODE_SILENT: SILENT,
    "node:service": "service",
    "node:boots": "boots",
}
_BY_WORD: Mapping[str, str] = {
    "node": "node-fault",
    "switch": "nvswitch",
    "port": "pcie-port",
    "link": "fabric-errors",
    "job": "job",
    "rank": "collective-alone",
    GROWTH: "ecc-trend",
}
_AGREED: Mapping[int, str] = {2: "two-witnesses", 3: "three-witnesses"}


def rule_of(incident: Incident, told: Judgement) -> str:
    """The rule behind a judgement: the one it names itself, else what its kind tells.

    A hard fact and a threshold come before agreement, since either is enough alone.
    """
    subject = incident.subject
    named = _BY_SUBJECT.get(subject) or _BY_WORD.get(subject.partition(":")[0])
    return told.rule or named or _of_a_gpu(incident, told)


def _of_a_gpu(incident: Incident, told: Judgement) -> str:
    root = told.root
    if root.role is Role.APPLICATION and told.status is not Status.SOFTWARE:
        return "repeats"
    if told.hard:
        return root.hard or root.name
    accusers = [one.witness for one in told.testimony if one.says is Says.ACCUSES]
    if told.status is Status.LOCALIZED and not root.crossing:
        if chain_confirmed(incident.facts):
            return "driver-chain"
        return _AGREED.get(len(accusers), "link-repeats")
    if root.kind is FactKind.COLLECTIVE or accusers == [Witness.COLLECTIVE]:
        return "collective-alone"
    return root.name
