"""What a consumer makes of others' doings in its scheduler, over a real broker."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer

from evidence.decisions import (
    AckStatus,
    Action,
    Cause,
    Command,
    DesiredState,
    Domain,
    DomainKind,
    Level,
    Request,
    RequestAction,
)
from evidence.records import ContextKind, ContextRecord
from evidence.transport import Kafka
from evidence.wire import decode, encode
from schedulers.adapter import Outcome, SchedulerError, Standing, View
from schedulers.consumer import SchedulerConfig, run

pytestmark = [pytest.mark.integration, pytest.mark.kafka]
WITHIN_S = 60.0
SINCE = datetime(2026, 11, 3, 2, 14, 9, tzinfo=UTC)


class FileScheduler:
    """A scheduler as small as can be: a file a node that is out, JSON of who put it there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.looks = 0
        folder.mkdir(exist_ok=True)

    def apply(self, command: Command) -> Outcome:
        path = self.path(command.domain.host or "")
        if command.action is Action.ISOLATE:
            path.write_text(json.dumps({"command": command.id}))
        else:
            path.unlink(missing_ok=True)
        return Outcome(AckStatus.DONE)

    def path(self, host: str) -> Path:
        return self.folder / f"{host}.out"

    def observe(self) -> View:
        if (self.folder / "down").exists():
            raise SchedulerError("the controller does not answer")
        self.looks += 1
        standing = [
            Standing(
                Domain(kind=DomainKind.NODE, host=path.stem),
                since=SINCE,
                **json.loads(path.read_text()),
            )
            for path in sorted(self.folder.glob("*.out"))
        ]
        context = [
            ContextRecord(
                id=path.stem,
                host=path.stem,
                observed_at=SINCE,
                kind=ContextKind.MAINTENANCE,
                at=SINCE,
            )
            for path in sorted(self.folder.glob("*.planned"))
        ]
        began = (self.folder / "epoch").exists()
        return View(datetime.now(UTC), tuple(standing), tuple(context), lambda _domain: began)


class Site:
    """The scheduler, its consumer's state, and everything that was said about it in Kafka."""

    def __init__(self, kafka: Kafka, folder: Path) -> None:
        self.kafka = kafka
        self.state = folder / "state"
        self.files = FileScheduler(folder / "site")
        self._producer = KafkaProducer(**kafka.client())
        names = ["requests", "context", "isolation.acks"]
        self._reader = KafkaConsumer(
            *(kafka.topic(name) for name in names),
            **kafka.client(),
            group_id=None,
            auto_offset_reset="earliest",
        )
        self.said: list[Any] = []

    def isolate(self, *hosts: str, cards: tuple[str, ...] = ("",)) -> None:
        for host, pci in ((host, pci) for host in hosts for pci in cards):
            domain = Domain(kind=DomainKind.NODE, host=host)
            if pci:
                domain = Domain(kind=DomainKind.GPU, host=host, pci=pci)
            self._send(
                "isolation.commands",
                Command(
                    id=f"c-{host}{pci}", action=Action.ISOLATE, domain=domain, domain_id=domain.id,
                    level=Level.DRAIN, cause=Cause.NODE, reason="", incident="i", generation=1,
                    issued_at=SINCE, act_by=datetime.now(UTC) + timedelta(minutes=5),
                ),
            )  # fmt: skip
        self.until(lambda: all(self.files.path(host).exists() for host in hosts))
        self.look()

    def desired(self, host: str, *, isolated: bool) -> None:
        domain = Domain(kind=DomainKind.NODE, host=host)
        self._send(
            "isolation.state",
            DesiredState(
                id="s", domain_id=domain.id, domain=domain, at=SINCE, generation=1,
                isolated=isolated,
            ),
        )  # fmt: skip

    def _send(self, topic: str, record: Any) -> None:
        full = self.kafka.topic(topic)
        self._producer.send(full, encode(record), key=record.domain_id.encode()).get(30)

    def until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not true():
            assert time.monotonic() < deadline, self.said
            time.sleep(0.05)
            self.read()

    def look(self, times: int = 4) -> None:
        """Wait until the scheduler was looked at so often."""
        wanted = self.files.looks + times
        self.until(lambda: self.files.looks >= wanted)

    def read(self) -> None:
        for partition, messages in self._reader.poll(timeout_ms=100).items():
            topic = partition.topic.removeprefix(self.kafka.prefix)
            self.said += [decode(topic, message.value) for message in messages]

    @property
    def requests(self) -> list[tuple[str, str, str]]:
        self.read()
        asked = [one for one in self.said if isinstance(one, Request)]
        return [(one.action.value, one.domain.id, one.by) for one in asked]

    @property
    def differences(self) -> list[tuple[str, str]]:
        path = self.state / "files.differences.json"
        parts = json.loads(path.read_text())["parts"] if path.exists() else []
        return [(one["kind"], one["domain_id"]) for one in parts]

    @contextmanager
    def consumer(self) -> Iterator[None]:
        stop = threading.Event()
        config = SchedulerConfig(
            kafka=self.kafka, name="files", state_dir=self.state, observe_s=0.05
        )
        thread = threading.Thread(target=run, args=(config, self.files, stop))
        thread.start()
        try:
            self.look(2)
            yield
        finally:
            stop.set()
            thread.join(60)
        assert not thread.is_alive()

    def close(self) -> None:
        self._producer.close()
        self._reader.close()


@pytest.fixture
def site(apache_kafka: Any, fresh_topics: Callable[..., Kafka], tmp_path: Path) -> Iterator[Site]:
    made = Site(fresh_topics(apache_kafka.bootstrap), tmp_path)
    yield made
    made.close()


def test_what_others_take_out_and_back_is_told_once_each_over_restarts(site: Site) -> None:
    drained = site.files.path("n7")
    drained.write_text(json.dumps({"by": "kim", "reason": "DIMM swap"}))
    out = ("out", "node:n7", "kim")
    with site.consumer():
        site.until(lambda: site.requests == [out])
        (site.files.folder / "down").touch()
        time.sleep(0.2)
        (site.files.folder / "down").unlink()
        site.look()
        assert site.differences == [("foreign", "node:n7")]
    with site.consumer():
        site.look()
        assert site.requests == [out]
        drained.unlink()
        site.until(lambda: site.requests == [out, ("back", "node:n7", "kim")])
        drained.write_text(json.dumps({"by": "lee", "reason": "DIMM swap"}))
        site.until(lambda: len(site.requests) == 3)
        assert site.requests[2] == ("out", "node:n7", "lee")
    told = [one for one in site.said if isinstance(one, Request)]
    assert told[0].reason == "DIMM swap"
    assert told[0].at == SINCE
    assert len({one.id for one in told}) == 3


def test_what_a_person_returned_to_service_becomes_a_release_by_hand(site: Site) -> None:
    with site.consumer():
        site.isolate("n1", "n2")
        assert site.requests == []
        site.files.path("n1").unlink()
        site.until(lambda: site.requests == [("release", "node:n1", "files: by hand")])
        site.look()
        assert len(site.requests) == 1
        assert site.differences == []
    with site.consumer():
        site.look()
        assert len(site.requests) == 1
    assert [one.action for one in site.said if isinstance(one, Request)] == [RequestAction.RELEASE]


def test_what_vanished_while_nobody_watched_is_only_reported(site: Site) -> None:
    with site.consumer():
        site.isolate("n1", "n2")
    site.files.path("n2").unlink()
    with site.consumer():
        site.until(lambda: site.differences == [("missing", "node:n2")])
        site.look()
    assert site.requests == []


def test_a_scheduler_that_lost_its_state_released_nothing_by_hand(site: Site) -> None:
    hosts = ["n1", "n2", "n3", "n4"]
    with site.consumer():
        site.isolate(*hosts)
        for host in hosts:
            site.files.path(host).unlink()
        site.until(lambda: len(site.differences) == 4)
        site.look()
    assert site.requests == []
    assert {kind for kind, _ in site.differences} == {"missing"}


def test_what_a_scheduler_forgot_that_started_anew_was_not_released_by_hand(site: Site) -> None:
    with site.consumer():
        site.isolate("n1", "n2")
        (site.files.folder / "epoch").touch()
        site.files.path("n1").unlink()
        site.until(lambda: site.differences == [("missing", "node:n1")])
        site.look()
        assert site.requests == []
        site.files.path("n2").unlink()
        site.until(lambda: site.requests == [("release", "node:n2", "files: by hand")])


def test_a_part_whose_node_somebody_else_keeps_out_is_not_missing(site: Site) -> None:
    with site.consumer():
        site.isolate("n1")
        site.files.path("n1").write_text(json.dumps({"by": "kim", "reason": "RMA"}))
        site.until(lambda: site.differences == [("foreign", "node:n1")])
        site.look()
        assert site.requests == [("out", "node:n1", "kim")]
        site.files.path("n1").unlink()
        site.until(lambda: len(site.requests) == 3)
    assert sorted(site.requests[1:]) == [
        ("back", "node:n1", "kim"),
        ("release", "node:n1", "files: by hand"),
    ]


def test_a_node_that_was_out_for_many_cards_is_one_that_a_person_returned(site: Site) -> None:
    cards = ("0000:1a:00", "0000:3d:00", "0000:9b:00")
    with site.consumer():
        site.isolate("n1", cards=cards)
        site.files.path("n1").unlink()
        by = "files: by hand"
        wanted = [("release", f"gpu:n1/{pci}", by) for pci in cards]
        site.until(lambda: sorted(site.requests) == wanted)


def test_a_mark_of_ours_on_a_part_that_should_be_back_is_reported(site: Site) -> None:
    site.files.path("n5").write_text(json.dumps({"command": "c-n5"}))
    site.files.path("n6").write_text(json.dumps({"command": "c-n6"}))
    site.desired("n5", isolated=False)
    with site.consumer():
        wanted = [("left-over", "node:n5"), ("unknown", "node:n6")]
        site.until(lambda: site.differences == wanted)
    assert site.requests == []


def test_context_is_told_when_it_comes_and_when_it_ends(site: Site) -> None:
    planned = site.files.folder / "n9.planned"
    planned.touch()
    with site.consumer():
        site.look()
    with site.consumer():
        site.look()
        planned.unlink()
        site.until(lambda: len([one for one in site.said if isinstance(one, ContextRecord)]) == 2)
        site.look()
    first, last = [one for one in site.said if isinstance(one, ContextRecord)]
    assert (first.id, first.ended) == ("n9", False)
    assert (last.host, last.at, last.ended) == ("n9", SINCE, True)
