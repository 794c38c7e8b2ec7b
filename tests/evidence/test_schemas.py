from pathlib import Path

import jsonschema
import msgspec
import pytest

from evidence import records, schemas

KEPT = Path(__file__).parents[2] / "docs" / "schemas"


def test_the_kept_schemas_are_those_of_the_structs(tmp_path: Path) -> None:
    fresh = {path.name: path.read_text() for path in schemas.write(tmp_path)}
    kept = {path.name: path.read_text() for path in KEPT.glob("*.json")}
    assert kept == fresh, "run: python -m evidence.schemas docs/schemas"


def test_a_record_satisfies_its_schema_and_a_wrong_one_does_not() -> None:
    schema = schemas.schema(records.Tick)
    jsonschema.validate({"schema": "tick/1", "id": "t", "at": "2026-01-01T00:00:00Z"}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"schema": "tick/1", "id": 1, "at": "2026-01-01T00:00:00Z"}, schema)
    assert msgspec.json.schema(records.Tick) == schema
