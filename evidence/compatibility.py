"""Whether records of two minor versions flow together: what their JSON Schemas must not change.

Both ways: today's reader meets a record of the release, and the release's reader one of today. So a
field is never removed, changed or made optional, and a default never changed (it is not written).
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["breaks", "breaks_since"]

#: What explains a schema and does not narrow it.
_WORDS = frozenset({"title", "description", "default", "x-open", "$defs", "$ref"})


def breaks_since(released: Path, today: Path) -> list[str]:
    """What changed between two folders of schemas so that records no longer flow, a sentence each.

    What ``accepted.json`` of the release lists (the sentence and why it may be so) is left out.
    """
    accepted: dict[str, str] = {}
    if (released / "accepted.json").exists():
        accepted = json.loads((released / "accepted.json").read_text())
    found = []
    for path in sorted(released.glob("*.v*.json")):
        now = today / path.name
        if now.exists():
            old, new = json.loads(path.read_text()), json.loads(now.read_text())
            found += [f"{path.stem}: {words}" for words in breaks(old, new)]
        else:
            found.append(f"{path.stem}: is no longer there")
    unused = sorted(set(accepted) - set(found))
    return [one for one in found if one not in accepted] + [
        f"accepted.json names what is not so: {one}" for one in unused
    ]


def breaks(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What changed from one struct's schema to another so that records no longer flow."""
    return list(_Pair(old, new).compare(old, new, ""))


class _Pair:
    """Two schemas, for the definitions that their parts refer to."""

    def __init__(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        self._old, self._new = old.get("$defs", {}), new.get("$defs", {})
        self._seen: set[tuple[str, str]] = set()

    def compare(self, old: Mapping[str, Any], new: Mapping[str, Any], at: str) -> Iterator[str]:
        """What differs at one place."""
        names = str(old.get("$ref", "")), str(new.get("$ref", ""))
        if any(names):
            if names in self._seen:
                return
            self._seen.add(names)
        old, new = _followed(old, self._old), _followed(new, self._new)
        if "enum" in old and "enum" in new:
            yield from _enums(old, new, at)
            return
        if "properties" in old and "properties" in new:
            yield from self._fields(old, new, at)
            return
        for key in sorted((old.keys() | new.keys()) - _WORDS):
            yield from self._part(old.get(key), new.get(key), at, key)

    def _part(self, old: Any, new: Any, at: str, key: str) -> Iterator[str]:  # noqa: ANN401 (JSON)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from self.compare(old, new, f"{at}[]" if key == "items" else at)
        elif (
            isinstance(old, list)
            and isinstance(new, list)
            and len(old) == len(new)
            and all(isinstance(one, dict) for one in (*old, *new))
        ):
            for before, after in zip(old, new, strict=True):
                yield from self.compare(before, after, at)
        elif old != new:
            yield f"{at or 'the record'} has another type: {key} was {_said(old)}, is {_said(new)}"

    def _fields(self, old: Mapping[str, Any], new: Mapping[str, Any], at: str) -> Iterator[str]:
        before, after = old["properties"], new["properties"]
        needed, needs = set(old.get("required", ())), set(new.get("required", ()))
        for name in before:
            place = f"{at}.{name}" if at else name
            if name not in after:
                yield f"{place} was removed"
                continue
            if name in needed - needs:
                yield f"{place} may be left out now, and older readers need it"
            if name in needs - needed:
                yield f"{place} is required now, and older records lack it"
            defaults = before[name].get("default"), after[name].get("default")
            if name not in needed | needs and defaults[0] != defaults[1]:
                yield (
                    f"{place} has another default, which is not written: "
                    f"was {_said(defaults[0])}, is {_said(defaults[1])}"
                )
            yield from self.compare(before[name], after[name], place)
        for name in sorted(needs - before.keys()):
            yield f"{f'{at}.{name}' if at else name} is new and required"


def _followed(part: Mapping[str, Any], defined: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = part.get("$ref")
    if reference is None:
        return part
    found: Mapping[str, Any] = defined[str(reference).rpartition("/")[2]]
    return found


def _enums(old: Mapping[str, Any], new: Mapping[str, Any], at: str) -> Iterator[str]:
    for value in sorted(set(old["enum"]) - set(new["enum"])):
        yield f"{at} lost the value {_said(value)}"
    if not old.get("x-open"):
        for value in sorted(set(new["enum"]) - set(old["enum"])):
            yield f"{at} has the new value {_said(value)}, which older readers refuse"


def _said(value: object) -> str:
    return json.dumps(value, sort_keys=True)
