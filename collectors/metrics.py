"""What the agent says of itself to Prometheus, on loopback: its collectors, its spool, its clock.

Every value is read when it is asked for; between two scrapes it costs nothing.
"""

import contextlib
import http.server
import importlib.metadata
import json
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, Self

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

from collectors.config import listen_address
from collectors.shipping.shipper import Shipper
from collectors.source import Source

__all__ = ["Metrics", "Server"]

_LOG = logging.getLogger(__name__)

#: The loop returns twice a second at least; when it has not for so long, it is stuck in a read.
_STUCK_S = 15.0
#: So long a client has for its question and our answer, however slowly it speaks, and so many are
#: heard at once: who holds a connection must not keep a probe from its answer.
_CLIENT_S = 5.0
_CLIENTS = 8
#: Rest when no connection can be taken, since the one that waits stays there.
_NO_DESCRIPTOR_S = 0.2


class Metrics:
    """The agent's figures as a Prometheus collector; `collect` is called by another thread."""

    def __init__(self, host: str, sources: Iterable[Source], shipper: Shipper) -> None:
        self._host = host
        self._sources = tuple(sources)
        self._shipper = shipper
        #: When the loop last went round, in monotonic seconds; the loop itself says so.
        self.alive_at = time.monotonic()

    @property
    def healthy(self) -> bool:
        """Whether the loop goes round; it does so whatever Kafka and the sources are like."""
        return time.monotonic() - self.alive_at < _STUCK_S

    @property
    def ready(self) -> bool:
        """Whether it goes round and every source was looked at."""
        return self.healthy and all(one.attempts.reads for one in self._sources)

    def collect(self) -> Iterator[Metric]:
        """Every figure as it is now."""
        info = InfoMetricFamily("ringfence_agent", "The agent of this node")
        info.add_metric([], {"version": _version(), "host": self._host})
        yield info
        yield from self._of_collectors()
        yield from self._of_shipping()

    def _of_collectors(self) -> Iterator[Metric]:
        now = time.monotonic()
        gauges: dict[str, tuple[str, dict[str, float | None]]] = {
            "success": ("1 when the last read worked", {}),
            "last_success_timestamp_seconds": ("When a read last worked", {}),
            "duration_seconds": ("How long the last read took", {}),
            "reading_seconds": ("How long the read that is under way has taken", {}),
        }
        counts: dict[str, tuple[str, dict[str, float | None]]] = {
            "records": ("Records returned", {}),
            "reads": ("Reads made", {}),
            "errors": ("Reads, cursors and closings that failed", {}),
            "slow_reads": ("Reads that took more than a second", {}),
            "busy_seconds": ("Time spent in reads", {}),
            "lost": ("Records dropped or refused on their way", {}),
        }
        why = GaugeMetricFamily(
            "ringfence_collector_unavailable",
            "1 with the reason while a source is not there or cannot be read",
            labels=("collector", "reason"),
        )
        for source in self._sources:
            name, one = source.name, source.attempts
            since, reason = one.reading_since, one.unavailable or one.error
            gauges["success"][1][name] = float(one.worked_at is not None and reason is None)
            gauges["last_success_timestamp_seconds"][1][name] = one.worked_at
            gauges["duration_seconds"][1][name] = one.took_s
            gauges["reading_seconds"][1][name] = 0.0 if since is None else max(0.0, now - since)
            counts["records"][1][name] = source.records
            counts["reads"][1][name] = one.reads
            counts["errors"][1][name] = source.errors
            counts["slow_reads"][1][name] = one.slow
            counts["busy_seconds"][1][name] = one.busy_s
            counts["lost"][1][name] = source.lost
            if reason is not None:
                why.add_metric((name, reason), 1)
        for suffix, (words, values) in gauges.items():
            yield _family(GaugeMetricFamily, f"ringfence_collector_{suffix}", words, values)
        for suffix, (words, values) in counts.items():
            yield _family(CounterMetricFamily, f"ringfence_collector_{suffix}", words, values)
        yield why

    def _of_shipping(self) -> Iterator[Metric]:
        shipper = self._shipper
        for suffix, words, by_topic in (
            ("delivered", "Records that Kafka has", shipper.delivered),
            ("refused", "Records that Kafka refused for good", shipper.refused),
            ("dropped", "Records dropped for want of room", shipper.dropped),
        ):
            yield _family(
                CounterMetricFamily, f"ringfence_shipper_{suffix}", words, dict(by_topic), "topic"
            )
        rows, size = shipper.spooled
        plain = {
            "pending_records": ("Records that are neither in Kafka nor given up", shipper.pending),
            "spool_records": ("Records in the spool on disk", rows),
            "spool_bytes": ("Size of the spool on disk", size),
            "connected": ("1 while Kafka answers", shipper.connected),
            "clock_skew_seconds": ("How far this clock is ahead of Kafka's", shipper.clock_skew_s),
        }
        for suffix, (words, value) in plain.items():
            if value is not None:
                yield GaugeMetricFamily(f"ringfence_shipper_{suffix}", words, value=float(value))


class Server:
    """Serves ``/metrics``, ``/healthz`` and ``/readyz`` over plain HTTP, on a few threads."""

    def __init__(self, listen: str, metrics: Metrics) -> None:
        """Listen on ``HOST:PORT``. Raises OSError where that cannot be had."""
        registry = CollectorRegistry()
        registry.register(metrics)
        host, port = listen_address(listen)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET

        class _Listener(_Clients):
            address_family = family

        class _Handler(_Answers):
            agent = metrics
            figures = registry

        self._closed = False
        self._server = _Listener((host, port), _Handler)
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    @classmethod
    def start(cls, listen: str, metrics: Metrics) -> Self | None:
        """Serve at ``listen``; None where it is empty, or taken, which is said and no more."""
        if not listen:
            return None
        try:
            return cls(listen, metrics)
        except OSError as error:
            _LOG.warning("no metrics are served: %s cannot be listened on: %s", listen, error)
            return None

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def close(self) -> None:
        """Stop serving; what is being answered is answered."""
        self._closed = True
        self._server.socket.shutdown(socket.SHUT_RDWR)  # ends the wait for a client
        self._thread.join(_CLIENT_S)
        self._server.server_close()

    def _run(self) -> None:
        while not self._closed:
            self._server.handle_request()


class _Answers(http.server.BaseHTTPRequestHandler):
    """Answers one request; ``agent`` and ``figures`` are set by the server that owns it."""

    agent: Metrics
    figures: CollectorRegistry
    timeout = _CLIENT_S

    def do_GET(self) -> None:
        """Answer one of the three paths."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            self._answer(200, kind, encode(self.figures))
        elif path in ("/healthz", "/readyz"):
            good = self.agent.healthy if path == "/healthz" else self.agent.ready
            body = json.dumps({"ok": good}).encode()
            self._answer(200 if good else 503, "application/json", body)
        else:
            self._answer(404, "text/plain", b"/metrics, /healthz or /readyz\n")

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401
        """A scrape is no event."""


class _Clients(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Takes connections; each is answered on a thread of its own."""

    allow_reuse_address = True
    daemon_threads = True
    timeout = None

    def __init__(self, address: tuple[str, int], handler: type[_Answers]) -> None:
        super().__init__(address, handler)
        self._places = threading.BoundedSemaphore(_CLIENTS)

    def get_request(self) -> tuple[Any, Any]:
        """Take the next connection; raises OSError, not too often."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(_NO_DESCRIPTOR_S)
            raise

    def verify_request(self, _request: object, _address: object) -> bool:
        """Whether there is a place for one more client; the others are hung up on."""
        return self._places.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Answer one client, in the time it has."""
        end = threading.Timer(_CLIENT_S, _hang_up, (request,))
        end.daemon = True
        try:
            end.start()
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._places.release()

    def handle_error(self, _request: object, _address: object) -> None:
        """A client that hangs up is no event."""


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _family(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    words: str,
    values: dict[str, float | None],
    label: str = "collector",
) -> Metric:
    family = kind(name, words, labels=(label,))
    for labelled, value in values.items():
        if value is not None:
            family.add_metric((labelled,), value)
    return family


def _version() -> str:
    try:
        return importlib.metadata.version("ringfence")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
