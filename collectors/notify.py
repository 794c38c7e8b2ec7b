"""Tells systemd how the process is: ready, alive, ending (sd_notify(3), one datagram each)."""

import contextlib
import os
import socket
from collections.abc import Mapping

__all__ = ["Notifier"]


class Notifier:
    """Speaks to the service manager that started this process; says nothing where there is none.

    ``watchdog_s`` is how often `alive` must be said at least; None where nobody watches.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """``environ`` holds NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID as systemd sets them."""
        address = environ.get("NOTIFY_SOCKET", "")
        # A leading @ is the abstract namespace's zero byte.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_s: float | None = None
        limit_us = environ.get("WATCHDOG_USEC", "")
        if limit_us.isdigit() and environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()):
            # Twice in its time, as sd_watchdog_enabled(3) advises.
            self.watchdog_s = int(limit_us) / 2e6

    def ready(self, status: str) -> None:
        """The process does its work from now on."""
        self._say(f"READY=1\nSTATUS={status}")

    def alive(self) -> None:
        """The process is not stuck."""
        self._say("WATCHDOG=1")

    def stopping(self) -> None:
        """The process ends what it has begun, and then itself."""
        self._say("STOPPING=1")

    def _say(self, words: str) -> None:
        if not self._address:
            return
        # Who listens may be gone; it must never hinder the work.
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as mouth,
        ):
            mouth.sendto(words.encode(), self._address)
