"""The Kafka producer of an agent: how it is made, why it could not be, how it is let go.

Idempotent, acks=all, lz4. Kafka's own retries keep a record's place and never double it, so they
end only with the process.
"""

import logging
import socket
import ssl

from kafka import KafkaProducer
from kafka.errors import KafkaError, SaslAuthenticationFailedError

from evidence.transport import Kafka
from vitals.clients import made

__all__ = ["NotConnectedError", "connect", "let_go"]

_MANAGER_LOG = logging.getLogger("kafka.net.manager")
_CONNECT_S = 2.0
_DELIVERY_MS = 24 * 3600 * 1000


class NotConnectedError(Exception):
    """There is no producer for now; the message is one sentence for the operator."""


class _Reasons(logging.Filter):
    """Why kafka-python could not connect: 3.0.12 logs it and raises nothing but a timeout."""

    found: Exception | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep what a line tells of, and the line out of the log: ours says it."""
        reasons = [one for one in _arguments(record) if isinstance(one, Exception)]
        self.found = self.found or next(iter(reasons), None)
        return not reasons


def _arguments(record: logging.LogRecord) -> tuple[object, ...]:
    return record.args if isinstance(record.args, tuple) else ()


def connect(kafka: Kafka, client_id: str, linger_ms: int) -> KafkaProducer:
    """Make a producer; raises NotConnectedError. Takes up to seven seconds."""
    reasons = _Reasons()
    _MANAGER_LOG.addFilter(reasons)
    try:
        _knock(kafka)
        return made(
            KafkaProducer,
            **kafka.client(),
            client_id=client_id,
            acks="all",
            enable_idempotence=True,
            compression_type="lz4",
            linger_ms=linger_ms,
            delivery_timeout_ms=_DELIVERY_MS,
            request_timeout_ms=10_000,
            max_block_ms=1_000,
            bootstrap_timeout_ms=5_000,
            reconnect_backoff_max_ms=1_000,
            allow_auto_create_topics=False,
            metrics_enabled=False,
        )
    except (KafkaError, OSError, ValueError) as error:
        raise NotConnectedError(_sentence(kafka, reasons.found or error)) from error
    finally:
        _MANAGER_LOG.removeFilter(reasons)


def _sentence(kafka: Kafka, reason: Exception) -> str:
    at = f"Kafka at {kafka.bootstrap}"
    user = f"user {kafka.sasl_username!r} ({kafka.sasl_mechanism})"
    check = "check kafka.sasl_username and kafka.sasl_password"
    if isinstance(reason, SaslAuthenticationFailedError):
        return f"{at} refuses {user}, records wait: {check}"
    # The broker's answer and its goodbye arrive together, and kafka-python drops both.
    if kafka.sasl_mechanism and "socket disconnected" in str(reason):
        return f"{at} hangs up on {user}, as it does for a wrong password, records wait: {check}"
    return f"{at} does not answer, records wait: {reason}"


def let_go(producer: KafkaProducer) -> None:
    """Close a producer now; what it still held comes back by its futures' errors."""
    try:
        producer.close(timeout=0)
    except KafkaError:
        # kafka-python 3.0.12 raises from the flush inside close() and leaves its thread running.
        producer._sender.force_close()  # noqa: SLF001
        producer._sender.wakeup()  # noqa: SLF001


def _knock(kafka: Kafka) -> None:
    """Raise OSError or NotConnectedError when no bootstrap server takes a connection.

    A producer that fails to be built leaves its sockets to the garbage collector, and does not
    tell what is wrong with a certificate.
    """
    context = _tls(kafka)
    refused: OSError | None = None
    for server in kafka.bootstrap.split(","):
        host, _, port = server.strip().rpartition(":")
        host = host.strip("[]")
        try:
            with socket.create_connection((host, int(port)), timeout=_CONNECT_S) as plain:
                if context is not None:
                    context.wrap_socket(plain, server_hostname=host).close()
                return
        except ssl.SSLCertVerificationError as error:
            refused = OSError(
                f"the certificate of {server.strip()} is not trusted "
                f"({error.verify_message}): check kafka.ssl_cafile"
            )
        except OSError as error:
            refused = error
    raise refused or OSError("no bootstrap server is named")


def _tls(kafka: Kafka) -> ssl.SSLContext | None:
    """What the producer will do for TLS, done here for its sentences; None for plain text."""
    if not kafka.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=kafka.ssl_cafile)
        context.check_hostname = kafka.ssl_check_hostname
        if kafka.ssl_certfile:
            context.load_cert_chain(kafka.ssl_certfile, kafka.ssl_keyfile)
    except OSError as error:
        files = ", ".join(filter(None, (kafka.ssl_cafile, kafka.ssl_certfile, kafka.ssl_keyfile)))
        raise OSError(f"the TLS files ({files}) cannot be used: {error}") from error
    return context
