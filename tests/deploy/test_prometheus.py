"""The alert rules, their unit tests, the example configurations and the board."""

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric

from collectors.metrics import Metrics
from collectors.shipping.shipper import Shipper
from evidence.transport import Kafka
from rules.desired import IsolationState
from rules.tables import load
from schedulers.budget import Limits
from schedulers.counts import Counts
from schedulers.metrics import SchedulerVitals
from streams.config import WorkerConfig
from streams.metrics import WorkerMetrics
from streams.runner import Runner
from streams.stages import STAGES, bind
from streams.states import Live, States
from warehouse.metrics import SinkCounts, SinkMetrics

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
RULES = (FOLDER / "ringfence.rules.yml").read_text()
CASES = (FOLDER / "tests" / "ringfence.test.yml").read_text()
BOARD = json.loads((FOLDER / "grafana-ringfence.json").read_text())
RUNBOOK = (ROOT / "docs" / "operations.md").read_text()
ALERTS = re.findall(r"^ +- alert: (\w+)$", RULES, re.MULTILINE)

_NAME = re.compile(r"\bringfence_[a-z_]+\b")
#: Endings of samples by the type of their family.
_ENDINGS = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_sum", "_count"),
    "info": ("_info",),
    "gauge": ("",),
}


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        if "RINGFENCE_REQUIRE_PARTS" in os.environ:
            pytest.fail(f"{name} is missing: make parts installs it")
        pytest.skip(f"{name} is missing (Debian's prometheus, prometheus-alertmanager)")
    return found


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_promtool_takes_the_rules_and_the_example_that_reads_them() -> None:
    said = run(program("promtool"), "check", "rules", str(FOLDER / "ringfence.rules.yml"))
    assert f"SUCCESS: {len(ALERTS)} rules found" in said
    run(program("promtool"), "check", "config", str(FOLDER / "prometheus.yml"))


def test_every_rule_fires_and_is_silent_as_its_cases_say() -> None:
    run(program("promtool"), "test", "rules", str(FOLDER / "tests" / "ringfence.test.yml"))


def test_amtool_takes_the_example_of_where_alerts_go() -> None:
    said = run(program("amtool"), "check-config", str(FOLDER / "alertmanager.yml"))
    assert "2 receivers" in said
    named = re.findall(r"alertname =~? \"?([\w|()]+)\"?", (FOLDER / "alertmanager.yml").read_text())
    for pattern in named:
        assert [one for one in ALERTS if re.fullmatch(pattern, one)], pattern


@pytest.mark.parametrize("alert", ALERTS)
def test_every_rule_has_a_firing_and_a_silent_case_and_a_page_in_the_runbook(alert: str) -> None:
    assert CASES.count(f"  - name: {alert} fires\n") == 1
    assert CASES.count(f"  - name: {alert} is silent\n") == 1
    rule = RULES.split(f"- alert: {alert}\n", 1)[1].split("- alert:", 1)[0]
    assert re.search(r"severity: (critical|warning|info)\n", rule)
    assert "summary: " in rule
    assert f"runbook_url: docs/operations.md#{alert.lower()}\n" in rule
    assert f"\n#### {alert}\n" in RUNBOOK


def test_the_cards_rules_have_the_thresholds_that_the_worker_judges_by() -> None:
    shipped = tomllib.loads((ROOT / "rules" / "thresholds.toml").read_text())
    limits = {name: shipped[name]["value"] for name in shipped}
    assert f"ringfence_gpu_temperature_celsius > {limits['temperature_c']:g}\n" in RULES
    assert (
        f"ringfence_gpu_temperature_margin_celsius <= {limits['temperature_margin_c']:g}" in RULES
    )
    assert limits["temperature_for_s"] == 600
    hot = RULES.split("- alert: RingfenceGpuHot\n", 1)[1]
    assert hot.index("for: 10m") < hot.index("- alert:")
    assert f"[15d]) > {limits['ecc_uncorrectable_growth']}\n" in RULES


class Nobody:
    """Nothing is sent here."""

    async def send(self, message: Any) -> Any:
        raise NotImplementedError

    async def keep(self, key: bytes, value: bytes | None, partition: int) -> object:
        raise NotImplementedError

    async def fail(self, error: BaseException) -> None:
        raise NotImplementedError


def runners() -> Iterator[Runner]:
    for stage in bind(STAGES, load()):
        states = States(stage, 1 << 20)
        if stage.name == "isolation":
            states.remember(b"cluster", Live(0, IsolationState(restored=True)))
        yield Runner(stage, states, Nobody(), batch_size=1)


@pytest.fixture(scope="module")
def exported() -> set[str]:
    """Names of every sample that any part can export."""
    shipper = Shipper(Kafka(bootstrap="127.0.0.1:1"))
    parts: list[Any] = [
        Metrics("n4", [], shipper),
        WorkerMetrics(WorkerConfig(), list(runners()), lambda *_: None, lambda: True),
        SinkMetrics(SinkCounts(), {}),
        SchedulerVitals("exec", Counts(), Limits()),
    ]
    families: list[Metric] = [family for part in parts for family in part.collect()]
    shipper.close(0)
    return {family.name + end for family in families for end in _ENDINGS[family.type]}


def expressions() -> list[str]:
    return [target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", ())]


@pytest.mark.parametrize("text", [RULES, CASES, *expressions()], ids=lambda text: text[:40])
def test_only_what_our_parts_export_is_asked_for(text: str, exported: set[str]) -> None:
    words = "\n".join(line for line in text.splitlines() if "- name: ringfence-" not in line)
    assert set(_NAME.findall(words)) - exported == set()


def test_the_board_is_one_that_grafana_reads(tmp_path: Path) -> None:
    assert (BOARD["title"], BOARD["uid"]) == ("Ringfence", "ringfence")
    numbers = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    for panel in BOARD["panels"]:
        assert panel["type"] in ("row", "timeseries", "stat")
        assert panel["title"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert panel["type"] == "row" or panel["targets"]
    # promtool reads the queries as it reads those of rules.
    rules = [
        {"record": f"board:query{number}", "expr": expr}
        for number, expr in enumerate(expressions())
    ]
    file = tmp_path / "board.rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}))
    run(program("promtool"), "check", "rules", str(file))
