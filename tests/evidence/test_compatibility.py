"""The schemas against those of every release, and the checker itself."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evidence.compatibility import breaks, breaks_since

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"
RELEASES = sorted((SCHEMAS / "released").iterdir())

KERNEL = json.loads((SCHEMAS / "kernel.v1.json").read_text())
ACK = json.loads((SCHEMAS / "ack.v1.json").read_text())


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_records_flow_between_this_build_and_every_release(release: Path) -> None:
    assert breaks_since(release, SCHEMAS) == []


def test_there_is_a_release_to_compare_with_and_it_is_whole() -> None:
    assert [path.name for path in RELEASES][:1] == ["0.1.0"]
    assert len(list(RELEASES[0].glob("*.v1.json"))) == 14


def fields(schema: dict[str, Any], struct: str) -> dict[str, Any]:
    found: dict[str, Any] = schema["$defs"][struct]
    return found


def removed(schema: dict[str, Any]) -> None:
    del fields(schema, "KernelRecord")["properties"]["pci"]


def other_type(schema: dict[str, Any]) -> None:
    fields(schema, "KernelRecord")["properties"]["raw"] = {"type": "integer"}


def wider_type(schema: dict[str, Any]) -> None:
    fields(schema, "KernelRecord")["properties"]["raw"] = {
        "anyOf": [{"type": "string"}, {"type": "null"}]
    }


def new_required(schema: dict[str, Any]) -> None:
    fields(schema, "KernelRecord")["properties"]["slot"] = {"type": "string"}
    fields(schema, "KernelRecord")["required"].append("slot")


def now_required(schema: dict[str, Any]) -> None:
    fields(schema, "KernelRecord")["required"].append("host")


def now_optional(schema: dict[str, Any]) -> None:
    fields(schema, "KernelRecord")["required"].remove("raw")


def other_default(schema: dict[str, Any]) -> None:
    fields(schema, "KernelRecord")["properties"]["count"]["default"] = 0


def nested(schema: dict[str, Any]) -> None:
    fields(schema, "Mig")["properties"]["gi"] = {"type": "string"}


def other_items(schema: dict[str, Any]) -> None:
    fields(schema, "KernelRecord")["properties"]["registers"]["items"] = {"type": "string"}


def lost_value(schema: dict[str, Any]) -> None:
    fields(schema, "KernelKind")["enum"].remove("mce")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (removed, "pci was removed"),
        (other_type, 'raw has another type: type was "string", is "integer"'),
        (wider_type, "raw has another type: anyOf was null, is "),
        (new_required, "slot is new and required"),
        (now_required, "host is required now, and older records lack it"),
        (now_optional, "raw may be left out now, and older readers need it"),
        (other_default, "count has another default, which is not written: was 1, is 0"),
        (nested, 'mig.gi has another type: type was "integer", is "string"'),
        (other_items, 'registers[] has another type: type was "integer", is "string"'),
        (lost_value, 'kind lost the value "mce"'),
    ],
)
def test_what_breaks_is_said(change: Callable[[dict[str, Any]], None], sentence: str) -> None:
    new = copy.deepcopy(KERNEL)
    change(new)
    found = breaks(KERNEL, new)
    assert found
    assert found[0].startswith(sentence)


def test_a_new_field_that_may_be_missing_breaks_nothing() -> None:
    new = copy.deepcopy(KERNEL)
    fields(new, "KernelRecord")["properties"]["slot"] = {
        "anyOf": [{"type": "string"}, {"type": "null"}], "default": None,
    }  # fmt: skip
    assert breaks(KERNEL, new) == []


def test_a_value_may_be_added_where_older_readers_take_what_they_do_not_know() -> None:
    new = copy.deepcopy(KERNEL)
    fields(new, "KernelKind")["enum"].append("nvme")
    assert breaks(KERNEL, new) == []
    new = copy.deepcopy(ACK)
    fields(new, "AckStatus")["enum"].append("postponed")
    assert breaks(ACK, new) == ['status has the new value "postponed", which older readers refuse']


def test_what_was_accepted_is_listed_with_its_reason_and_only_while_it_is_so(
    tmp_path: Path,
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "ack.v1.json").write_text(json.dumps(ACK))
    later = copy.deepcopy(ACK)
    fields(later, "AckStatus")["enum"].append("postponed")
    (new / "ack.v1.json").write_text(json.dumps(later))
    said = 'ack.v1: status has the new value "postponed", which older readers refuse'
    assert breaks_since(old, new) == [said]
    (old / "accepted.json").write_text(json.dumps({said: "workers are upgraded first"}))
    assert breaks_since(old, new) == []
    (new / "ack.v1.json").write_text(json.dumps(ACK))
    assert breaks_since(old, new) == [f"accepted.json names what is not so: {said}"]
    (new / "ack.v1.json").unlink()
    assert "ack.v1: is no longer there" in breaks_since(old, new)
