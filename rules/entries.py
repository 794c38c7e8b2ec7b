"""Files of entries: TOML tables in which every value stands with its reason and its source.

`read` flattens such a file into dotted keys; what is wrong in it is one sentence with file, line
and key, so that it can be mended without a search.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Entry", "EntryError", "Reader", "read"]

#: Turns an entry's value into what it means, or raises ValueError saying what it must be.
Reader = Callable[[Any], Any]

_KEY_PART = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_KEY = rf"{_KEY_PART}(?:\s*\.\s*{_KEY_PART})*"
_HEADER = re.compile(rf"\s*\[\[?\s*({_KEY})\s*\]")  # [budget.window_s]
_ASSIGNED = re.compile(rf"\s*({_KEY})\s*=\s*(.*)")  # value = 3600.0
_PARTS = re.compile(_KEY_PART)
_NAMED_LINE = re.compile(r"\(at line (\d+), column \d+\)")  # tomllib: (at line 3, column 7)


class EntryError(ValueError):
    """A file that cannot be used; the message names file, line and key in one sentence."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry as a file has it: what its value means, why it is so, and who says so.

    ``where`` is its file and line, as an error names them.
    """

    value: Any
    why: str
    source: str
    where: str = ""


def read(
    path: Path, reader_of: Callable[[str], Reader | None], words: tuple[str, str]
) -> dict[str, Entry]:
    """All entries of a file by dotted key.

    ``reader_of`` gives the reader of a key, None where there is no such key; ``words`` are what
    the file calls an entry's reason and what its keys are (``why``, ``key in a policy``). Raises
    EntryError.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise EntryError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise EntryError(f"{path}: is not UTF-8 text") from error
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise EntryError(_not_toml(path, text, str(error))) from error
    return dict(_File(path, _lines_of(text), reader_of, *words).entries(table))


def _not_toml(path: Path, text: str, words: str) -> str:
    named = _NAMED_LINE.search(words)
    line = int(named.group(1)) if named else max(1, len(text.splitlines()))
    return f"{path}, line {line}: is not TOML: {_NAMED_LINE.sub('', words).strip()}"


@dataclass(frozen=True, slots=True)
class _File:
    """A file while it is read: where it is, and on which line each key is written out."""

    path: Path
    lines: Mapping[str, int]
    reader_of: Callable[[str], Reader | None]
    reason: str
    thing: str

    @property
    def parts(self) -> tuple[str, str, str]:
        return ("value", self.reason, "source")

    @property
    def shape(self) -> str:
        return f"an entry has only value, {self.reason} and source"

    def error(self, key: str, sentence: str) -> EntryError:
        return EntryError(f"{self.where(key)}: {key}: {sentence}")

    def where(self, key: str) -> str:
        """File and line of a key, or of the longest part of it that is written out."""
        while key and key not in self.lines:
            key = key.rpartition(".")[0]
        return f"{self.path}, line {self.lines.get(key, 1)}"

    def entries(self, table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Entry]]:
        for name, content in table.items():
            key = f"{prefix}{name}"
            if isinstance(content, dict) and content and not content.keys() & set(self.parts):
                yield from self.entries(content, key + ".")
                continue
            reader = self.reader_of(key)
            if isinstance(content, dict) and not content:
                raise self.error(key, f"value is missing{'' if reader else ', the table is empty'}")
            if reader is None and isinstance(content, dict):
                raise self.error(key, f"no such {self.thing}")
            if not isinstance(content, dict):
                raise self.error(key, f"an entry is a table with value, {self.reason} and source")
            assert reader is not None
            yield key, self._entry(key, content, reader)

    def _entry(self, key: str, content: Mapping[str, Any], reader: Reader) -> Entry:
        for name in content:
            if name not in self.parts:
                raise self.error(f"{key}.{name}", self.shape)
        for name in self.parts:
            if name not in content:
                raise self.error(key, f"{name} is missing")
        for name in self.parts[1:]:
            if not isinstance(content[name], str) or not content[name].strip():
                raise self.error(f"{key}.{name}", "must be a sentence")
        try:
            value = reader(content["value"])
        except ValueError as error:
            said = f"must be {error}, but is {content['value']!r}"
            raise self.error(f"{key}.value", said) from None
        return Entry(value, content[self.reason], content["source"], self.where(key))


def _lines_of(text: str) -> dict[str, int]:
    """The line of every dotted key that is written out, or begins one that is, at its first."""
    header, lines = "", dict[str, int]()
    for number, line in _statements(text):
        if (found := _HEADER.match(line)) is not None:
            written = header = _plain(found.group(1))
        elif (found := _ASSIGNED.match(line)) is not None:
            own = _plain(found.group(1))
            written = f"{header}.{own}" if header else own
        else:
            continue
        while written:
            lines.setdefault(written, number)
            written = written.rpartition(".")[0]
    return lines


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a TOML text with their numbers, without those inside a multi-line string."""
    closing = ""
    for number, line in enumerate(text.splitlines(), 1):
        if closing:
            closing = "" if closing in line else closing
            continue
        yield number, line
        for quotes in ('"""', "'''"):
            if line.count(quotes) == 1:
                closing = quotes


def _plain(written: str) -> str:
    """A key as `tomllib` gives it: without quotes and blanks around its dots."""
    return ".".join(part.strip("\"'") for part in _PARTS.findall(written))
