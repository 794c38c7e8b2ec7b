"""The drill cut-link in the simulated fabric, with the real subnet manager, agent and worker."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from evidence.records import FabricRecord, InventoryRecord
from evidence.transport import Kafka
from ringfence.drills.reading import Reader
from ringfence.parts import Parts
from ringfence.supervise import Supervisor

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(240)]
ROOT = Path(__file__).parents[2]
SETTINGS = """\
[kafka]
bootstrap = "{bootstrap}"
prefix = "{prefix}"

[fabric_agent]
interval_s = 5

[worker]
metrics_listen = ""

[drill]
pools = ["lab"]
blind = true
"""


def _told(kafka: Kafka) -> set[type]:
    with Reader(kafka, "inventory", "fabric") as reader:
        return {type(record) for _, record in reader.past()}


def test_a_cut_link_is_named_and_healed(fabric: Any, kafka: Kafka, tmp_path: Path) -> None:
    config = tmp_path / "ringfence.toml"
    config.write_text(SETTINGS.format(bootstrap=kafka.bootstrap, prefix=kafka.prefix))
    parts = Parts(tmp_path, kafka.bootstrap, config)
    umad = fabric.environment | {"PYTHONPATH": str(ROOT)}
    leaf, up = fabric.tree.leaf(0), fabric.tree.up_port(1)
    with contextlib.ExitStack() as held:
        plain = held.enter_context(Supervisor(tmp_path / "logs"))
        plain.start("worker", parts.worker())
        agent = ("--host", "hgx001", "--pool", "lab", "--no-kmsg", "--gpu", "none")
        plain.start("agent", parts.agent(*agent, "--metrics-listen", ""))
        inside = held.enter_context(Supervisor(tmp_path / "logs", environ=umad))
        inside.start("fabric-agent", parts.fabric_agent())
        deadline = time.monotonic() + 60
        while not {InventoryRecord, FabricRecord} <= _told(kafka):
            assert time.monotonic() < deadline, (tmp_path / "logs/fabric-agent.log").read_text()
            time.sleep(0.5)
        done = subprocess.run(
            [
                sys.executable, "-m", "ringfence", "--config", str(config), "--data",
                str(tmp_path), "drill", str(ROOT / "deploy/drills/cut-link.toml"), "--host",
                "hgx001", "--set", f"node=S-{leaf:016x}", "--set",
                f"console={fabric.folder}/console", "--set", f"port={up}", "--json",
            ],
            capture_output=True, text=True, check=False, timeout=150,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    sys.stdout.write(done.stderr)
    assert done.stdout, done.stderr
    told = json.loads(done.stdout)
    assert (told["outcome"], told["differed"]) == ("passed", []), told
    assert told["cause"] == "ib-link"
    assert told["domain_id"] == f"link:0x{leaf:016x}/{up}"
    assert told["detected_s"] < told["undone_s"]
    # The link is there again: the subnet manager may still be at it.
    state = fabric.run("ibportstate", str(fabric.lid(leaf)), str(up))
    assert "PhysLinkState:...................LinkUp" in state
