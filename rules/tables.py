"""Everything the steps look up, in one frozen bundle: catalogs, thresholds, policy."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rules.catalog import Catalog, SXid, Xid
from rules.catalog import load as load_catalog
from rules.policy import Policy
from rules.policy import load as load_policy
from rules.thresholds import Thresholds
from rules.thresholds import load as load_thresholds

__all__ = ["Rules", "load"]


@dataclass(frozen=True, slots=True)
class Rules:
    """What a step is given beside its state and the record; vary it with dataclasses.replace."""

    catalog: Catalog
    thresholds: Thresholds
    policy: Policy

    @property
    def xids(self) -> Mapping[int, Xid]:
        """Every Xid code; `Catalog.xid` also knows what a code meant in old drivers."""
        return self.catalog.xids

    @property
    def sxids(self) -> Mapping[int, SXid]:
        """Every SXid code."""
        return self.catalog.sxids


def load(thresholds: Path | None = None, policy: Path | None = None) -> Rules:
    """Read the shipped tables, overridden by an operator's thresholds and policy files.

    Raises ThresholdsError or PolicyError with one sentence that names file, line and key, and
    CatalogError when the shipped catalogs are damaged.
    """
    return Rules(load_catalog(), load_thresholds(thresholds), load_policy(policy))
