"""``ringfence demo``: one recorded incident through every part, live, in under a minute.

The parts are the real ones, started as they are in production; only the node's own files are
played. It passes when what came out is what was played, and nothing else.
"""

import contextlib
import dataclasses
import os
import shlex
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
from rich.console import Console

from evidence.decisions import Ack, Command, Verdict
from evidence.transport import Kafka
from ringfence import desk, show
from ringfence.cluster import ClusterError, ensure_topics
from ringfence.embedded import BrokerError, EmbeddedBroker
from ringfence.incident import Incident, Write
from ringfence.parts import Parts
from ringfence.settings import SettingsError, check_bootstrap
from ringfence.story import Story, watch
from ringfence.supervise import Supervisor
from warehouse.query import WarehouseError, query
from warehouse.why import why

if TYPE_CHECKING:
    from warehouse.why import Why

__all__ = ["Demo", "DemoError", "Result"]

_SQL = (
    "select host, pci, code, sum(count) as lines, min(event_at) as first_at "
    "from xid_events group by all order by first_at"
)

_SETTINGS = """\
[kafka]
prefix = "{prefix}"

[worker]
policy = "{policy}"
metrics_listen = ""

[sink]
flush_s = 1.0
bulk_flush_s = 2.0
metrics_listen = ""
"""

_POLICY = """\
# The demo acts for real (on a program of its own); a first installation would only watch.
[isolation.mode]
value = "enforce"
why = "The demo shows a command being carried out."
source = "ringfence demo"
"""


class DemoError(Exception):
    """The demo could not be played; the message is one sentence."""


@dataclass(slots=True)
class Result:
    """What the demo showed; ``missing`` says in sentences what did not come or must not have."""

    story: Story
    why: "Why | None" = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    took_s: float = 0.0
    restarts: dict[str, int] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether everything came, and nothing else."""
        return not self.missing

    def as_json(self) -> dict[str, Any]:
        """Plain data: what was played (``truth``) beside what was found."""
        story, incident = self.story, self.story.incident
        return {
            "passed": self.passed,
            "missing": self.missing,
            "took_s": round(self.took_s, 1),
            "restarts": self.restarts,
            "truth": {
                "host": incident.victim_node.host,
                "pci": incident.culprit.pci,
                "uuid": incident.culprit.uuid,
                "rank": incident.culprit_rank,
                "job": incident.job,
                "software_job": incident.other_job,
                "reset": {"host": incident.reset_node.host, "pci": incident.reset_gpu.pci},
            },
            "verdict": msgspec.to_builtins(story.culprit_verdict()),
            "commands": msgspec.to_builtins(list(story.commands.values())),
            "acks": msgspec.to_builtins(list(story.acks.values())),
            "software": msgspec.to_builtins(story.software_verdict()),
            "reset": msgspec.to_builtins(story.reset_verdict()),
            "why": msgspec.to_builtins(self.why),
            "sql": msgspec.to_builtins(self.rows),
        }


class Demo:
    """One run. ``bootstrap`` None starts the embedded broker; ``keep`` None forgets the files."""

    def __init__(
        self,
        *,
        bootstrap: str | None = None,
        seed: int | None = None,
        keep: Path | None = None,
        within_s: float = 60.0,
    ) -> None:
        self._bootstrap = bootstrap
        self._seed = seed
        self._keep = keep
        self._within_s = within_s

    def run(self, console: Console) -> Result:
        """Play, watch, ask the warehouse, and say what was found.

        Raises DemoError when the broker or the topics cannot be had.
        """
        began = time.monotonic()
        with contextlib.ExitStack() as held:
            folder = self._folder(held)
            incident = Incident(folder / "cluster", datetime.now(UTC), self._seed)
            kafka = self._kafka(held, folder)
            settings = _write_settings(folder, kafka)
            supervisor = held.enter_context(
                Supervisor(folder / "logs", say=console.print, environ=_own_environ())
            )
            _start(supervisor, Parts(folder, kafka.bootstrap, settings), incident, folder)
            _introduce(console, incident, supervisor)
            player = threading.Thread(target=_play, args=(incident, kafka), daemon=True)
            player.start()
            result = Result(Story(incident))
            deadline = began + self._within_s
            watch(kafka, result.story, lambda record: _tell(console, record), until=deadline - 4)
            _ask(result, folder / "warehouse", deadline)
            result.restarts = {part.name: part.restarts for part in supervisor.parts}
            result.missing = [*result.story.missing(), *result.missing]
            result.took_s = time.monotonic() - began
            if result.missing and result.took_s > self._within_s - 5:
                result.missing.append(f"time: it had {self._within_s:g} s (--within gives more)")
            _conclude(console, result)
        return result

    def _folder(self, held: contextlib.ExitStack) -> Path:
        if self._keep is None:
            return Path(held.enter_context(tempfile.TemporaryDirectory(prefix="ringfence-demo-")))
        try:
            self._keep.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DemoError(f"{self._keep} cannot be used: {error.strerror}.") from error
        return self._keep.absolute()

    def _kafka(self, held: contextlib.ExitStack, folder: Path) -> Kafka:
        """The broker, with topics of this run's own so that a shared one is not disturbed."""
        try:
            bootstrap = self._bootstrap
            if bootstrap is None:
                broker = EmbeddedBroker(log=folder / "broker.log")
                bootstrap = held.enter_context(broker).bootstrap
            check_bootstrap(bootstrap)
            kafka = Kafka(bootstrap=bootstrap, prefix=f"demo-{uuid4().hex[:8]}.")
            ensure_topics(kafka, timeout_s=min(kafka.start_within_s, self._within_s))
        except (BrokerError, ClusterError, SettingsError) as error:
            raise DemoError(str(error)) from error
        return kafka


def _own_environ() -> dict[str, str]:
    """The environment without settings of ours: they would win over the demo's own."""
    return {name: text for name, text in os.environ.items() if not name.startswith("RINGFENCE_")}


def _write_settings(folder: Path, kafka: Kafka) -> Path:
    policy = folder / "policy.toml"
    policy.write_text(_POLICY, encoding="utf-8")
    settings = folder / "ringfence.toml"
    text = _SETTINGS.format(prefix=kafka.prefix, policy=policy)
    settings.write_text(text, encoding="utf-8")
    return settings


def _start(supervisor: Supervisor, parts: Parts, incident: Incident, folder: Path) -> None:
    supervisor.start("worker", parts.worker())
    supervisor.start("sink", parts.sink())
    carried_out = shlex.quote(str(folder / "carried-out.ndjson"))
    program = ("sh", "-c", f"cat >> {carried_out} && echo >> {carried_out}")
    supervisor.start("scheduler", parts.scheduler_exec(program))
    for node in incident.nodes:
        own = dataclasses.replace(parts, data=folder / "agents" / node.host)
        argv = own.agent(
            "--host", node.host, "--no-kmsg", "--kernel-file", str(incident.kernel_log(node)),
            "--nccl", incident.rank_logs(node), "--gpu", "recording",
            "--gpu-recording", str(incident.gpu_recording(node)), "--metrics-listen", "",
        )  # fmt: skip
        supervisor.start(f"agent-{node.host}", argv)


def _introduce(console: Console, incident: Incident, supervisor: Supervisor) -> None:
    console.print(
        f"[bold]{len(supervisor.parts)} parts started[/]: worker, sink, scheduler, and an agent on "
        f"each of {', '.join(node.host for node in incident.nodes)}.\n"
        f"Played: a GPU of job {incident.job} ({8 * len(incident.training)} ranks) dies; a rank "
        f"of job {incident.other_job} leaves its collective; an operator resets a GPU.",
        highlight=False,
    )


def _play(incident: Incident, kafka: Kafka) -> None:
    """Write what the nodes write, when they write it; the reset is announced before it happens."""
    reset = desk.context_record(
        kind="gpu-reset",
        host=incident.reset_node.host,
        pci=incident.reset_gpu.pci,
        at=incident.reset_at - timedelta(seconds=5),
        until=incident.reset_at + timedelta(minutes=5),
        by="operator",
        reason="planned reset after maintenance",
    )
    desk.send(kafka, "context", incident.reset_node.host, reset)
    began = time.monotonic()
    for moment in _moments(incident.script()):
        time.sleep(max(0.0, began + moment[0].after_s - time.monotonic()))
        for write in moment:
            write.path.parent.mkdir(parents=True, exist_ok=True)
            with write.path.open("a", encoding="utf-8") as file:
                file.write(write.text)


def _moments(script: list[Write]) -> Iterator[list[Write]]:
    """Writes in groups of a twentieth of a second."""
    group: list[Write] = []
    for write in script:
        if group and write.after_s - group[0].after_s > 0.05:  # noqa: PLR2004
            yield group
            group = []
        group.append(write)
    if group:
        yield group


def _tell(console: Console, record: Verdict | Command | Ack) -> None:
    if isinstance(record, Verdict):
        if record.explained_by:
            console.print("[green]planned[/], commands nothing:", end=" ")
        show.headline(console, record)
    elif isinstance(record, Command):
        show.command(console, record)
    else:
        show.ack(console, record)


def _ask(result: Result, warehouse: Path, deadline: float) -> None:
    """Ask the history: why the command was given, and one question in SQL."""
    command = result.story.isolating()
    if command is None:
        return
    while True:
        try:
            result.why = why(warehouse, command.id)
            columns, rows = query(warehouse, _SQL)
        except WarehouseError as error:
            problem = str(error)
        else:
            result.rows = [dict(zip(columns, row, strict=True)) for row in rows]
            if result.why is not None and result.why.acks and result.rows:
                return
            problem = "the warehouse does not know the command and its ack yet"
        if time.monotonic() > deadline:
            result.missing.append(problem)
            return
        time.sleep(0.25)


def _conclude(console: Console, result: Result) -> None:
    if result.why is not None:
        console.rule(f"ringfence why {result.why.command.id}")
        show.why(console, result.why)
    if result.rows:
        console.rule("ringfence sql")
        console.print(_SQL, style="dim", highlight=False)
        show.table(console, list(result.rows[0]), [list(row.values()) for row in result.rows])
    console.rule()
    if result.story.software_verdict() is not None:
        console.print(f"Job {result.story.incident.other_job}: software; no command.")
    if result.story.reset_verdict() is not None:
        where = f"{result.story.incident.reset_gpu.pci} on {result.story.incident.reset_node.host}"
        console.print(f"Reset of {where}: announced beforehand; no command.", highlight=False)
    for sentence in result.missing:
        console.print(f"[bold red]missing:[/] {sentence}", highlight=False)
    outcome = "[bold green]found[/]" if result.passed else "[bold red]not as played[/]"
    console.print(f"{outcome} in {result.took_s:.1f} s", highlight=False)
