"""The real /dev/kmsg, from what root writes there to the verdict in Kafka."""

import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from evidence.decisions import Cause, Status, Verdict
from evidence.transport import Kafka

KMSG = Path("/dev/kmsg")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        not os.access(KMSG, os.R_OK | os.W_OK),
        reason="/dev/kmsg is not there or not writable (it needs root outside a container)",
    ),
]


def test_an_xid_written_into_the_kernels_ring_becomes_a_verdict_in_kafka(
    any_kafka: Kafka, installed: Any
) -> None:
    # The ring still has what earlier runs wrote: a card of this run's own, in a PCI domain that
    # no machine has.
    chance = random.SystemRandom()
    pci = f"{chance.randrange(0xA000, 0xFFFF):04x}:{chance.randrange(1, 255):02x}:00"
    host = f"kmsg-{chance.randrange(10**6)}"
    here = installed(any_kafka)
    here.start_worker()
    here.start_agent(host, "--gpu", "none", kmsg=True)
    # The agent has read the ring's past when what it knows of the node is in Kafka.
    here.until(lambda: any(getattr(one, "host", "") == host for one in here.records("inventory")))
    written = datetime.now(UTC)
    with KMSG.open("w") as ring:
        ring.write(
            f"<4>NVRM: Xid (PCI:{pci}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off "
            "the bus.\n"
        )

    def ours() -> list[Verdict]:
        return [
            one
            for one in here.records("verdicts")
            if isinstance(one, Verdict) and one.domain.pci == pci
        ]

    here.until(lambda: bool(ours()))
    here.finish()
    verdict = ours()[-1]
    assert (verdict.status, verdict.cause, verdict.hard) == (
        Status.LOCALIZED,
        Cause.GPU_LOST,
        True,
    )
    assert verdict.domain.host == host
    # The kernel's clock is not disciplined by NTP: it may drift against the wall clock.
    assert abs(verdict.at - written) < timedelta(minutes=2)
    (record,) = [one for one in here.records("kernel") if getattr(one, "pci", None) == pci]
    assert (record.source, record.code, record.host) == ("kmsg", 79, host)
    assert record.id in {one.id for one in verdict.evidence}
    assert here.logs_with("Traceback") == []
