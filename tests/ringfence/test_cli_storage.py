"""`ringfence compact` and `ringfence retain`: what they print and how they refuse."""

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from ringfence.cli import main
from warehouse.files import Range, prepare, publish
from warehouse.kinds import KINDS

KERNEL = KINDS["kernel"]
LONG_AGO = date(2020, 2, 3)


@pytest.fixture
def ringfence(tmp_path: Path) -> Callable[..., Result]:
    """``ringfence("compact")`` with settings that close and delete at once."""
    config = tmp_path / "settings.toml"
    config.write_text(
        "[sink]\nclose_after_s = -1\nkeep_small_s = -1\nretain_days = {kernel = 30}\n"
        f'root = "{tmp_path / "warehouse"}"\n'
    )

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["--config", str(config), *arguments])

    return run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A warehouse with five rows in two files of a day long ago."""
    root = tmp_path / "warehouse"
    prepare(root)
    for start, last in ((0, 2), (3, 4)):
        one = Range(
            kind=KERNEL, log="0a1b2c3d", partition=0, start=start, first=start, last=last,
            day=LONG_AGO,
        )  # fmt: skip
        columns = [pa.nulls(last - start + 1, column.type) for column in KERNEL.schema]
        publish(root, one, pa.table(columns, schema=KERNEL.schema), "zstd")
    return root


def test_compact_says_what_became_of_each_day(ringfence: Callable[..., Result], root: Path) -> None:
    done = ringfence("compact", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["kind"], told["day"], told["rows"]) == ("kernel", "2020-02-03", 5)
    assert (told["small_files"], told["files"]) == (2, 1)
    assert ringfence("compact").stdout == ""
    assert len(list(root.glob("kernel/day=2020*/*.parquet"))) == 1


def test_retain_says_what_goes_and_a_dry_run_only_what_would(
    ringfence: Callable[..., Result], root: Path
) -> None:
    ringfence("compact", "--kind", "kernel")
    for _ in range(2):
        told = ringfence("retain", "--dry-run")
        assert told.stdout == "kernel 2020-02-03: 5 rows in 1 files\n"
    done = ringfence("retain", "--json")
    assert json.loads(done.stdout) == {"kind": "kernel", "day": "2020-02-03", "files": 1, "rows": 5}
    ringfence("retain")
    assert list(root.glob("kernel/day=2020*")) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("compact", "--kind", "weather"), "no kind 'weather'"),
        (("compact", "--root", "/nowhere/at/all"), "there is no warehouse at /nowhere/at/all"),
        (("retain", "--root", "/nowhere/at/all"), "there is no warehouse at /nowhere/at/all"),
        (("compact", "--root", "s3://bucket/x?colour=blue"), "no option 'colour'"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_exit_code_2(
    ringfence: Callable[..., Result], arguments: tuple[str, ...], sentence: str
) -> None:
    refused = ringfence(*arguments)
    assert refused.exit_code == 2
    assert sentence in refused.stderr
    assert "Traceback" not in refused.output


def test_a_day_that_is_not_over_stays(ringfence: Callable[..., Result], root: Path) -> None:
    today = datetime.now(UTC).date() + timedelta(days=1)
    one = Range(kind=KERNEL, log="0a1b2c3d", partition=0, start=5, first=5, last=5, day=today)
    publish(root, one, KERNEL.schema.empty_table(), "zstd")
    assert "2020-02-03" in ringfence("compact").stdout
    assert len(list(root.glob(f"kernel/day={today}/kernel-0*"))) == 1
