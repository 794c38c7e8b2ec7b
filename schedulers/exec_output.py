"""Keeps all that the last runs of a program wrote, a file a run."""

import logging
import shutil
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import IO

from evidence.identity import digest
from schedulers.adapter import Outcome

__all__ = ["Outputs"]

_LOG = logging.getLogger(__name__)


class Outputs:
    """A folder with at most ``most`` files, oldest gone first; what cannot be kept is only said."""

    def __init__(self, folder: Path, most: int) -> None:
        self._folder = folder
        self._most = most

    def keep(
        self,
        command: str,
        began: datetime,
        outcome: Outcome,
        out: IO[bytes],
        errors: IO[bytes],
        cut: list[str],
    ) -> None:
        """Write one run: a line on what it was, then stdout and stderr byte for byte."""
        name = f"{began:%Y%m%dT%H%M%S.%f}-{digest(command)[:8]}.txt"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with (self._folder / name).open("wb") as file:
                what = f"{outcome.status}, exit code {outcome.exit_code}"
                file.write(f"command {command}, {began.isoformat()}: {what}\n".encode())
                for title, stream in (("stdout", out), ("stderr", errors)):
                    note = " (its beginning was left out)" if title in cut else ""
                    file.write(f"\n--- {title}{note}\n".encode())
                    stream.seek(0)
                    shutil.copyfileobj(stream, file)
            for old in sorted(self._folder.glob("*.txt"))[: -self._most]:
                with suppress(FileNotFoundError):
                    old.unlink()
        except OSError as error:
            _LOG.warning("what the program wrote could not be kept: %s", error)
