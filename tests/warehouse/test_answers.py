"""Answers as CSV, JSON lines and Parquet: right in every odd cell, in the memory of a batch."""

import csv
import io
import json
import signal
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

#: Not even its first row comes within a day.
ENDLESS = "select count(*) from range(100000000000) as a, range(1000) as b"


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


def test_a_slow_answer_has_no_progress_bar_on_its_standard_output(root: Path) -> None:
    program = f"""
import pathlib
from warehouse.query import connect
connection = connect(pathlib.Path({str(root)!r}))
print(connection.execute("select current_setting('enable_progress_bar')").fetchone())
"""  # as `python -c`, which DuckDB takes for a person at a terminal
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stdout == "(False,)\n"


def test_two_columns_of_one_name_are_both_written(root: Path, tmp_path: Path) -> None:
    sql = "select 1 as id, 2 as id, 3 as id_1"
    assert written(root, sql, "json") == b'{"id":1,"id_2":2,"id_1":3}\n'
    assert written(root, sql, "csv").startswith(b"id,id_2,id_1\n")
    path = tmp_path / "two.parquet"
    with answer(root, sql) as found:
        write(found, "parquet", path, io.BytesIO())
    assert pq.read_table(path).to_pylist() == [{"id": 1, "id_2": 2, "id_1": 3}]


def test_times_that_no_calendar_has_are_written_as_text(root: Path) -> None:
    sql = """select 'infinity'::timestamptz as a, '-infinity'::date as b,
        timestamp '294246-01-01' as c, [timestamp '294246-01-01'] as d"""
    far = "<no timestamp[us] of any calendar: 9223339708800000000>"
    line = json.loads(written(root, sql, "json"))
    assert (line["a"], line["b"], line["c"]) == ("infinity", "-infinity", far)
    assert line["d"].startswith("<no list")
    row = written(root, sql, "csv").decode().splitlines()[1]
    assert row.startswith(f'"infinity","-infinity","{far}"')
    with answer(root, sql) as found:
        assert next(found.rows())[:3] == ("infinity", "-infinity", far)


def test_a_file_in_no_folder_is_refused_in_words(root: Path, tmp_path: Path) -> None:
    output = tmp_path / "none" / "odd.csv"
    said = "there is no folder .*none"
    with answer(root, ODD) as found, pytest.raises(WarehouseError, match=said):
        write(found, "csv", output, io.BytesIO())


def test_ctrl_c_ends_a_question_without_end(root: Path) -> None:
    program = f"""
import pathlib, signal
from warehouse.answers import answer
signal.signal(signal.SIGINT, signal.default_int_handler)
with answer(pathlib.Path({str(root)!r}), "select 1") as found:
    list(found.rows())
print("asking", flush=True)
with answer(pathlib.Path({str(root)!r}), {ENDLESS!r}) as found:
    list(found.rows())
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as asking:
        assert asking.stdout is not None
        assert asking.stderr is not None
        asking.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            asking.wait(timeout=1)
        asking.send_signal(signal.SIGINT)
        try:
            asking.wait(timeout=20)
        finally:
            asking.kill()
        assert b"KeyboardInterrupt" in asking.stderr.read()
