"""One command to carry out, and the clock it is carried out by."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from evidence.decisions import Action, Cause, Command, Domain, DomainKind, Level

NOW = datetime(2026, 11, 3, 2, 14, 9, tzinfo=UTC)


@pytest.fixture
def now() -> datetime:
    return NOW


@pytest.fixture
def command() -> Callable[..., Command]:
    """``command(id="c1", **fields)``: an isolate of one GPU that is still in time."""

    def build(**fields: Any) -> Command:
        domain = Domain(kind=DomainKind.GPU, host="hpc-n041", pci="0000:5e:00")
        plain: dict[str, Any] = {
            "id": "c1",
            "action": Action.ISOLATE,
            "domain": domain,
            "domain_id": domain.id,
            "level": Level.DRAIN,
            "cause": Cause.GPU_MEMORY,
            "reason": "double-bit error, row remap pending",
            "incident": "i1",
            "generation": 1,
            "issued_at": NOW,
            "act_by": NOW + timedelta(minutes=5),
        }
        return Command(**plain | fields)

    return build
