"""The names of the rules that can make a verdict sure, and how far each may act.

A rule is a fact that is enough alone (``gpu-lost``, ``xid-79``), or a way of concluding from
several (``two-witnesses``). A name without an entry of its own has its family's, else the default.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["DEFAULT", "KNOWN_RULES", "Maturity", "Rule", "family_of", "find_rule", "is_rule"]

DEFAULT = "default"
_CODED = re.compile(r"(xid|sxid)-[1-9][0-9]{0,4}\Z")  # xid-74, sxid-12028
_NVML = re.compile(r"nvml-[1-9][0-9]{0,2}\Z")  # nvml-15

#: Ways of concluding, and facts that are not a code of their own.
KNOWN_RULES = frozenset(
    {
        DEFAULT,
        "xid",
        "sxid",
        # Enough alone: hard facts and thresholds.
        "gpu-lost",
        "remap-failure",
        "driver-reset-required",
        "sram-threshold",
        "ecc-growth",
        "over-temperature",
        # Several voices about one GPU.
        "driver-chain",
        "two-witnesses",
        "three-witnesses",
        "repeats",
        "link-repeats",
        "collective-alone",
        # Wider than one GPU.
        "all-gpus",
        "service",
        "boots",
        "dark-node",
        "silent-node",
        "silent-hosts",
        "common-cause",
        "node-fault",
        "nvswitch",
        "pcie-port",
        "fabric-errors",
        "switch",
        "rack",
        "hot-rack",
        "job",
        # Facts that alone make a suspicion at most.
        "nvrm-lost",
        "nvrm-init",
        "unresponsive",
        "nvml-error",
        "reset-required",
        "ecc-uncorrectable",
        "ecc-trend",
        "unrepairable-memory",
        "nvlinks-down",
        "fabric-unhealthy",
    }
)


class Maturity(StrEnum):
    """Whether a rule's verdicts are acted upon, or only show what would have been done."""

    SHADOW = "shadow"
    STABLE = "stable"


@dataclass(frozen=True, slots=True)
class Rule:
    """How far one rule may act; one that is off is still said, and never acted upon."""

    maturity: Maturity = Maturity.STABLE
    enabled: bool = True

    @property
    def muted(self) -> str | None:
        """Why nothing is done about its verdicts: ``off``, ``shadow``; None where it acts."""
        if not self.enabled:
            return "off"
        return "shadow" if self.maturity is Maturity.SHADOW else None


def is_rule(name: str) -> bool:
    """Whether a policy may speak of a rule of this name."""
    return name in KNOWN_RULES or _CODED.match(name) is not None or _NVML.match(name) is not None


def family_of(name: str) -> str:
    """The name whose entry stands for a rule that has none: ``xid`` for ``xid-74``."""
    coded = _CODED.match(name)
    return coded.group(1) if coded is not None else DEFAULT


def find_rule(rules: Mapping[str, Mapping[str, object]], name: str | None) -> Rule:
    """A rule with its own entries over its family's over the default's."""
    found = dict(rules.get(DEFAULT, {}))
    if name is not None:
        if (family := family_of(name)) != DEFAULT:
            found |= rules.get(family, {})
        found |= rules.get(name, {})
    return Rule(**found)  # type: ignore[arg-type]
