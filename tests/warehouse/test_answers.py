"""Answers as CSV, JSON lines and Parquet: right in every odd cell, in the memory of a batch."""

import csv
import io
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from warehouse.answers import answer, write
from warehouse.errors import WarehouseError

ODD = """
select * from (values
    (1, 'plain', 1.5::double, true, timestamptz '2026-04-07 03:12:08.25+00', [1, 2], {'a': 'x'}),
    (2, 'a "quoted", line' || chr(10) || 'and :more:', null, null, null, null, null)
) as odd(number, text, part, flag, at_time, many, nested)
"""


def written(root: Path, sql: str, form: str) -> bytes:
    out = io.BytesIO()
    with answer(root, sql) as found:
        write(found, form, None, out)
    return out.getvalue()


def test_csv_keeps_every_cell(root: Path) -> None:
    rows = list(csv.reader(io.StringIO(written(root, ODD, "csv").decode())))
    assert rows[0] == ["number", "text", "part", "flag", "at_time", "many", "nested"]
    assert rows[1] == [
        "1", "plain", "1.5", "true", "2026-04-07 03:12:08.250000Z", "[1,2]", '{"a":"x"}',
    ]  # fmt: skip
    assert rows[2] == ["2", 'a "quoted", line\nand :more:', "", "", "", "", ""]


def test_json_is_one_object_a_line(root: Path) -> None:
    lines = [json.loads(line) for line in written(root, ODD, "json").splitlines()]
    assert lines[0] == {
        "number": 1, "text": "plain", "part": 1.5, "flag": True,
        "at_time": "2026-04-07T03:12:08.250000Z", "many": [1, 2], "nested": {"a": "x"},
    }  # fmt: skip
    assert lines[1]["part"] is None


def test_a_sum_of_integers_is_an_integer(root: Path) -> None:
    sql = "select sum(i) as total from range(4) as t(i)"
    assert written(root, sql, "json") == b'{"total":6}\n'
    assert written(root, sql, "csv") == b"total\n6\n"


def test_parquet_keeps_types_and_nothing_is_there_before_all_is(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "odd.parquet"
    with answer(root, ODD) as found:
        assert write(found, "parquet", path, io.BytesIO()) == 2
    first = pq.read_table(path).to_pylist()[0]
    assert first["at_time"] == datetime(2026, 4, 7, 3, 12, 8, 250000, UTC)
    assert first["nested"] == {"a": "x"}


def test_a_question_that_fails_on_its_way_leaves_no_file(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "none.csv"
    sql = "select case when i = 180000 then error('broken') else i end from range(200000) as t(i)"
    with pytest.raises(WarehouseError, match="broken"), answer(root, sql) as found:
        write(found, "csv", path, io.BytesIO())
    assert [one for one in tmp_path.iterdir() if "none" in one.name] == []


@pytest.mark.parametrize("sql", ["drop view facts.jobs", "select 1; select 2", "selec"])
def test_what_is_no_question_is_refused(sql: str, root: Path) -> None:
    with pytest.raises(WarehouseError), answer(root, sql):
        pass


def test_rows_come_in_order_of_the_answer(root: Path) -> None:
    with answer(root, "select i from range(120000) as t(i) order by i desc") as found:
        assert next(found.rows()) == (119_999,)


_BIG = """
import resource, sys
from pathlib import Path
from warehouse.answers import answer, write

def asked(rows):
    sql = f"select i, repeat('of some length ', 20) || i as text from range({rows}) t(i)"
    with answer(Path(sys.argv[1]), sql) as found:
        assert write(found, sys.argv[2], Path(sys.argv[3]), None) == rows
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

print(asked(1000), asked(1_500_000))
"""


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_an_answer_of_half_a_gigabyte_takes_the_memory_of_some_rows(
    form: str, root: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BIG, str(root), form, str(tmp_path / "out")],
        capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    few_kib, many_kib = map(int, done.stdout.split())
    assert many_kib - few_kib < 200_000
