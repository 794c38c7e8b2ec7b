"""Questions are answered, everything else is refused in one sentence."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from warehouse.errors import WarehouseError
from warehouse.query import connect, query, view_names
from warehouse.sink import SinkConfig

VIEWS = [(layer, name) for layer, names in view_names().items() for name in names]
SQL = Path(__file__).parents[2] / "warehouse" / "sql"
DOCS = Path(__file__).parents[2] / "docs" / "warehouse.md"


@pytest.mark.parametrize(("layer", "name"), VIEWS)
def test_every_view_runs_on_an_empty_warehouse(layer: str, name: str, root: Path) -> None:
    assert query(root, f"select * from {layer}.{name}")[1] == []


@pytest.mark.parametrize(("layer", "name"), VIEWS)
def test_every_view_is_in_the_docs(layer: str, name: str) -> None:
    assert f"| `{layer}.{name}` |" in DOCS.read_text()


def test_every_setting_of_the_sink_is_in_the_docs() -> None:
    text = DOCS.read_text()
    for one in dataclasses.fields(SinkConfig):
        if one.name != "kafka":
            assert f"`{one.name}`" in text
        if isinstance(one.default, int | float) and one.name not in ("index", "count"):
            default = int(one.default) if one.default == int(one.default) else one.default
            assert f"| `{one.name}` | {default} |" in text


@pytest.mark.parametrize(("layer", "name"), VIEWS)
def test_every_view_says_what_it_holds_and_is_named_by_its_file(layer: str, name: str) -> None:
    text = (SQL / layer / f"{name}.sql").read_text()
    assert text.startswith("-- ")
    assert f"create view {layer}.{name} as" in text
    if layer != "staging":
        assert "*" not in text.split("create view")[1].replace("count(*)", "")


def test_every_column_of_a_fact_is_in_the_docs(root: Path) -> None:
    documented = DOCS.read_text()
    connection = connect(root)
    for name in view_names()["facts"]:
        section = documented.split(f"### `{name}`")[1].split("### ")[0]
        columns = [one[0] for one in connection.execute(f"describe facts.{name}").fetchall()]
        assert [one for one in columns if f"`{one}`" not in section] == []
    connection.close()


def test_a_question_is_answered_with_columns_and_rows(root: Path) -> None:
    assert query(root, "select 1 as one, 'a' as letter") == (["one", "letter"], [(1, "a")])


def test_columns_need_no_quotes(root: Path) -> None:
    connection = connect(root)
    for layer, name in VIEWS:
        described = connection.execute(f"describe {layer}.{name}").fetchall()
        columns = ", ".join(f"min({one[0]})" for one in described)
        connection.execute(f"select {columns} from {layer}.{name}")
    connection.close()


REFUSED = {
    "copy (select 1) to '{root}/x.parquet'": "only read",
    "explain analyze copy (select 1) to '{root}/x.parquet'": "only read",
    "explain (analyze) copy (select 1) to '{root}/x.parquet'": "only read",
    "attach '{root}/x.db'": "only read",
    "export database '{root}/x'": "only read",
    "create table x as select 1": "only read",
    "set variable root = '/'": "only read",
    "drop view facts.xids": "only read",
    "install httpfs": "only read",
    "select 1; select 2": "one statement at a time, this is 2",
    "": "this is 0",
    "selec 1": "syntax error",
    "select * from nowhere": "nowhere",
    "select * from read_text('/etc/hostname')": "Permission",
    "select * from '/etc/hostname'": "hostname",
    "select 1/": "syntax error",
}


@pytest.mark.parametrize("sql", REFUSED)
def test_what_is_no_question_is_refused_in_one_line(sql: str, root: Path) -> None:
    before = sorted(root.rglob("*"))
    with pytest.raises(WarehouseError, match=REFUSED[sql]) as refused:
        query(root, sql.replace("{root}", str(root)))
    assert "\n" not in str(refused.value)
    assert sorted(root.rglob("*")) == before


def test_a_missing_warehouse_is_said(tmp_path: Path) -> None:
    with pytest.raises(WarehouseError, match="no sink has stored anything there"):
        query(tmp_path / "nowhere", "select 1")


def test_a_damaged_file_is_said_in_one_line(root: Path, store: Any) -> None:
    path = store("kernel", b"x")
    path.write_bytes(b"PAR1 is not enough")
    with pytest.raises(WarehouseError, match=path.name):
        query(root, "select id from kernel")


def test_a_root_whose_name_looks_like_a_pattern_is_read(tmp_path: Path) -> None:
    odd = tmp_path / "ware[house]* it's?"
    odd.mkdir()
    connect(odd).close()
    assert query(odd, "select id from kernel")[1] == []


def test_a_folder_that_only_exists_is_an_empty_warehouse(tmp_path: Path) -> None:
    assert query(tmp_path, "select id from xids")[1] == []
