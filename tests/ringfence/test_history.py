"""The subcommands that ask the history: sql, why, timeline."""

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import Result

from tests.warehouse import made_history as made
from tests.warehouse.conftest import Fetched, policy
from warehouse.files import prepare
from warehouse.kinds import KINDS
from warehouse.partition import Partition

Ringfence = Callable[..., Result]


@pytest.fixture
def month(tmp_path: Path) -> Path:
    """The made month, where the calls look for a warehouse."""
    root = tmp_path / "data" / "warehouse"
    prepare(root)

    def partition(topic: str, start: int) -> Partition:
        return Partition(
            kind=KINDS[topic], topic=f"ringfence.{topic}", base="0a1b2c3d", rounds=0, number=0,
            start=start, policy=policy(root),
        )  # fmt: skip

    made.keep(made.history(), partition, Fetched)
    return root


CODES = "select code, count(*) as lines from xid_events group by code order by code"


@pytest.mark.usefixtures("month")
def test_sql_writes_every_form(ringfence: Ringfence, tmp_path: Path) -> None:
    expected = [(48, 3), (63, 1), (64, 1), (79, 1), (94, 2), (95, 1)]
    text = ringfence("sql", CODES, "--format", "csv").stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(int(row["code"]), int(row["lines"])) for row in rows] == expected
    lines = ringfence("sql", CODES, "--json").stdout.splitlines()
    assert [tuple(json.loads(line).values()) for line in lines] == expected
    assert ringfence("sql", CODES).stdout.splitlines()[:2] == ["code\tlines", "48\t3"]
    for name in ("codes.parquet", "codes.csv", "codes.json"):
        done = ringfence("sql", CODES, "--output", str(tmp_path / name))
        assert (done.exit_code, done.stdout) == (0, "")
        assert re.fullmatch(r"6 rows in .*codes\.\w+\n", done.stderr)
    assert pq.read_table(tmp_path / "codes.parquet").to_pydict()["code"] == [48, 63, 64, 79, 94, 95]
    assert (tmp_path / "codes.csv").read_text() == text


@pytest.mark.usefixtures("month")
def test_sql_answers_as_of_then_and_of_some_days(ringfence: Ringfence) -> None:
    out = "select domain_id from states_at where isolated and valid_to is null"
    assert ringfence("sql", out, "--json").stdout == ""
    then = ringfence("sql", out, "--json", "--at", "2026-03-10T12:00").stdout
    assert json.loads(then) == {"domain_id": "gpu:c01/0000:1b:00"}
    days = ("--since", "2026-03-09", "--until", "2026-03-16")
    lines = ringfence("sql", CODES, "--json", *days).stdout.splitlines()
    assert [json.loads(line)["code"] for line in lines] == [48, 79, 94]


REFUSED = {
    ("select 1", "--format", "parquet"): "Parquet goes to a file",
    ("select 1", "--output", "out.txt"): "written as csv, json or parquet",
    ("select 1", "--json", "--format", "csv"): "two forms",
    ("select 1", "--since", "2026-03-02", "--until", "2026-03-01"): "--since is after --until",
    ("select 1", "--at", "yesterday"): "no time like",
    ("select 1", "--output", "nowhere/out.csv"): "there is no folder nowhere",
}


@pytest.mark.usefixtures("month")
@pytest.mark.parametrize("call", REFUSED)
def test_what_cannot_be_written_is_one_sentence(call: tuple[str, ...], ringfence: Any) -> None:
    result = ringfence("sql", *call)
    assert result.exit_code == 2
    assert REFUSED[call] in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


@pytest.mark.usefixtures("month")
def test_why_tells_the_raw_lines_their_files_and_what_followed(ringfence: Ringfence) -> None:
    found = json.loads(ringfence("why", "c01aa", "--json").stdout)
    assert [one["revision"] for one in found["verdicts"]] == [1, 2]
    assert found["evidence"][0]["raw"].startswith("NVRM: Xid (PCI:0000:1b:00): 48, pid=4711")
    assert [(one["file"], one["line"], one["stored_in"]) for one in found["evidence"]] == [
        ("/var/log/kern.log", 1200 + number, f"ringfence.kernel/0/{number}") for number in range(3)
    ]
    assert [one["id"] for one in found["suspicions"]] == ["s1"]
    assert [one["status"] for one in found["acks"]] == ["done"]
    assert [one["isolated"] for one in found["states"][:2]] == [True, False]
    text = ringfence("why", "c01aa").stdout
    for words in (
        "revision 2, decided",
        "suspicion culprit",
        "/var/log/kern.log:1200 [ringfence.kernel/0/0] NVRM: Xid (PCI:0000:1b:00): 48",
        "out of service (gpu-memory by ringfence)",
        "in service: released by ana",
        "prove it: ringfence replay --since",
    ):
        assert words in text


@pytest.mark.usefixtures("month")
def test_a_command_that_the_records_do_not_give_again_is_not_proved(ringfence: Ringfence) -> None:
    """The made month has no ticks, so the stages never came to a decision of their own."""
    result = ringfence("why", "c01aa", "--prove", "--json")
    assert result.exit_code == 1
    proof = json.loads(result.stdout)["proof"]
    assert proof["same"] is False
    assert ("command", "c01aa", "stored") in [
        (one["kind"], one["id"], one["how"]) for one in proof["differences"]
    ]
    assert "replayed: different" in ringfence("why", "c01aa", "--prove").stdout


@pytest.mark.usefixtures("month")
def test_why_as_of_then_knows_no_later_ack(ringfence: Ringfence) -> None:
    found = json.loads(ringfence("why", "c01aa", "--at", "2026-03-03T10:05:04", "--json").stdout)
    assert (found["acks"], len(found["states"])) == ([], 1)


AROUND = ("--around", "2026-03-03T10:05")


@pytest.mark.usefixtures("month")
def test_timeline_tells_one_line_an_event(ringfence: Ringfence) -> None:
    text = ringfence("timeline", made.BAD, *AROUND).stdout
    lines = text.splitlines()
    assert (
        lines[0] == f"gpu {made.BAD} on c01, 2026-03-03 09:35:00 to 2026-03-03 10:35:00: 38 events"
    )
    assert "10:05:00.000 kernel    0000:1b:00 xid 48  NVRM: Xid (PCI:0000:1b:00): 48, " in text
    assert f"no samples of {made.BAD} from 2026-03-03 10:16:00" in text
    assert "out of service: drain for gpu-memory gpu:c01/0000:1b:00" in text


@pytest.mark.usefixtures("month")
def test_timeline_as_json_has_all_but_the_samples(ringfence: Ringfence) -> None:
    found = json.loads(ringfence("timeline", "c01", *AROUND, "--window", "10m", "--json").stdout)
    assert found["target"]["kind"] == "host"
    assert [one["what"] for one in found["events"] if one["source"] == "kernel"] == [
        "xid 48", "xid 63", "xid 94",
    ]  # fmt: skip
    assert found["coverage"] == {made.BAD: 1.0, made.uuid("c01", 1): 1.0}


@pytest.mark.usefixtures("month")
@pytest.mark.parametrize(("name", "begin"), [("a.png", b"\x89PNG"), ("a.html", b"<!doctype html>")])
def test_timeline_draws(name: str, begin: bytes, ringfence: Ringfence, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = ringfence("timeline", "rack:r1", *AROUND, "--plot", str(tmp_path / name))
    assert done.exit_code == 0
    assert (tmp_path / name).read_bytes().startswith(begin)


BAD_CALLS = {
    ("c99", *AROUND): "nothing is stored of a GPU, host, job or rack 'c99'",
    ("c01", *AROUND, "--window", "an hour"): "no length like",
    ("c01", *AROUND, "--window", "0s"): "no length like",
    ("c01", *AROUND, "--plot", "a.gif"): "is drawn as .png, .svg, .html",
    ("c01",): "Missing option '--around'",
}


@pytest.mark.usefixtures("month")
@pytest.mark.parametrize("call", BAD_CALLS)
def test_a_timeline_that_cannot_be_told_is_one_sentence(
    call: tuple[str, ...], ringfence: Any
) -> None:
    result = ringfence("timeline", *call)
    assert result.exit_code == 2
    assert BAD_CALLS[call] in " ".join(result.stderr.split())
