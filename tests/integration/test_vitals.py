"""The parts' figures, health and readiness over HTTP, while they do their work."""

import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from kafka import KafkaProducer

from evidence.records import KernelKind, KernelRecord
from evidence.transport import Kafka
from evidence.wire import encode
from ringfence.embedded import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

HOST = f"gx-{uuid.uuid4().hex[:6]}"
PCI = "0000:c1:00"


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def wait(done: Callable[[], bool], here: Any) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline, here._state()
        time.sleep(0.1)


def test_worker_sink_and_scheduler_tell_what_they_did(kafka: Kafka, installed: Any) -> None:
    ports = {name: free_port(None) for name in ("worker", "sink", "scheduler")}
    here = installed(kafka)
    text = here.settings.read_text().replace('metrics_listen = ""\n', "") + "[scheduler]\n"
    for name, port in ports.items():
        text = text.replace(f"[{name}]\n", f'[{name}]\nmetrics_listen = "127.0.0.1:{port}"\n')
    here.settings.write_text(text)
    here.start_worker()
    here.start_sink()
    here.start_scheduler()
    seen = set()

    def ready() -> bool:
        seen.add(get(ports["worker"], "/readyz")[0])
        return all(get(port, "/readyz")[0] == 200 for port in ports.values())

    wait(ready, here)
    assert 503 in seen  # it listens before its tables are recovered
    assert {get(port, "/healthz")[0] for port in ports.values()} == {200}

    now = datetime.now(UTC)
    lost = KernelRecord(
        id="lost", observed_at=now, at=now, kind=KernelKind.XID, host=HOST, code=79, pci=PCI,
        raw=f"NVRM: Xid (PCI:{PCI}): 79, GPU has fallen off the bus.",
    )  # fmt: skip
    producer = KafkaProducer(**kafka.client(), acks="all")
    producer.send(kafka.topic("kernel"), encode(lost), key=HOST.encode()).get(30)
    producer.send(kafka.topic("kernel"), b"junk", key=HOST.encode()).get(30)
    producer.close()

    def told(name: str, line: str) -> bool:
        return line in get(ports[name], "/metrics")[1]

    # A command that is sent again before its ack is read has two acks.
    wait(lambda: told("scheduler", 'ringfence_scheduler_acks_total{status="done"} '), here)
    wait(lambda: told("sink", 'ringfence_sink_rows_total{topic="isolation.acks"} '), here)
    assert told("worker", 'ringfence_verdicts_total{cause="gpu-lost",status="localized"} 1.0')
    assert told("worker", 'ringfence_stage_deadletters_total{stage="host"} 1.0')
    assert told("worker", 'ringfence_isolated{as="act",domain="gpu"} 1.0')
    wait(lambda: told("worker", 'ringfence_unanswered_commands{as="act"} 0.0'), here)
    page = get(ports["worker"], "/metrics")[1]
    assert 'ringfence_stage_lag_messages{partition="0",stage="isolation",topic="verdicts"}' in page
    assert 'ringfence_stage_watermark_delay_seconds{partition="3",stage="host"}' in page
    here.finish()
    assert here.logs_with("no metrics are served") == []
    assert here.logs_with("Traceback") == []
