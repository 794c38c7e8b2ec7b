"""What Prometheus is told, and what a probe is."""

import contextlib
import logging
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator

import pytest
from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from collectors.collector import Unavailable
from collectors.metrics import Metrics
from collectors.shipping.shipper import Shipper
from collectors.source import Source
from evidence.transport import Kafka
from vitals.http import Server


class Answering:
    """A collector whose reads give what a test lays out; exceptions are raised."""

    topic = "kernel"

    def __init__(self, name: str, answer: object) -> None:
        self.name = name
        self.answer = answer

    def read(self) -> Iterable[Struct]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return []

    def saved(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def away() -> Iterator[Shipper]:
    shipper = Shipper(Kafka(bootstrap="127.0.0.1:1"))
    yield shipper
    shipper.close(0)


@pytest.fixture
def sources() -> list[Source]:
    return [
        Source(Answering("kmsg", None), "n4", patient=False),
        Source(Answering("gpu", Unavailable('no "NVML" here')), "n4", patient=False),
        Source(Answering("nccl", ValueError("odd")), "n4", patient=False),
    ]


@pytest.fixture
def metrics(sources: list[Source], away: Shipper) -> Metrics:
    return Metrics("n4", sources, away)


@pytest.fixture
def server(metrics: Metrics) -> Iterator[Server]:
    server = Server("127.0.0.1:0", metrics)
    yield server
    server.close()


def get(server: Server, path: str) -> tuple[int, str]:
    host, port = server.address
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def scraped(server: Server) -> dict[tuple[str, str], float]:
    """Every sample by its name and first label's value."""
    status, text = get(server, "/metrics")
    assert status == 200
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_each_collector_tells_how_its_reads_went(sources: list[Source], server: Server) -> None:
    before = time.time()
    for source in sources:
        source.take(0.0)
    found = scraped(server)
    names = ("kmsg", "gpu", "nccl")
    assert [found["ringfence_collector_success", name] for name in names] == [1, 0, 0]
    assert [found["ringfence_collector_reads_total", name] for name in names] == [1, 1, 1]
    assert [found["ringfence_collector_errors_total", name] for name in names] == [0, 0, 1]
    assert found["ringfence_collector_last_success_timestamp_seconds", "kmsg"] >= before
    assert ("ringfence_collector_last_success_timestamp_seconds", "gpu") not in found
    assert ("ringfence_collector_unavailable", "kmsg") not in found
    assert found["ringfence_collector_unavailable", "gpu"] == 1
    text = get(server, "/metrics")[1]
    assert r'{collector="gpu",reason="no \"NVML\" here"} 1.0' in text
    assert 'reason="ValueError: odd"' in text


def test_the_agent_tells_its_version_and_what_waits(server: Server, away: Shipper) -> None:
    found = scraped(server)
    assert found["ringfence_shipper_pending_records", ""] == 0
    assert [name for name, _ in found if name == "ringfence_agent_info"]
    assert 'host="n4"' in get(server, "/metrics")[1]
    assert away.pending == 0


def test_a_node_is_ready_when_every_source_was_looked_at(
    sources: list[Source], server: Server
) -> None:
    assert get(server, "/healthz")[0] == 200
    assert get(server, "/readyz")[0] == 503
    for source in sources:
        source.take(0.0)
    assert get(server, "/readyz") == (200, '{"ok": true}')


def test_a_loop_that_stands_still_is_not_healthy(metrics: Metrics, server: Server) -> None:
    metrics.alive_at -= 3600
    assert [get(server, path)[0] for path in ("/healthz", "/readyz", "/metrics")] == [503, 503, 200]


def test_other_paths_are_not_served(server: Server) -> None:
    assert get(server, "/etc/passwd")[0] == 404


def test_a_client_that_says_nothing_does_not_keep_the_server_for_ever(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitals.http._Answers.timeout", 0.2)
    with socket.create_connection(server.address):
        assert get(server, "/healthz")[0] == 200


class Dripping:
    """A client that says one byte of its question now and then, for ever."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._mouth = socket.create_connection(address)
        self._mouth.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        self.gone = threading.Event()
        self._thread = threading.Thread(target=self._drip, daemon=True)
        self._thread.start()

    def _drip(self) -> None:
        with self._mouth, contextlib.suppress(OSError):
            while not self.gone.wait(0.05):
                self._mouth.sendall(b"x")
        self.gone.set()


def test_clients_that_never_end_their_question_keep_no_probe_from_its_answer(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitals.http._CLIENT_S", 3600.0)
    server = Server("127.0.0.1:0", metrics)
    slow = [Dripping(server.address) for _ in range(4)]
    assert get(server, "/healthz")[0] == 200
    assert not any(one.gone.is_set() for one in slow)
    for one in slow:
        one.gone.set()
    server.close()


def test_however_many_they_are_they_are_hung_up_on(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitals.http._CLIENT_S", 0.5)
    server = Server("127.0.0.1:0", metrics)
    slow = [Dripping(server.address) for _ in range(30)]
    assert all(one.gone.wait(30) for one in slow)
    assert get(server, "/healthz")[0] == 200
    server.close()


def test_junk_is_no_event(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    for junk in (b"\x16\x03\x01\xff" * 400, b"\r\n\r\n", b"GET\r\n\r\n", b"A" * 300_000):
        with socket.create_connection(server.address) as client, contextlib.suppress(OSError):
            client.sendall(junk)
    assert get(server, "/healthz")[0] == 200
    assert caplog.messages == []


def test_a_port_that_is_taken_costs_a_warning_and_no_more(
    metrics: Metrics, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = server.address
    with caplog.at_level(logging.WARNING):
        assert Server.start(f"{host}:{port}", metrics) is None
    (said,) = caplog.messages
    assert f"{host}:{port} cannot be listened on" in said
    assert Server.start("", metrics) is None
    assert len(caplog.messages) == 1


def test_a_closed_server_gives_its_port_back(metrics: Metrics) -> None:
    first = Server("127.0.0.1:0", metrics)
    port = first.address[1]
    first.close()
    second = Server(f"127.0.0.1:{port}", metrics)
    assert get(second, "/healthz")[0] == 200
    second.close()
