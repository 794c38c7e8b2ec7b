"""Files of different builds become one, with every column and every row."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from warehouse import rewrite


def test_fields_that_came_later_inside_a_list_of_records_are_kept(tmp_path: Path) -> None:
    folder = tmp_path
    field = {"x": pa.int64()}
    tables = [
        pa.table({"host": ["a"], "marks": pa.array([[{"x": 1}]], pa.list_(pa.struct(field)))}),
        pa.table(
            {
                "host": ["b"],
                "marks": pa.array(
                    [[{"x": 2, "y": "q"}]], pa.list_(pa.struct(field | {"y": pa.string()}))
                ),
            }
        ),
    ]
    paths = [folder / "old.parquet", folder / "new.parquet"]
    for path, table in zip(paths, tables, strict=True):
        pq.write_table(table, path)
    schema = rewrite.unified([one.schema for one in tables])
    made = folder / "made.parquet"
    rewrite.sorted_into(made, "kernel", paths, schema, memory_mib=256, codec="zstd")
    assert pq.ParquetFile(made).read().column("marks").to_pylist() == [
        [{"x": 1, "y": None}],
        [{"x": 2, "y": "q"}],
    ]
    proofs = {
        rewrite.proof(one, schema, scratch=folder / "p.tmp", memory_mib=256)
        for one in (paths, [made])
    }
    assert len(proofs) == 1
