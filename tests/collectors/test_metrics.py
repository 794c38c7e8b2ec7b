"""What Prometheus is told, and what a probe is."""

import logging
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator

import pytest
from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from collectors.collector import Unavailable
from collectors.metrics import Metrics, Server
from collectors.shipping.shipper import Shipper
from collectors.source import Source
from evidence.transport import Kafka


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
    monkeypatch.setattr("collectors.metrics._Answers.timeout", 0.2)
    with socket.create_connection(server.address):
        assert get(server, "/healthz")[0] == 200


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
