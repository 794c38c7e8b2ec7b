"""One line of every family, and the whole record that it becomes (nccl_lines.ndjson)."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collectors.nccl import parse_stream
from evidence.records import NcclKind

NOW = datetime(2026, 6, 15, 12, 0, tzinfo=UTC)
#: What every record has and no line decides.
_COMMON = {"schema", "id", "observed_at", "raw", "job", "offset", "line"}


def records(text: str, **options: Any) -> list[dict[str, Any]]:
    """What the lines of a text become, without what is common to all records."""
    options = {"job": "j", "host": None, "now": NOW} | options
    found = list(parse_stream(text.encode().splitlines(keepends=True), **options))
    return [
        {name: value for name, value in one.items() if name not in _COMMON}
        for one in json.loads(msgspec.json.encode(found))
    ]


_LINES = Path(__file__).with_name("nccl_lines.ndjson")
CASES = [json.loads(line) for line in _LINES.read_text().splitlines()]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_line_becomes_its_whole_record(case: dict[str, Any]) -> None:
    assert records(case["line"]) == [case["record"]]


def test_every_kind_that_one_line_can_be_has_a_line_here() -> None:
    lines = {case["record"]["kind"] for case in CASES}
    several = {
        NcclKind.COMM_DESTROY,
        NcclKind.PYTHON_ERROR,
        NcclKind.ROOT_CAUSE,
        NcclKind.UNREADABLE,
        NcclKind.OTHER,
    }
    assert lines == {kind.value for kind in NcclKind} - {kind.value for kind in several}


@pytest.mark.parametrize(
    "line",
    [
        "gpu7:811:902 [3] NCCL INFO Channel 19/0 : 2[2] -> 1[1] via P2P/CUMEM",
        "gpu7:811:902 [3] NCCL INFO Connected all rings",
        "gpu7:811:902 [3] NCCL INFO Call to connect returned Connection refused, retrying",
        "gpu7:811:902 [3] NCCL INFO proxy.cc:698 -> 7",
        "[rank3]: step 12 | loss 1.25 | grad error 0.1 | 3 of 8 failed checks retried",
        '  File "/opt/venv/torch/distributed/run.py", line 1129, in run',
        "    raise RuntimeError('CUDA error: an illegal memory access was encountered')",
        "ValueError: printed by a program that caught it",
        "UserWarning: rank 3 failed to find flash attention",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "[rank5]:[E402 09:13:51.1 ProcessGroupNCCL.cpp:632] [Rank 1] Stack trace not found",
    ],
)
def test_a_line_that_says_nothing_is_no_record(line: str) -> None:
    assert records(line) == []
    assert [one["kind"] for one in records(line, keep_other=True)] == ["other"]


@pytest.mark.parametrize(
    "prefix",
    [
        "[1,12]<stderr>:",
        "[default3]:",
        "(Worker pid=4711, ip=10.3.0.9) ",
        "\x1b[36m(RayVllm pid=4711)\x1b[0m ",
        "2026-04-02T09:13:51.118204771Z stderr F ",
        "  4711: ",
        " 42%|####      | 420/1000 [12:34<17:20,  1.79s/it]",
        "gpu1: ",
    ],
)
def test_what_launchers_put_in_front_does_not_hide_a_line(prefix: str) -> None:
    found = records(
        prefix + "gpu7:811:902 [3] include/alloc.h:112 NCCL WARN Cuda failure 999 'unknown error'"
    )
    assert [(one["kind"], one["host"], one["pid"], one["status"]) for one in found] == [
        ("cuda-error", "gpu7", 811, 999)
    ]


def test_ray_says_how_many_lines_of_others_it_left_out() -> None:
    (record,) = records(
        "(Worker pid=4711) mlx5: gpu7: got completion with error: [repeated 15x across cluster]"
    )
    assert (record["repeated"], record["count"], record["host"]) == (True, 15, "gpu7")
