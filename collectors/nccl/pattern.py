"""Finds training logs by pattern: a glob whose ``{job}``, ``{host}`` and ``{rank}`` name things."""

import glob
import logging
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Found", "PatternError", "find", "matcher"]

_LOG = logging.getLogger(__name__)

#: Folders looked at for one ``**`` at most.
_MOST_FOLDERS = 20_000
_FIELDS = {"job": "[^/]+?", "host": "[^/]+?", "rank": "[0-9]{1,7}"}
# `/var/log/{job}/**/{host}-{rank}.log`, `/scratch/run[0-9]/rank?.err`
_TOKEN = re.compile(r"\{(\w*)\}|(\*\*/?)|(\*)|(\?)|(\[[^\]]+\])")


class PatternError(ValueError):
    """A pattern that cannot be followed; the message says why."""


@dataclass(frozen=True, slots=True)
class Found:
    """One log file and what its name tells."""

    path: Path
    job: str | None = None
    host: str | None = None
    rank: int | None = None


def matcher(pattern: str) -> tuple[str, re.Pattern[str]]:
    """The glob and the regular expression of a pattern.

    Raises PatternError for a field that is not job, host or rank, or that stands there twice.
    """
    globbed, expression, at = "", "", 0
    seen: set[str] = set()
    for token in _TOKEN.finditer(pattern):
        literal = pattern[at : token.start()]
        globbed += literal
        expression += re.escape(literal)
        at = token.end()
        name, deep, star, one, group = token.groups()
        if name is not None:
            if name not in _FIELDS or name in seen:
                raise PatternError(f"pattern {pattern!r}: {{{name}}} is unknown or there twice")
            seen.add(name)
            globbed += "*"
            expression += f"(?P<{name}>{_FIELDS[name]})"
        else:
            globbed += token[0]
            expression += (
                "(?:.*/)?"
                if deep == "**/"
                else ".*"
                if deep
                else "[^/]*"
                if star
                else "[^/]"
                if one
                else _class(group)
            )
    literal = pattern[at:]
    return globbed + literal, re.compile(expression + re.escape(literal) + r"\Z")


def _class(group: str) -> str:
    inner = group[1:-1].replace("\\", r"\\")
    return f"[{'^' + inner[1:] if inner.startswith('!') else inner}]"


def find(globbed: str, expression: re.Pattern[str]) -> list[Found]:
    """The plain files that fit, in the order of their names.

    ``**`` follows no link to a folder: two links to their own folder would be endless. What may
    not be looked at is left out.
    """
    found = []
    for name in sorted(_names(globbed)):
        match = expression.match(name)
        if match is None or not _is_plain(name):
            continue
        fields = match.groupdict()
        rank = fields.get("rank")
        found.append(
            Found(
                Path(name),
                fields.get("job"),
                fields.get("host"),
                None if rank is None else int(rank),
            )
        )
    return found


def _is_plain(name: str) -> bool:
    """Whether it is a plain file; one folder that is closed to us hides no other."""
    try:
        return stat.S_ISREG(os.stat(name).st_mode)  # noqa: PTH116 (no Path for every file there is)
    except (OSError, ValueError):
        return False


def _names(globbed: str) -> set[str]:
    """What fits a glob; Path.glob refuses absolute ones and takes names that begin with a dot."""
    parts = globbed.split("/")
    if "**" not in parts:
        return set(glob.glob(globbed))  # noqa: PTH207
    at = parts.index("**")
    rest = parts[at + 1 :]
    while rest and rest[0] == "**":
        rest.pop(0)
    found: set[str] = set()
    head = "/".join([*parts[:at], ""])
    for top in glob.glob(head) if head else [""]:  # noqa: PTH207
        for folder in _folders(top):
            deeper = os.path.join(glob.escape(folder), *(rest or ["*"]))  # noqa: PTH118
            found |= _names(deeper)
    return found


def _folders(top: str) -> Iterator[str]:
    """A folder and all below it, as names, without links and hidden ones."""
    for count, (folder, below, _) in enumerate(os.walk(top or ".")):
        if count >= _MOST_FOLDERS:
            _LOG.warning("%s has more than %d folders: the rest are left out", top, count)
            return
        below[:] = [name for name in below if not name.startswith(".")]
        yield folder if top else os.path.relpath(folder) if folder != "." else ""
