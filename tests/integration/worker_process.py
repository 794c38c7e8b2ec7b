"""A worker with small stages of its own, run as a process so that it can be killed.

Arguments: bootstrap, prefix, partitions, state folder; then any of POINT:N (it kills itself at
this point of its N-th settled batch), POINT:N:stop (it stops itself there, as by SIGSTOP), and
NAME=VALUE for a setting, with the tables in memory unless ``store`` says otherwise.
"""

import json
import logging
import os
import signal
import sys
from collections import Counter
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct

from evidence.decisions import (
    Action,
    Cause,
    Command,
    DesiredState,
    Domain,
    DomainKind,
    Level,
    Says,
    Status,
    Suspicion,
    Verdict,
    Witness,
)
from evidence.identity import digest
from evidence.records import KernelRecord, Tick
from evidence.transport import Kafka
from rules.stage import Arrived
from streams.config import StreamsError
from streams.stage import Stage
from streams.worker import WorkerConfig, run


class Tally(Struct, frozen=True, omit_defaults=True):
    """How many kernel records a host has had, and until when it waits for a tick."""

    count: int = 0
    wait_until: datetime | None = None


def node(host: str | None) -> Domain:
    return Domain(kind=DomainKind.NODE, host=host)


def count(state: Tally, arrived: Arrived) -> tuple[Tally, list[Struct]]:
    """A verdict for every record, with its number; `wait` asks for a tick, `raise` fails."""
    record = arrived.record
    if isinstance(record, Tick):
        suspicion = Suspicion(
            id=digest("waited", state.count),
            at=arrived.at,
            observed_at=arrived.at,
            witness=Witness.KERNEL,
            says=Says.ACCUSES,
            kind="waited",
            domain=node(None),
            host="elsewhere",
            reason=f"waited after {state.count}",
        )
        return Tally(state.count), [suspicion]
    if not isinstance(record, KernelRecord):
        return state, []
    if record.raw == "raise":
        raise ValueError("a step that cannot")
    verdict = Verdict(
        id=digest("verdict", record.id),
        incident=record.id,
        revision=1,
        at=arrived.at,
        decided_at=arrived.at,
        status=Status.LOCALIZED,
        cause=Cause.NODE,
        domain=node(record.host),
        confidence=1.0,
        reason=f"{record.host} {state.count + 1}",
    )
    wait = arrived.at + timedelta(seconds=0.5) if record.raw == "wait" else None
    return Tally(state.count + 1, wait), [verdict]


class Commanded(Struct, frozen=True, omit_defaults=True):
    """How many verdicts were answered by a command."""

    count: int = 0


def command(state: Commanded, arrived: Arrived) -> tuple[Commanded, list[Struct]]:
    """A command and a desired state for every verdict."""
    verdict = arrived.record
    if not isinstance(verdict, Verdict):
        return state, []
    sent = Command(
        id=digest("command", verdict.id),
        action=Action.ISOLATE,
        domain=verdict.domain,
        domain_id=verdict.domain.id,
        level=Level.CORDON,
        cause=verdict.cause,
        reason=verdict.reason,
        incident=verdict.incident,
        generation=1,
        issued_at=arrived.at,
    )
    desired = DesiredState(
        id=digest("state", verdict.id),
        domain_id=verdict.domain.id,
        domain=verdict.domain,
        at=arrived.at,
        generation=1,
        isolated=True,
    )
    return Commanded(state.count + 1), [sent, desired]


STAGES = [
    Stage(
        "tally",
        ("kernel", "gpu", "suspicions", "context", "inventory"),
        Tally,
        count,
        lambda state: state.wait_until,
    ),
    Stage("answer", ("verdicts",), Commanded, command, lambda _state: None),
]


def main() -> int:
    bootstrap, prefix, partitions, folder, *more = sys.argv[1:]
    settings = dict(one.split("=", 1) for one in more if "=" in one)
    points = [one for one in more if "=" not in one]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    passed: Counter[str] = Counter()

    def at_point(point: str) -> None:
        passed[point] += 1
        if f"{point}:{passed[point]}" in points:
            os.kill(os.getpid(), signal.SIGKILL)
        if f"{point}:{passed[point]}:stop" in points:
            os.kill(os.getpid(), signal.SIGSTOP)

    given = {
        "tick_s": 0.2,
        "session_timeout_s": 6.0,
        "start_timeout_s": 5.0,
        "send_timeout_s": 20.0,
        "stall_s": 30.0,
        "store": "memory",
        "metrics_listen": "",  # several workers run here
        "state_dir": folder,
        **settings,
    }
    kafka = Kafka(
        bootstrap=bootstrap,
        prefix=prefix,
        partitions=int(partitions),
        **json.loads(os.environ.get("KAFKA_SETTINGS", "{}")),
    )
    config = msgspec.convert(
        given | {"kafka": kafka}, WorkerConfig, strict=False, dec_hook=lambda kind, one: kind(one)
    )
    try:
        run(config, STAGES, at_point=at_point)
    except StreamsError as error:
        sys.stderr.write(f"{error}\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
