"""kill -9 in the middle of an incident, on Apache Kafka: one command, carried out once.

The short rounds kill when it hurts most: the Xids are in Kafka, the verdict is not.
"""

import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from evidence.records import KernelKind, KernelRecord
from evidence.transport import Kafka
from warehouse.query import query

pytestmark = [
    pytest.mark.integration,
    pytest.mark.kafka,
    pytest.mark.chaos,
    pytest.mark.timeout(300),
]


def kill(here: Any, name: str) -> None:
    """SIGKILL one part; its supervisor starts it again."""
    process = here.part(name).process
    if process is not None:  # None: it is about to be started again
        os.kill(process.pid, signal.SIGKILL)


def bounce(broker: Any, away_s: float) -> None:
    """SIGKILL the broker, and start it on the same storage."""
    broker.kill()
    time.sleep(away_s)
    broker.start()


def check(here: Any, *, agent_killed: bool = False) -> None:
    """What must hold after any kill: one command, carried out once, and every record once.

    An agent killed between Kafka's acknowledgement and its cursor sends again, under the same id.
    """
    here.until(lambda: here.story().missing() == [], within_s=150)
    here.finish()
    story = here.story()
    assert story.missing() == []
    assert story.culprit_verdict() is not None
    # Story keeps a command by its id, and `missing` names each about another part.
    (command,) = story.commands.values()
    sent = [one for one in here.records("isolation.commands") if one.id == command.id]
    assert {(one.domain_id, one.generation, one.held, one.dry_run) for one in sent} == {
        (command.domain_id, command.generation, None, False)
    }
    assert [one["id"] for one in here.carried_out()] == [command.id]
    expected, stored = here.sent(), here.stored()
    assert expected - stored == {}
    assert stored - expected == {}
    check_kernel_records(here, agent_killed=agent_killed)


def check_kernel_records(here: Any, *, agent_killed: bool) -> None:
    """One line, one id; sent twice only by an agent that was killed, and counted once even so."""
    records = [one for one in here.records("kernel") if isinstance(one, KernelRecord)]
    lines: dict[str, set[tuple[Any, ...]]] = {}
    for one in records:
        lines.setdefault(one.id, set()).add((one.host, one.file, one.seq, one.code, one.raw))
    assert {key: found for key, found in lines.items() if len(found) > 1} == {}
    if not agent_killed:
        assert len(lines) == len(records), "a kernel record is in Kafka twice"
    xids = sorted({one.id for one in records if one.kind is KernelKind.XID})
    _, rows = query(here.folder / "warehouse", "select id from xid_events order by id")
    assert [row[0] for row in rows] == xids


@pytest.mark.parametrize("victims", ["worker", "sink", "scheduler and agent", "broker"])
def test_killed_between_the_xids_and_the_verdict(
    own_apache_kafka: Any, fresh_topics: Callable[..., Kafka], installed: Any, victims: str
) -> None:
    here = installed(fresh_topics(own_apache_kafka.bootstrap))
    here.start()
    here.play()
    here.until(here.xids_shipped)
    assert here.story().culprit_verdict() is None
    if victims == "broker":
        bounce(own_apache_kafka, away_s=1.0)
    else:
        for victim in victims.split(" and "):
            name = f"agent-{here.incident.victim_node.host}" if victim == "agent" else victim
            kill(here, name)
            here.until(lambda name=name: here.part(name).restarts == 1)
    check(here, agent_killed="agent" in victims)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(4))
def test_killed_again_and_again_at_random_moments(
    own_apache_kafka: Any, fresh_topics: Callable[..., Kafka], installed: Any, seed: int
) -> None:
    chance = random.Random(seed)
    here = installed(fresh_topics(own_apache_kafka.bootstrap))
    here.start()
    here.play()
    for _ in range(6):
        time.sleep(chance.uniform(0.5, 8.0))
        victim = chance.choice(["worker", "worker", "sink", "scheduler", "agent-", "broker"])
        if victim == "broker":
            bounce(own_apache_kafka, away_s=chance.uniform(0.0, 5.0))
        else:
            kill(here, victim)
    check(here, agent_killed=True)
