"""``ringfence ecc-growth``: a table, JSON, a plot; 1 where a GPU is bad, 2 and one sentence."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from warehouse.files import prepare
from warehouse.kinds import KINDS

BEGIN = datetime(2025, 5, 5, tzinfo=UTC)
DAYS = 364


def _rows(uuid: str, at: Callable[[int], int], **more: object) -> list[dict[str, object]]:
    """A sample each six hours, with the count that ``at`` gives for it."""
    return [
        {
            "schema": "gpu/1", "id": f"{uuid}-{tick}", "source": "nvml", "host": "sy-n01",
            "uuid": uuid, "index": int(uuid[-1]), "pci": f"0000:0{uuid[-1]}:00", "status": "ok",
            "event_at": BEGIN + timedelta(hours=6 * tick), "ecc_aggregate_corrected": at(tick),
            "boot_id": "b1", "name": "H100", "kafka_offset": tick, **more,
        }
        for tick in range(4 * DAYS)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A year of eight cards: one errs ever more often, one every three days, one failed a remap."""
    data = tmp_path_factory.mktemp("growth")
    root = data / "warehouse"
    prepare(root)
    late = 4 * (DAYS - 56)
    rows = _rows("GPU-0", lambda _: 0)
    rows += _rows("GPU-1", lambda tick: tick // 13 + max(0, tick - late) // 2)
    rows += _rows("GPU-2", lambda tick: 5 * (tick // 12))
    rows += _rows("GPU-3", lambda _: 0, remap_failure=True)
    for number in range(4, 8):
        rows += _rows(f"GPU-{number}", lambda _: 7)
    folder = root / "gpu" / "day=2026-05-04"
    folder.mkdir(parents=True)
    schema = KINDS["gpu"].schema
    name = "gpu-0000-0a1b2c3d-00000000000000000000.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / name)
    return data


UNTIL = ("--until", "2026-05-03")


def test_the_growing_card_is_named_and_the_call_says_so(ringfence: Any, data: Path) -> None:
    result = ringfence("--data", str(data), "ecc-growth", *UNTIL)
    assert result.exit_code == 1, result.stderr
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [line[:2] for line in lines if line[0] in ("HARD", "GROWING")] == [
        ["HARD", "GPU-3"], ["GROWING", "GPU-1"],
    ]  # fmt: skip
    assert "8 GPUs from 2025-05-04 to 2026-05-03" in " ".join(result.stdout.split())


def test_json_holds_every_card_and_how_many_tests_there_were(ringfence: Any, data: Path) -> None:
    told = json.loads(ringfence("--data", str(data), "ecc-growth", *UNTIL, "--json").stdout)
    assert (told["gpus"], told["tested"]) == (8, 16)
    assert {one["gpu"]: one["verdict"] for one in told["results"]} == {
        "GPU-3": "hard", "GPU-1": "growing", **dict.fromkeys(
            ("GPU-0", "GPU-2", "GPU-4", "GPU-5", "GPU-6", "GPU-7"), "stable"),
    }  # fmt: skip


def test_one_card_is_told_more_of_and_judged_beside_all(ringfence: Any, data: Path) -> None:
    result = ringfence("--data", str(data), "ecc-growth", "--gpu", "GPU-2", *UNTIL)
    assert result.exit_code == 0
    assert "over 16 tests" in " ".join(result.stdout.split())
    assert "episodes a day of use" in result.stdout
    assert "GPU-1" not in result.stdout


@pytest.mark.parametrize("suffix", ["png", "svg", "html"])
def test_it_is_drawn(ringfence: Any, data: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"fleet.{suffix}"
    assert ringfence("--data", str(data), "ecc-growth", *UNTIL, "--plot", str(path)).exit_code == 1
    assert path.stat().st_size > 5000


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--gpu", "GPU-9", *UNTIL), "no GPU 'GPU-9' was sampled"),
        (("--gpu", "GPU-1", "--fleet"), "--gpu is about one GPU"),
        (("--until", "2020-01-01"), "no GPU was sampled"),
        (("--since", "2026-06-01", *UNTIL), "2026-06-01, is after the last"),
        (("--until", "9999-12-31"), "the last day of the calendar"),
        (("--until", "0001-01-01"), "2000-01-01, is after the last"),
        (("--until", "yesterday"), "does not match the format"),
        ((*UNTIL, "--plot", "fleet.pdf"), "a plot is .png"),
        ((*UNTIL, "--settings", "none.toml"), "none.toml: cannot be read"),
        ((*UNTIL, "--plot", "/no/such/folder/a.png"), "cannot be written"),
    ],
)
def test_what_cannot_be_answered_is_one_sentence(
    ringfence: Any, data: Path, flags: tuple[str, ...], said: str
) -> None:
    result = ringfence("--data", str(data), "ecc-growth", *flags)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_without_a_warehouse_it_says_so(ringfence: Any, tmp_path: Path) -> None:
    result = ringfence("--data", str(tmp_path), "ecc-growth")
    assert result.exit_code == 2
    assert "there is no warehouse" in result.stderr
