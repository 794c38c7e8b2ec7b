"""Questions are answered, everything else is refused in one sentence."""

import dataclasses
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from evidence.records import KernelKind, KernelRecord
from tests.warehouse import made_history as made
from warehouse.errors import WarehouseError
from warehouse.listing import shifted
from warehouse.query import connect, query, view_names
from warehouse.sink import SinkConfig
from warehouse.timeline import timeline

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
            default: object = int(one.default) if one.default == int(one.default) else one.default
            default = "false" if one.default is False else default
            assert f"| `{one.name}` | {default} |" in text


@pytest.mark.parametrize(("layer", "name"), VIEWS)
def test_every_view_says_what_it_holds_and_is_named_by_its_file(layer: str, name: str) -> None:
    text = (SQL / layer / f"{name}.sql").read_text()
    assert text.startswith("-- ")
    assert f"create view {layer}.{name} as" in text
    if layer != "staging":
        shown = text.split("\nselect")[-1].partition("\nfrom ")[0]
        assert not re.search(r"(^|[\s.])\*\s*(,|$|from|exclude)", shown), shown
        assert "select *" not in text


def test_every_column_of_a_fact_is_in_the_docs(root: Path) -> None:
    documented = DOCS.read_text()
    connection = connect(root)
    for name in view_names()["facts"]:
        section = documented.split(f"### `{name}`\n")[1].split("### ")[0]
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
    "drop view facts.xid_events": "only read",
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


def test_the_answer_of_then_knows_nothing_that_came_later(
    root: Path, partition: Any, fetched: Any
) -> None:
    made.keep(made.history(), partition, fetched)
    sql = "select domain_id, cause from states_at where isolated and valid_to is null"
    bad = "gpu:c01/0000:1b:00"
    assert query(root, sql)[1] == []
    assert query(root, sql, at=made.FIRST + timedelta(hours=1))[1] == [(bad, "gpu-memory")]
    assert query(root, sql, at=made.FIRST + timedelta(hours=13))[1] == []
    here = f"select host from inventory_at where uuid = '{made.BAD}' and valid_to is null"
    assert query(root, here)[1] == [("c03",)]
    assert query(root, here, at=made.FIRST)[1] == [("c01",)]
    revision = "select status from verdicts where incident = 'i1'"
    assert query(root, revision, at=made.FIRST + timedelta(seconds=1.5))[1] == [("suspected",)]


def test_only_the_days_that_are_asked_for_are_opened(
    root: Path, partition: Any, fetched: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    made.keep(made.history(), partition, fetched)
    for path in root.glob("kernel/day=2026-03-1*/*.parquet"):
        path.write_bytes(b"damaged")
    period = (made.FIRST - timedelta(hours=1), made.FIRST + timedelta(hours=1))
    connection = connect(root, period=period, asks="xid_events")
    assert connection.execute("select count(*) from xid_events").fetchall() == [(3,)]
    connection.close()
    assert capsys.readouterr().err == ""
    query(root, "select count(*) from xid_events")
    assert "day=2026-03-1" in capsys.readouterr().err


def test_a_question_needs_only_the_views_that_it_names(root: Path) -> None:
    connection = connect(root, asks="select 1 from jobs")
    sql = "select schema_name || '.' || view_name from duckdb_views() where not internal"
    found = {one[0] for one in connection.execute(sql).fetchall()}
    connection.close()
    assert found == {"facts.jobs", "staging.nccl", "staging.context"}
    assert len(query(root, sql)[1]) == len(VIEWS)


def test_a_card_that_moves_leaves_its_place_even_where_that_says_nothing(
    root: Path, store: Any
) -> None:
    told = [made.inventory("n1", made.BEGIN, made.BAD), made.inventory("n2", made.END, made.BAD)]
    store("inventory", *(record for _, _, record in told))
    assert query(root, "select host, valid_from, valid_to from inventory_at order by host")[1] == [
        ("n1", made.BEGIN, made.END),
        ("n2", made.END, None),
    ]


def test_a_file_without_an_end_is_named_and_left_out(
    root: Path, store: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = store("kernel", b"x")
    path.write_bytes(b"PAR1 is not enough")
    assert query(root, "select id from kernel")[1] == []
    assert path.name in capsys.readouterr().err


def test_a_file_damaged_within_is_said_in_one_line(root: Path, store: Any) -> None:
    path = store("kernel", *(_line(number) for number in range(200)))
    content = path.read_bytes()
    path.write_bytes(content[:4] + bytes(len(content) // 2) + content[4 + len(content) // 2 :])
    with pytest.raises(WarehouseError) as refused:
        query(root, "select * from kernel")
    assert "\n" not in str(refused.value)


def _line(number: int) -> KernelRecord:
    return KernelRecord(
        id=f"k{number}", observed_at=made.BEGIN, raw=f"eth{number} up", kind=KernelKind.OTHER
    )


def test_a_root_whose_name_looks_like_a_pattern_is_read(tmp_path: Path) -> None:
    odd = tmp_path / "ware[house]* it's?"
    odd.mkdir()
    connect(odd).close()
    assert query(odd, "select id from kernel")[1] == []


def test_a_folder_that_only_exists_is_an_empty_warehouse(tmp_path: Path) -> None:
    assert query(tmp_path, "select id from xid_events")[1] == []


@pytest.mark.parametrize("year", [1, 9999])
def test_the_first_and_the_last_year_are_times_as_others(year: int, root: Path, store: Any) -> None:
    first, last = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    at = first if year == 1 else last
    line = KernelRecord(
        id="k1", host="h1", at=at, observed_at=at, raw="x", kind=KernelKind.XID, code=79
    )
    store("kernel", line)
    for period in ((at, at), (first, last)):
        connection = connect(root, period=period)
        connection.execute("select count(*) from timeline").fetchall()
        connection.close()
    with pytest.raises(WarehouseError, match="nothing is stored"):
        timeline(root, "h2", at, timedelta(days=366))
    assert {shifted(at, sign * timedelta(days=1)).year for sign in (-1, 1)} == {year}
    assert query(root, "select id from staging.kernel")[1] == [("k1",)]


@pytest.mark.parametrize("how", ["", "analyze", "(format json)", "analyze (format json)"])
def test_a_plan_is_told_of_what_reads_only(how: str, root: Path) -> None:
    assert query(root, f"explain {how} select 1")[1]
    with pytest.raises(WarehouseError, match="only read"):
        query(root, f"explain {how} create table t as select 1")
