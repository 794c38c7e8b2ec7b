"""Proves a command: the stages run again over what was stored before it, and must say the same."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from ringfence.replay import Difference, Period, replay
from ringfence.show import proof_period, replay_command
from rules.tables import Rules
from warehouse.replay import begin_and_end
from warehouse.why import Why

__all__ = ["Proof", "prove"]

#: Records before the decision that are stepped, too: what the stages still remembered of them.
_WARM_UP = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether the command came out again.

    ``verdicts`` is how many revisions of its verdict did, ``other_way`` how many came to the same
    conclusion by another order of records, ``late`` how many rest on records that came too late to
    be taken in order. ``call`` is the command line that does the same.
    """

    same: bool
    verdicts: int
    other_way: int
    late: int
    differences: tuple[Difference, ...]
    failed: tuple[str, ...]
    call: str

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def prove(root: Path, rules: Rules, stages: tuple[str, ...], found: Why) -> Proof:
    """Run the stages again around a command.

    Raises WarehouseError where the history cannot be read.
    """
    since, until = proof_period(found)
    known = begin_and_end(root)
    begin = since - _WARM_UP if known is None else max(known[0], since - _WARM_UP)
    period = Period(min(begin, since), since, until)
    again = replay(root, rules, stages, period, host=found.command.domain.host)
    ours = {found.command.id, *(one.id for one in found.verdicts)}
    made = {one.id for one in again.commands}
    differences = tuple(one for one in again.different if one.id in ours)
    return Proof(
        same=found.command.id in made and not differences,
        verdicts=len({one.id for one in again.verdicts} & ours),
        other_way=again.order.total(),
        late=again.late.total(),
        differences=differences,
        failed=tuple(again.failed),
        call=replay_command(found),
    )
