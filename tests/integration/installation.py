"""All parts as processes over one broker, an incident played to them, and what came out of it.

Nothing is taken from the parts' memory: decisions are read from Kafka, the history from its files.
"""

import os
import shlex
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import msgspec
import pyarrow.parquet as pq
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError

from evidence.records import GpuFrame
from evidence.topics import TOPICS
from evidence.transport import Kafka
from evidence.wire import DecodeError, decode
from ringfence import desk
from ringfence.incident import Incident
from ringfence.parts import Parts
from ringfence.story import Story
from ringfence.supervise import Part, Supervisor
from warehouse.kinds import KINDS

_SETTINGS = """\
[kafka]
prefix = "{prefix}"
partitions = {partitions}

[worker]
policy = "{policy}"
metrics_listen = ""

[sink]
metrics_listen = ""
flush_s = 0.5
bulk_flush_s = 1.0
tick_flush_s = 3.0
"""
_ENFORCE = 'isolation.mode = { value = "enforce", why = "It is acted upon.", source = "test" }\n'

_READ_WITHIN_S = 30.0

#: One row of the history: topic (short), partition, offset, id.
Row = tuple[str, int, int, str | None]


class Installation:
    """One installation of Ringfence and the nodes of one incident, drawn anew."""

    def __init__(self, kafka: Kafka, folder: Path) -> None:
        self.kafka = kafka
        self.folder = folder
        self.incident = Incident(folder / "cluster", datetime.now(UTC))
        self.said: list[str] = []
        policy = folder / "policy.toml"
        policy.write_text(_ENFORCE)
        self.settings = folder / "ringfence.toml"
        self.settings.write_text(
            _SETTINGS.format(prefix=kafka.prefix, partitions=kafka.partitions, policy=policy)
        )
        self._parts = Parts(folder, kafka.bootstrap, self.settings)
        environ = {name: text for name, text in os.environ.items() if "RINGFENCE_" not in name}
        # The sink has a supervisor of its own, since it has to outlive the others.
        self._storing = Supervisor(folder / "logs", say=self.said.append, environ=environ)
        self._working = Supervisor(folder / "logs", say=self.said.append, environ=environ)
        self._held = ExitStack()
        self._player: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._held.enter_context(self._storing)
        self._held.enter_context(self._working)
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    # --- The parts. -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start worker, sink, scheduler, and an agent on every node of the incident."""
        self.start_worker()
        self.start_sink()
        self.start_scheduler()
        for node in self.incident.nodes:
            self.start_agent(
                node.host, "--kernel-file", str(self.incident.kernel_log(node)),
                "--nccl", self.incident.rank_logs(node), "--gpu", "recording",
                "--gpu-recording", str(self.incident.gpu_recording(node)),
            )  # fmt: skip

    def start_worker(self) -> None:
        """Start the worker, which acts for real."""
        self._working.start("worker", self._parts.worker())

    def start_sink(self) -> None:
        """Start the sink."""
        self._storing.start("sink", self._parts.sink())

    def start_scheduler(self) -> None:
        """Start the scheduler; its program appends each command to `carried_out`."""
        file = shlex.quote(str(self.folder / "carried-out.ndjson"))
        program = ("sh", "-c", f"cat >> {file} && echo >> {file}")
        self._working.start("scheduler", self._parts.scheduler_exec(program))

    def start_agent(self, host: str, *flags: str, kmsg: bool = False) -> None:
        """Start one node's agent."""
        own = replace(self._parts, data=self.folder / "agents" / host)
        source = "--kmsg" if kmsg else "--no-kmsg"
        self._working.start(f"agent-{host}", own.agent("--host", host, source, *flags))

    def part(self, name: str) -> Part:
        """A part by its name; where there are several agents, the first of that beginning."""
        parts = (*self._working.parts, *self._storing.parts)
        return next(part for part in parts if part.name.startswith(name))

    def log(self, name: str) -> str:
        """What a part wrote to its log, over all its starts."""
        return (self.folder / "logs" / f"{name}.log").read_text(errors="replace")

    def logs_with(self, words: str) -> list[str]:
        """Names of the parts whose logs have these words."""
        files = sorted((self.folder / "logs").glob("*.log"))
        return [file.stem for file in files if words in file.read_text(errors="replace")]

    def finish(self) -> None:
        """End the parts in order, the sink last, when nothing is written to Kafka any more."""
        if self._player is not None:
            self._player.join()
        self._working.stop()
        if self._storing.parts:
            self.until(lambda: not self.sent() - self.stored())
        self._storing.stop()

    # --- The incident. --------------------------------------------------------------------------

    def play(self) -> None:
        """Announce the planned reset and let the nodes write, in the background."""
        incident = self.incident
        reset = desk.context_record(
            kind="gpu-reset",
            host=incident.reset_node.host,
            pci=incident.reset_gpu.pci,
            at=incident.reset_at - timedelta(seconds=5),
            until=incident.reset_at + timedelta(minutes=5),
            by="operator",
            reason="planned",
        )
        desk.send(self.kafka, "context", incident.reset_node.host, reset)
        self._player = threading.Thread(target=self._write, daemon=True)
        self._player.start()

    def _write(self) -> None:
        began = time.monotonic()
        for write in self.incident.script():
            time.sleep(max(0.0, began + write.after_s - time.monotonic()))
            write.path.parent.mkdir(parents=True, exist_ok=True)
            with write.path.open("a", encoding="utf-8") as file:
                file.write(write.text)

    def xids_shipped(self) -> bool:
        """Whether the first Xid of the card that dies is in Kafka."""
        pci = self.incident.culprit.pci
        return any(
            record.code == 48 and record.pci == pci
            for record in self.records("kernel")
            if hasattr(record, "code")
        )

    def story(self) -> Story:
        """What the stages have said so far."""
        story = Story(self.incident)
        for topic in ("verdicts", "isolation.commands", "isolation.acks"):
            for record in self.records(topic):
                if hasattr(record, "id") and type(record).__name__ != "Tick":
                    story.take(record)
        return story

    def carried_out(self) -> list[dict[str, Any]]:
        """Each run of the scheduler's program: the command it was given."""
        file = self.folder / "carried-out.ndjson"
        text = file.read_text() if file.exists() else ""
        return [msgspec.json.decode(line) for line in text.splitlines() if line]

    # --- Kafka and the history. -----------------------------------------------------------------

    def messages(self, *topics: str) -> Iterator[tuple[str, Any]]:
        """Every message that is in these topics now, with its topic's short name."""
        consumer = KafkaConsumer(
            **self.kafka.client(), group_id=None, enable_auto_commit=False,
            reconnect_backoff_max_ms=500,
        )  # fmt: skip
        try:
            places = [
                TopicPartition(self.kafka.topic(topic), number)
                for topic in topics
                for number in range(TOPICS[topic].partitions(self.kafka.partitions))
            ]
            consumer.assign(places)
            consumer.seek_to_beginning(*places)
            ends = consumer.end_offsets(places)
            deadline = time.monotonic() + _READ_WITHIN_S
            while any(consumer.position(place) < end for place, end in ends.items()):
                if time.monotonic() > deadline:  # whoever waits asks again, with a new consumer
                    raise KafkaTimeoutError(f"{topics} were not read in {_READ_WITHIN_S:.0f} s")
                for place, found in consumer.poll(timeout_ms=500).items():
                    short = place.topic.removeprefix(self.kafka.prefix)
                    yield from ((short, one) for one in found if one.offset < ends[place])
        finally:
            consumer.close(timeout_ms=1000)

    def records(self, topic: str) -> list[Any]:
        """Every record that is in a topic now, decoded; what cannot be is left out."""
        found = []
        for _, message in self.messages(topic):
            with suppress(DecodeError):
                found.append(decode(topic, message.value or b""))
        return found

    def sent(self) -> Counter[Row]:
        """Every message of every topic, counted as often as the history has to have a row of it.

        A frame of GPU ticks is a row a GPU and tick.
        """
        rows: Counter[Row] = Counter()
        for topic, message in self.messages(*TOPICS):
            record: Any = None
            with suppress(DecodeError):
                record = decode(topic, message.value or b"")
            count = 1
            if isinstance(record, GpuFrame):
                count = sum(len(tick.gpus) or 1 for tick in record.ticks) or 1
            rows[topic, message.partition, message.offset, getattr(record, "id", None)] += count
        return rows

    def stored(self) -> Counter[Row]:
        """Every row of the history."""
        rows: Counter[Row] = Counter()
        columns = ["kafka_partition", "kafka_offset", "id"]
        for topic, kind in KINDS.items():
            for path in (self.folder / "warehouse" / kind.name).glob("day=*/*.parquet"):
                table = pq.ParquetFile(path).read(columns)
                values = (table.column(name).to_pylist() for name in columns)
                rows.update((topic, *row) for row in zip(*values, strict=True))
        return rows

    def until(self, done: Callable[[], bool], within_s: float = 90.0) -> None:
        """Wait until ``done``; a broker that is gone meanwhile is waited for."""
        deadline = time.monotonic() + within_s
        while True:
            with suppress(KafkaError):
                if done():
                    return
            assert time.monotonic() < deadline, self._state()
            time.sleep(0.2)

    def _state(self) -> str:
        """What a person would look at when it did not come."""
        lines = [*self.said]
        with suppress(KafkaError):
            lines += self.story().missing()
        for name in ("worker", "sink", "scheduler"):
            with suppress(FileNotFoundError):
                lines += [f"--- {name}", self.log(name)[-2000:]]
        return "\n".join(lines)
