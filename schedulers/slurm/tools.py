"""Runs Slurm's own programs: no shell, one time limit, times in UTC, errors as one sentence."""

import os
import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime

from schedulers.slurm.config import SlurmConfig

__all__ = ["Tools", "ToolsError", "moment"]

#: What Slurm says when the controller is away, and so when trying again may help.
_AWAY = (
    "unable to contact slurm controller",
    "connection refused",
    "socket timed out",
    "connection timed out",
    "zero bytes were transmitted",
    "unable to establish",
    "transport endpoint",
    # A controller that has just started, and a node that has not registered with it yet.
    "invalid node state specified",
)


class ToolsError(Exception):
    """One call failed; the message is Slurm's own. ``retry`` where it may work later."""

    def __init__(self, sentence: str, *, retry: bool) -> None:
        super().__init__(sentence)
        self.retry = retry


class Tools:
    """The programs of one cluster."""

    def __init__(self, config: SlurmConfig) -> None:
        self._config = config
        self._environment = {
            name: value for name, value in os.environ.items() if not name.startswith("SLURM_")
        } | {"TZ": "UTC", "LC_ALL": "C"}
        conf = config.conf or os.environ.get("SLURM_CONF")
        if conf:
            self._environment["SLURM_CONF"] = str(conf)

    def run(self, program: str, *arguments: str) -> str:
        """What the program prints; raises ToolsError where it fails, hangs or is missing."""
        folder = self._config.programs
        path = program if folder is None else str(folder / program)
        try:
            done = subprocess.run(
                [path, *arguments],
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._config.timeout_s,
                env=self._environment,
            )
        except subprocess.TimeoutExpired as error:
            raise ToolsError(
                f"{program} did not answer within {self._config.timeout_s:g} s", retry=True
            ) from error
        except OSError as error:
            raise ToolsError(f"{path} cannot be run: {error.strerror}", retry=False) from error
        except ValueError as error:  # a NUL, half a surrogate
            raise ToolsError(f"{program}: no such name: {error}", retry=False) from error
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace") or done.stdout.decode(errors="replace")
            sentence = " ".join(said.split())[:500] or f"exit code {done.returncode}"
            away = any(words in sentence.lower() for words in _AWAY)
            raise ToolsError(f"{program}: {sentence}", retry=away)
        return done.stdout.decode(errors="replace")

    def started(self) -> str:
        """When the controller that answers began; what one before it knew, this one may not."""
        text = self.run("scontrol", "show", "config")
        found = re.search(r"^BOOT_TIME\s*=\s*(\S+)", text, re.MULTILINE)
        return found[1] if found else ""

    def hosts(self, nodes: str) -> tuple[str, ...]:
        """The names in a node list, ``gpu-[00-03,07]``."""
        if not nodes or nodes == "(null)":
            return ()
        if "[" not in nodes and "," not in nodes:
            return (nodes,)
        return tuple(self.run("scontrol", "show", "hostnames", nodes).split())


def blocks(text: str) -> Iterator[list[str]]:
    """What scontrol prints, one list of lines a record: its first line alone is not indented.

    Lines of blanks may stand within a record (24.11).
    """
    block: list[str] = []
    for line in text.splitlines():
        if line[:1].strip() and block:
            yield block
            block = []
        block.append(line)
    if block:
        yield block


def moment(text: str | None) -> datetime | None:
    """A time as Slurm prints it (in UTC, since we ask so); None for ``None`` and ``Unknown``."""
    try:
        return datetime.fromisoformat(text or "").replace(tzinfo=UTC)
    except ValueError:
        return None
