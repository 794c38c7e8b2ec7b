"""Finds training logs by pattern: a glob whose ``{job}``, ``{host}`` and ``{rank}`` name things."""

import glob
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Found", "PatternError", "find", "matcher"]

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
    """The plain files that fit, in the order of their names."""
    found = []
    # Path.glob refuses absolute patterns.
    for name in sorted(glob.glob(globbed, recursive=True)):  # noqa: PTH207
        match = expression.match(name)
        path = Path(name)
        if match is None or not path.is_file():
            continue
        fields = match.groupdict()
        rank = fields.get("rank")
        found.append(
            Found(
                path,
                fields.get("job"),
                fields.get("host"),
                None if rank is None else int(rank),
            )
        )
    return found
