"""How many spare nodes a job needs, from how often nodes fail and how long a repair takes.

The nodes out at any moment are Poisson with mean ``nodes * rate * repair`` (Palm's theorem: any
distribution of repair times, repairs that do not wait for each other). A rate that was measured is
uncertain itself; its Gamma posterior (Jeffreys) makes the number out negative binomial.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Costs", "Rate", "Row", "Sizing", "SparesError", "size"]

_MOST = 1_000
_TINY = 1e-12


class SparesError(ValueError):
    """The question has no answer; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Failures that take a node out: ``failures`` in ``node_days``, or an assumed rate.

    ``assumed`` is failures per node and day, taken as exact, where nothing was measured.
    """

    failures: int = 0
    node_days: float = 0.0
    assumed: float | None = None

    @property
    def per_node_day(self) -> float:
        """The rate's middle: assumed, or the mean of its posterior."""
        if self.assumed is not None:
            return self.assumed
        return (self.failures + 0.5) / self.node_days


@dataclass(frozen=True, slots=True)
class Costs:
    """What things cost, in one currency: a node's hour, and what one lost restart costs in hours.

    ``lost_hours`` is what each failure costs the whole job beside waiting: the time since the last
    checkpoint, the restart.
    """

    node_hour: float = 1.0
    lost_hours: float = 0.1


@dataclass(frozen=True, slots=True)
class Row:
    """One number of spares: how likely it is enough, and what a year costs.

    ``enough`` is the share of time in which all nodes the job needs are there; ``waiting_hours``
    the hours of a year in which they are not; costs are a year's.
    """

    spares: int
    enough: float
    waiting_hours: float
    cost_of_spares: float
    cost_of_waiting: float

    @property
    def cost(self) -> float:
        """Both together."""
        return self.cost_of_spares + self.cost_of_waiting


@dataclass(frozen=True, slots=True)
class Sizing:
    """The answer: the smallest number that is likely enough, the cheapest, and the table."""

    nodes: int
    probability: float
    repair_days: float
    rate: Rate
    needed: int
    cheapest: int
    failures_a_year: float
    out_at_once: float
    unavoidable: float
    rows: tuple[Row, ...]

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        rows = [asdict(row) | {"cost": row.cost} for row in self.rows]
        return asdict(self) | {"rate": asdict(self.rate) | {"per_node_day": self.rate.per_node_day},
                               "rows": rows}  # fmt: skip


def size(
    nodes: int, rate: Rate, repair_days: float, probability: float, costs: Costs | None = None
) -> Sizing:
    """Size the reserve of a job that needs ``nodes`` nodes.

    ``repair_days`` is the mean time from a node's failing to its return; ``probability`` the wanted
    share of time with enough nodes. Spares fail as the others do. Raises SparesError for a question
    without an answer.
    """
    costs = costs or Costs()
    _check(nodes, rate, repair_days, probability)
    out = nodes * rate.per_node_day * repair_days
    if out > _MOST / 2:
        raise SparesError(
            f"{out:.0f} nodes are out at once: that is no reserve, but a cluster to be mended"
        )
    rows: list[Row] = []
    needed = cheapest = None
    for spares, enough in _enough(nodes, rate, repair_days):
        rows.append(_row(spares, enough, nodes, costs))
        if needed is None and enough >= probability:
            needed = spares
        best = min(rows, key=lambda row: row.cost)
        past = rows[-1].cost_of_spares > best.cost
        if past and cheapest is None:
            cheapest = best.spares
        if needed is not None and cheapest is not None:
            break
    else:
        raise SparesError(f"{_MOST} spares are not enough for {probability:.4%} of the time")
    yearly = nodes * rate.per_node_day * 365.0
    return Sizing(
        nodes=nodes,
        probability=probability,
        repair_days=repair_days,
        rate=rate,
        needed=needed,
        cheapest=cheapest,
        failures_a_year=yearly,
        out_at_once=out,
        unavoidable=yearly * costs.lost_hours * nodes * costs.node_hour,
        rows=tuple(rows[: max(needed, cheapest) + 2]),
    )


def _check(nodes: int, rate: Rate, repair_days: float, probability: float) -> None:
    if nodes < 1:
        raise SparesError("a job needs one node at least")
    if not 0 < probability < 1:
        raise SparesError("a probability lies between 0 and 1, without either")
    if not (math.isfinite(repair_days) and repair_days > 0):
        raise SparesError("a repair takes more than no time")
    if rate.assumed is None and not rate.node_days > 0:
        raise SparesError("nothing was observed: give a rate, or node-days above zero")
    if rate.assumed is not None and not (math.isfinite(rate.assumed) and rate.assumed > 0):
        raise SparesError("a rate is a number above zero")
    if rate.failures < 0:
        raise SparesError("failures are not negative")


def _enough(nodes: int, rate: Rate, repair_days: float) -> Iterator[tuple[int, float]]:
    """For 0, 1, 2 ... spares, the share of time in which at most that many nodes are out."""
    for spares in range(_MOST + 1):
        exposed = (nodes + spares) * repair_days
        yield spares, _at_most(spares, exposed, rate)


def _at_most(most: int, exposed: float, rate: Rate) -> float:
    """P(at most ``most`` are out) where ``exposed`` node-days of failures are under repair."""
    if rate.assumed is not None:
        return _poisson(most, exposed * rate.assumed)
    # Gamma-Poisson: shape failures + 1/2, and each node-day of exposure weighs against those seen.
    shape = rate.failures + 0.5
    p = rate.node_days / (rate.node_days + exposed)
    total = 0.0
    for count in range(most + 1):
        log = (
            math.lgamma(count + shape) - math.lgamma(shape) - math.lgamma(count + 1)
            + shape * math.log(p) + count * math.log1p(-p)
        )  # fmt: skip
        total += math.exp(log)
    return min(1.0, total)


def _poisson(most: int, mean: float) -> float:
    total = 0.0
    for count in range(most + 1):
        total += math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))
    return min(1.0, total)


def _row(spares: int, enough: float, nodes: int, costs: Costs) -> Row:
    hours = 365.0 * 24.0
    waiting = hours * max(0.0, 1.0 - enough)
    if waiting < _TINY:
        waiting = 0.0
    return Row(
        spares=spares,
        enough=enough,
        waiting_hours=waiting,
        cost_of_spares=spares * hours * costs.node_hour,
        cost_of_waiting=waiting * nodes * costs.node_hour,
    )
