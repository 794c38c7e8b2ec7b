"""Records of an older and a newer minor version, side by side through the real worker."""

import json
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from kafka import KafkaProducer

from evidence.decisions import Cause, Status
from evidence.transport import Kafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

HOSTS = {name: f"{name}-{uuid.uuid4().hex[:6]}" for name in ("older", "newer")}
PCI = "0000:9a:00"


def lost_card(host: str, **more: Any) -> bytes:
    now = datetime.now(UTC).isoformat()
    needed = {
        "schema": "kernel/1", "id": f"k-{host}", "observed_at": now, "at": now, "kind": "xid",
        "raw": f"NVRM: Xid (PCI:{PCI}): 79, GPU has fallen off the bus.", "host": host,
        "code": 79, "pci": PCI,
    }  # fmt: skip
    return json.dumps(needed | more).encode()


def test_a_worker_judges_records_of_an_older_and_a_newer_version_alike(
    kafka: Kafka, installed: Any
) -> None:
    here = installed(kafka)
    newer = HOSTS["newer"]
    later = {"learned_later": {"x": [1]}, "mig": {"gi": 1, "ci": 0, "slice": "a"}}
    told = [
        (HOSTS["older"], lost_card(HOSTS["older"])),
        (newer, lost_card(newer, id="k-new-kind", kind="nvme-timeout", code=None)),
        (newer, lost_card(newer, **later)),
    ]
    producer = KafkaProducer(**kafka.client(), acks="all")
    for host, value in told:
        producer.send(kafka.topic("kernel"), value, key=host.encode()).get(30)
    producer.close()
    here.start_worker()

    def judged() -> set[tuple[str, Status, Cause]]:
        return {
            (one.domain.host, one.status, one.cause)
            for one in here.records("verdicts")
            if hasattr(one, "cause")
        }

    here.until(lambda: len(judged()) == 2)
    here.finish()
    assert judged() == {(host, Status.LOCALIZED, Cause.GPU_LOST) for host in HOSTS.values()}
    assert here.records("deadletters") == []
    assert here.logs_with("Traceback") == []
