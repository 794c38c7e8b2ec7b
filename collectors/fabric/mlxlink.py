"""What the modules in this node's adapters say of themselves, by way of mlxlink.

mlxlink needs root and takes up to a second a port, so either a timer of the operator's writes its
output to files, which are read here, or it is run here, rarely and on a thread.
"""

import glob
import subprocess
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

from collectors.collector import CollectorError, Unavailable
from collectors.deadline import Caller
from collectors.fabric.mlxlink_output import MlxLink, Target, target_of
from collectors.fabric.text import record_of
from collectors.node.hca import read_hcas
from evidence.records import FabricPort, FabricRecord

__all__ = ["MlxlinkCollector"]

#: The largest output that is believed, and how many files are read at once at most.
_MOST_BYTES, _MOST_FILES = 1 << 20, 256
#: A file that was changed so lately may still be being written.
_FRESH_S = 2.0
_SOON_S = 0.1


class MlxlinkCollector:
    """Records with `Optics`, one a port, at most once in ``interval_s``.

    ``patterns`` match files with the output of ``mlxlink -d DEVICE -m -c --json`` (or as text),
    named after the device (``mlx5_0.json``), or after a switch's port (``lid-44-p12.json``); a file
    that has not changed is not read again. With ``program`` it is run for every adapter in sysfs,
    ``timeout_s`` each at most. Raises ValueError when there is neither.
    """

    name = "mlxlink"
    topic = "fabric"

    def __init__(
        self,
        host: str,
        clock: Callable[[], datetime],
        *,
        patterns: Iterable[str] = (),
        program: str | None = None,
        sysfs: Path = Path("/sys"),
        subnet: str = "default",
        interval_s: float = 300.0,
        timeout_s: float = 20.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host, self._clock, self._sysfs, self._subnet = host, clock, sysfs, subnet
        self._patterns, self._program = tuple(patterns), program
        if not self._patterns and program is None:
            raise ValueError("mlxlink: neither files to read nor a program to run")
        self._interval_s, self._timeout_s = interval_s, timeout_s
        self._monotonic = monotonic
        self._caller: Caller[list[FabricRecord]] = Caller(self.name, monotonic)
        self._due = 0.0
        self._read: dict[str, tuple[int, int, int]] = {}

    def read(self) -> list[FabricRecord]:
        """Return what was read since the last call, if anything.

        Raises Unavailable where there is nothing to read or run, CollectorError while a read hangs.
        """
        now = self._monotonic()
        answer = self._caller.answer() if self._caller.busy else None
        if answer is not None and answer.error is not None:
            raise answer.error
        if self._caller.busy:
            if now - self._caller.started_at > self._interval_s:
                raise CollectorError(f"mlxlink has not answered for {self._interval_s:g} s")
        elif now >= self._due:
            self._due = now + self._interval_s
            self._caller.start(self._sweep)
        return answer.value or [] if answer is not None else []

    def next_due(self, now: float) -> float:
        """When to read next, in monotonic seconds."""
        if self._caller.busy:
            return now + max(_SOON_S, min(1.0, now - self._caller.started_at))
        return self._due

    def saved(self) -> None:
        """Nothing to keep: what is lost is read again, as the next start knows no file."""

    def close(self) -> None:
        """Let the thread end when its read returns."""
        self._caller.close()

    def _sweep(self) -> list[FabricRecord]:
        guids = {hca.name: hca.guid for hca in read_hcas(self._sysfs)}
        found = self._files(guids) if self._patterns else []
        try:
            if self._program is not None:
                found += [self._run(self._program, device, guids) for device in sorted(guids)]
        except Unavailable:
            if not found:
                raise
        return found

    def _files(self, guids: dict[str, str | None]) -> list[FabricRecord]:
        paths = sorted({path for pattern in self._patterns for path in glob.glob(pattern)})  # noqa: PTH207
        if not paths and self._program is None:
            raise Unavailable(f"no output of mlxlink at {', '.join(self._patterns)}")
        self._read = {path: self._read[path] for path in paths if path in self._read}
        found = []
        for path in paths[:_MOST_FILES]:
            record = self._file(Path(path), guids)
            if record is not None:
                found.append(record)
        return found

    def _file(self, path: Path, guids: dict[str, str | None]) -> FabricRecord | None:
        target = target_of(path.name)
        try:
            stat = path.stat()
            key = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            changed_at = datetime.fromtimestamp(stat.st_mtime, UTC)
            if self._read.get(str(path)) == key or abs(time.time() - stat.st_mtime) < _FRESH_S:
                return None
            with path.open("rb") as stream:
                text = stream.read(_MOST_BYTES)
        except (OSError, ValueError, OverflowError) as error:
            reason = f"{path.name}: {error}"
            return self._record(target, guids, self._clock(), str(path), unread=reason)
        self._read[str(path)] = key
        return self._record(target, guids, changed_at, str(path), text=text)

    def _run(self, program: str, device: str, guids: dict[str, str | None]) -> FabricRecord:
        target, at = Target(device=device), self._clock()
        try:
            done = subprocess.run(
                [program, "-d", device, "-m", "-c", "--json"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._timeout_s,
                check=False,
            )
        except FileNotFoundError:
            raise Unavailable(f"{program} is not installed") from None
        except (OSError, subprocess.TimeoutExpired) as error:
            return self._record(target, guids, at, None, unread=f"mlxlink: {error}")
        if not done.stdout.strip():
            words = done.stderr.decode("utf-8", "replace").strip()[:200]
            reason = f"mlxlink ended with {done.returncode}: {words or 'no output'}"
            return self._record(target, guids, at, None, unread=reason)
        return self._record(target, guids, at, None, text=done.stdout[:_MOST_BYTES])

    def _record(
        self,
        target: Target,
        guids: dict[str, str | None],
        at: datetime,
        file: str | None,
        *,
        text: bytes = b"",
        unread: str | None = None,
    ) -> FabricRecord:
        output = MlxLink(1, target)
        for line in text.decode("utf-8", "replace").splitlines():
            output.feed(line.rstrip())
        node = output.node()
        node.guid = guids.get(target.device or "") or node.guid
        if unread is not None:
            node.ports[target.port] = FabricPort(port=target.port, unread={"mlxlink": unread})
        return record_of(
            node,
            subnet=self._subnet,
            now=self._clock(),
            source="mlxlink",
            file=file,
            at=at,
            host=self._host if target.lid is None else None,
            device=target.device,
        )
