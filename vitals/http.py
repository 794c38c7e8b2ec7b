"""Serves a part's figures, health and readiness over plain HTTP, on a few threads of its own.

Every value is read when it is asked for; between two scrapes it costs nothing.
"""

import contextlib
import http.server
import json
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Iterable
from typing import Any, Protocol, Self

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

from vitals.address import listen_address

__all__ = ["Server", "Vitals"]

_LOG = logging.getLogger(__name__)

#: So long a client has for its question and our answer, however slowly it speaks, and so many are
#: heard at once: who holds a connection must not keep a probe from its answer.
_CLIENT_S = 5.0
_CLIENTS = 8
#: Rest when no connection can be taken, since the one that waits stays there.
_NO_DESCRIPTOR_S = 0.2


class Vitals(Protocol):
    """What a part can be asked, by a thread that is not its own."""

    @property
    def healthy(self) -> bool:
        """Whether its loop goes round, whatever Kafka is like; else it is to be started again."""

    @property
    def ready(self) -> bool:
        """Whether it does its work."""

    def collect(self) -> Iterable[Metric]:
        """Every figure as it is now."""


class Server:
    """Serves ``/metrics``, ``/healthz`` and ``/readyz`` over plain HTTP, on a few threads."""

    def __init__(self, listen: str, vitals: Vitals) -> None:
        """Listen on ``HOST:PORT``. Raises OSError where that cannot be had."""
        registry = CollectorRegistry()
        registry.register(vitals)
        host, port = listen_address(listen)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET

        class _Listener(_Clients):
            address_family = family

        class _Handler(_Answers):
            part = vitals
            figures = registry

        self._closed = False
        self._server = _Listener((host, port), _Handler)
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    @classmethod
    def start(cls, listen: str, vitals: Vitals) -> Self | None:
        """Serve at ``listen``; None where it is empty, or taken, which is said and no more."""
        if not listen:
            return None
        try:
            return cls(listen, vitals)
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
    """Answers one request; ``part`` and ``figures`` are set by the server that owns it."""

    part: Vitals
    figures: CollectorRegistry
    timeout = _CLIENT_S

    def do_GET(self) -> None:
        """Answer one of the three paths."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            self._answer(200, kind, encode(self.figures))
        elif path in ("/healthz", "/readyz"):
            good = self.part.healthy if path == "/healthz" else self.part.ready
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
