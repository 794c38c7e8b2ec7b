"""Failures, node-days and repairs that a history tells."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.warehouse import made_history as made
from warehouse.reliability import Reliability, reliability


def test_failures_days_and_repairs_of_a_month(
    root: Path, partition: Callable[..., Any], fetched: type[Any]
) -> None:
    told = made.history()
    made.keep(told, partition, fetched)
    seen = reliability(root)
    assert seen.failures == 4
    # Watched to the last kernel line, ack or inventory, the ack of 20 March, from the first on.
    last = max(at for at, topic, _ in told if topic in {"kernel", "inventory", "isolation.acks"})
    assert seen.node_days == pytest.approx(4 * (last - made.BEGIN) / timedelta(days=1))
    # 12, 24, 60 and 2 hours, each from its ack on, two seconds after the command.
    assert seen.repair_days == pytest.approx((12 + 24 + 60 + 2 - 8 / 3600) / 4 / 24, rel=1e-6)


def test_an_empty_history_tells_nothing(root: Path) -> None:
    assert reliability(root) == Reliability(0, 0.0, None)
