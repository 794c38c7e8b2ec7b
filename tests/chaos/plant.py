"""Workers with the shipped stages, a scheduler and a sink over one Kafka, fed with faults.

What came out is read from Kafka and from the history's files, and compared with what the same
records give without Kafka and without any disturbance.
"""

import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from kafka import KafkaProducer
from kafka.errors import KafkaError

from evidence.decisions import Command, Verdict
from evidence.transport import Kafka
from evidence.wire import decode, encode
from ringfence.parts import Parts
from ringfence.supervise import Part, Supervisor
from rules.tables import load

from ..integration.installation import Installation  # noqa: TID252 (tests are not installed)
from .faults import Fault, driven, localized, stream

__all__ = ["Plant", "Told"]

#: A budget that never binds: of two faults that do not both fit, the first that is heard counts.
_POLICY = """
isolation.mode = { value = "enforce", why = "It is acted upon.", source = "test" }
isolation.settle_s = { value = 2.0, why = "Rounds are short.", source = "test" }
widening.common_nodes = { value = 10000, why = "No two faults share a cause.", source = "test" }
budget.node_absolute = { value = 10000.0, why = "Never binds.", source = "test" }
"""
_SETTINGS = """
[kafka]
prefix = "{prefix}"
partitions = {partitions}
replication = {replication}

[worker]
policy = "{policy}"
metrics_listen = ""
standby_replicas = {standby}

[sink]
metrics_listen = ""
flush_s = 0.5
bulk_flush_s = 1.0
tick_flush_s = 3.0

[scheduler]
max_isolations = 10000
"""


class Told:
    """One command that came out: when Kafka took it first, and how long after its fault."""

    def __init__(self, command: Command, at: float, sent_at: float | None) -> None:
        self.command = command
        self.at = at
        self.sent_at = sent_at

    @property
    def took_s(self) -> float:
        """Seconds from the fault's last record to the command."""
        return self.at - (self.sent_at or self.at)


class Plant:
    """One round. Workers are supervised, each on a folder of its own."""

    def __init__(
        self,
        kafka: Kafka,
        folder: Path,
        *,
        seed: int,
        count: int = 98,
        every_s: float = 0.12,
        standby: int = 0,
    ) -> None:
        self.kafka = kafka
        self.folder = folder
        self.here = Installation(kafka, folder)
        policy = folder / "policy.toml"
        policy.write_text(_POLICY)
        self.here.settings.write_text(
            _SETTINGS.format(
                prefix=kafka.prefix,
                partitions=kafka.partitions,
                replication=kafka.replication,
                policy=policy,
                standby=standby,
            )
        )
        self._seed, self._count, self._every_s = seed, count, every_s
        self._rules = load(None, policy)
        self.faults: list[Fault] = []
        self.began = datetime.now(UTC)
        #: host -> when its last record was sent, and whether that one was enough
        self.sent_at: dict[str, float] = {}
        self._feeder: threading.Thread | None = None
        self._failed: list[Exception] = []
        environ = {name: text for name, text in os.environ.items() if "RINGFENCE_" not in name}
        self.workers = Supervisor(folder / "logs", say=self.here.said.append, environ=environ)

    def __enter__(self) -> Self:
        self.here.__enter__()
        self.workers.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.workers.stop()
        self.here.__exit__()

    # --- The parts. -----------------------------------------------------------------------------

    def worker(
        self,
        name: str,
        *,
        inside: Sequence[str] = (),
        bootstrap: str | None = None,
        data: Path | None = None,
    ) -> Part:
        """Start a worker: behind the words ``inside``, with a folder of its own."""
        parts = Parts(
            data or self.folder / name, bootstrap or self.kafka.bootstrap, self.here.settings
        )
        return self.workers.start(name, (*inside, *parts.worker()))

    def ready(self, *names: str, within_s: float = 60.0) -> None:
        """Wait until these workers have their tables and read."""
        self.until(lambda: all("worker ready" in self.here.log(name) for name in names), within_s)

    def until(self, done: Callable[[], bool], within_s: float) -> None:
        """Wait until ``done``; a broker that is gone meanwhile is waited for."""
        deadline = time.monotonic() + within_s
        while True:
            with suppress(KafkaError):
                if done():
                    return
            assert time.monotonic() < deadline, self._state()
            time.sleep(0.3)

    def _state(self) -> str:
        """What a person would look at when it did not come."""
        names = [part.name for part in self.workers.parts]
        logs = [f"--- {name}\n{self.here.log(name)[-2000:]}" for name in names]
        return "\n".join([*self.here.said, *logs])

    def signal(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a worker, the sink or the scheduler; one that is gone gets none."""
        found = [part for part in self.workers.parts if part.name == name]
        process = (found[0] if found else self.here.part(name)).process
        if process is not None:
            os.kill(process.pid, number)

    def keep_away(self, name: str) -> None:
        """From now on a worker that dies is not started again, as when its machine is gone."""
        (part,) = [part for part in self.workers.parts if part.name == name]
        part.argv = ("sleep", "infinity")

    # --- The stream of faults. ------------------------------------------------------------------

    def feed(self) -> None:
        """Begin to send the faults, each at its time, in the background."""
        self.began = datetime.now(UTC)
        self.faults = stream(self._seed, self._count, self.began, self._every_s)
        self._feeder = threading.Thread(target=self._feed, daemon=True)
        self._feeder.start()

    def _feed(self) -> None:
        producer = KafkaProducer(**self.kafka.client(), acks="all", linger_ms=0)
        began = time.monotonic()
        ordered = sorted(
            ((sent, fault.host) for fault in self.faults for sent in fault.sent),
            key=lambda one: one[0].after_s,
        )
        try:
            pending = []
            for sent, host in ordered:
                time.sleep(max(0.0, began + sent.after_s - time.monotonic()))
                self.sent_at[host] = time.time()
                topic, value = self.kafka.topic(sent.topic), encode(sent.record)
                pending.append(producer.send(topic, key=sent.key.encode(), value=value))
            for one in pending:
                one.get(60)
        except Exception as error:  # noqa: BLE001 (told by the round)
            self._failed.append(error)
        finally:
            producer.close(timeout=5)

    def wait_for_part(self, part: float) -> None:
        """Wait until this part of the stream (0 to 1) was sent."""
        wanted = part * self._count
        while len(self.sent_at) < wanted:
            assert not self._failed, self._failed
            time.sleep(0.02)

    # --- What came out. -------------------------------------------------------------------------

    def told(self) -> dict[str, Told]:
        """Every command by its id, as it first came."""
        found: dict[str, Told] = {}
        for command, at in self._said("isolation.commands"):
            sent_at = self.sent_at.get(command.domain.host or "")
            found.setdefault(command.id, Told(command, at, sent_at))
        return found

    def _said(self, topic: str) -> list[tuple[Any, float]]:
        return [
            (record, message.timestamp / 1000)
            for _, message in self.here.messages(topic)
            if isinstance(record := decode(topic, message.value or b""), (Command, Verdict))
        ]

    def finish(self, within_s: float = 90.0) -> None:
        """Wait for every command to come and be carried out, then end all parts."""
        assert self._feeder is not None
        self._feeder.join()
        assert not self._failed, self._failed
        right = {one.id for one in self.expected()}
        self.until(lambda: right <= self.told().keys(), within_s)
        self.until(lambda: right <= {one["id"] for one in self.here.carried_out()}, within_s)
        time.sleep(1.5)  # for what must not come
        self.workers.stop()
        self.here.finish()

    def expected(self) -> list[Command]:
        """The commands of an undisturbed run."""
        return driven(self.faults, self.began, self._rules).commands

    def check(self, *, carried_out_again: int = 0) -> None:
        """What must hold after any disturbance.

        A scheduler that is killed between its program and its journal runs the program again:
        ``carried_out_again`` such at most.
        """
        outcome = driven(self.faults, self.began, self._rules)
        said = [command for command, _ in self._said("isolation.commands")]
        assert {_asked(one) for one in said} == {_asked(one) for one in outcome.commands}
        assert len({one.domain_id for one in said}) == len({one.id for one in said})
        runs = Counter(one["id"] for one in self.here.carried_out())
        assert runs.keys() == {one.id for one in outcome.commands}
        assert sum(runs.values()) - len(runs) <= carried_out_again
        verdicts = [verdict for verdict, _ in self._said("verdicts")]
        assert localized(verdicts) == localized(list(outcome.verdicts))
        assert self.here.records("deadletters") == []
        if self.here._storing.parts:
            expected, stored = self.here.sent(), self.here.stored()
            assert expected - stored == {}
            assert stored - expected == {}

    def at_once(self) -> list[Told]:
        """The commands for faults that wait for nothing, in the order in which they were sent."""
        at_once = {fault.host for fault in self.faults if fault.at_once}
        found = [one for one in self.told().values() if one.command.domain.host in at_once]
        return sorted(found, key=lambda one: one.sent_at or 0.0)

    def silence_s(self) -> float:
        """The longest time between two commands."""
        times = sorted(one.at for one in self.told().values())
        return max(later - earlier for earlier, later in pairwise(times))

    def moves(self, stage: str) -> int:
        """How often a worker took up a stage that already had states."""
        logs = [self.here.log(part.name) for part in self.workers.parts]
        return sum(len(re.findall(rf"{stage} stage: [1-9]\d* keys", log)) for log in logs)

    def slowest_s(self) -> float:
        """The longest time from a fault that waits for nothing to its command."""
        return max(one.took_s for one in self.at_once())

    def back_s(self, since: float, limit_s: float = 1.0) -> float:
        """Seconds from a moment until no command took longer than ``limit_s`` any more."""
        late = [one.at for one in self.at_once() if one.took_s > limit_s and one.at > since]
        return max(late) - since if late else 0.0


def _asked(command: Command) -> tuple[Any, ...]:
    """What a command asks for, apart from when."""
    return (
        command.id,
        command.action,
        command.domain_id,
        command.level,
        command.generation,
        command.cause,
        command.held,
        command.dry_run,
    )
