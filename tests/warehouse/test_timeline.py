"""One order of everything that happened to a part, in text and as a picture."""

import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.warehouse import made_history as made
from warehouse.errors import WarehouseError
from warehouse.timeline import Timeline, timeline

HOUR = timedelta(hours=1)


def told(found: Timeline) -> list[tuple[str, str, str]]:
    return [(f"{one.at:%H:%M:%S}", one.source, one.what) for one in found.events]


def test_the_timeline_of_a_gpu_has_every_source_in_one_order(month: Path) -> None:
    found = timeline(month, made.BAD, made.FIRST, HOUR)
    assert (found.target.kind, found.target.hosts, found.target.pci) == (
        "gpu", ("c01",), "0000:1b:00",
    )  # fmt: skip
    events = [one for one in told(found) if one[2] != "ecc volatile corrected"]
    assert events == [
        ("10:05:00", "kernel", "xid 48"),
        ("10:05:00", "gpu", "ecc aggregate uncorrected"),
        ("10:05:00", "gpu", "ecc volatile uncorrected"),
        ("10:05:00", "kernel", "xid 63"),
        ("10:05:00", "kernel", "xid 94"),
        ("10:05:01", "suspicion", "accuses gpu-memory"),
        ("10:05:01", "verdict", "suspected gpu-memory"),
        ("10:05:02", "verdict", "localized gpu-memory"),
        ("10:05:03", "command", "isolate drain"),
        ("10:05:03", "state", "out of service"),
        ("10:05:05", "ack", "done"),
        ("10:05:30", "context", "allocation ended"),
        ("10:06:00", "gpu", "remap pending"),
        ("10:15:00", "fabric", "symbol_error"),
        ("10:25:00", "gpu", "lost"),
    ]


def test_samples_that_stay_the_same_are_no_events(month: Path) -> None:
    other = made.uuid("c01", 1)
    found = timeline(month, other, made.FIRST, HOUR)
    assert [one for one in found.events if one.source == "gpu"] == []
    assert [one for one in found.events if one.what.startswith("xid")] == []  # of the other card
    assert [(one.gpu, one.coverage) for one in found.series] == [(other, 1.0)]


def test_missing_samples_are_told_as_gaps(month: Path) -> None:
    found = timeline(month, made.BAD, made.FIRST, HOUR)
    # Not sampled from minute 12 to 20, and lost from then on: no answer since minute 11.
    since, until = made.FIRST + timedelta(minutes=11), made.FIRST + timedelta(minutes=30)
    assert [(one.gpu, one.since, one.until) for one in found.gaps] == [(made.BAD, since, until)]
    assert found.series[0].coverage == pytest.approx(1 - 19 / 60)


def test_what_lasted_is_cut_to_the_window(month: Path) -> None:
    found = timeline(month, made.BAD, made.FIRST, HOUR)
    end = made.FIRST + timedelta(minutes=30)
    second = timedelta(seconds=1)
    assert [(one.kind, one.what, one.since, one.until) for one in found.spans] == [
        ("context", "allocation train-7", made.FIRST - 30 * 60 * second, made.FIRST + 30 * second),
        ("out of service", "drain for gpu-memory", made.FIRST + 3 * second, end),
        ("verdict", "suspected gpu-memory", made.FIRST + second, made.FIRST + 2 * second),
        ("verdict", "localized gpu-memory", made.FIRST + 2 * second, end),
    ]


NAMES = {
    "gpu:c01/0000:1b:00": ("gpu", ("c01",)),
    "c01/0": ("gpu", ("c01",)),
    "165212300001": ("gpu", ("c01",)),
    "c01": ("host", ("c01",)),
    "node:c01": ("host", ("c01",)),
    "r1": ("rack", ("c01", "c02")),
    "rack:r1": ("rack", ("c01", "c02")),
    "train-7": ("job", ("c01", "c02")),
    "job:train-7": ("job", ("c01", "c02")),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_part_has_several_names(name: str, month: Path) -> None:
    found = timeline(month, name, made.FIRST, HOUR)
    assert (found.target.kind, found.target.hosts) == NAMES[name]
    assert ("10:05:00", "kernel", "xid 48") in told(found)
    assert (("10:05:02", "nccl", "timeout") in told(found)) == (
        found.target.kind in ("job", "rack")
    )


def test_a_card_is_found_where_it_stood_then(month: Path) -> None:
    later = timeline(month, made.BAD, datetime(2026, 3, 20, 16, tzinfo=UTC), HOUR)
    assert later.target.hosts == ("c03",)
    assert ("16:00:00", "kernel", "xid 95") in told(later)


def test_a_name_that_nothing_is_known_by_is_one_sentence(month: Path) -> None:
    with pytest.raises(WarehouseError, match="nothing is stored of a GPU, host, job or rack 'c99'"):
        timeline(month, "c99", made.FIRST, HOUR)
    with pytest.raises(WarehouseError, match="of the gpu 'c01'"):
        timeline(month, "gpu:c01", made.FIRST, HOUR)


def test_a_timeline_as_it_was_known_then_has_nothing_later(month: Path) -> None:
    then = made.FIRST + timedelta(seconds=2, milliseconds=500)
    found = timeline(month, made.BAD, made.FIRST, HOUR, at=then)
    assert max(one.at for one in found.events) <= then
    assert ("10:05:02", "verdict", "localized gpu-memory") in told(found)


def test_the_same_timeline_is_the_same_picture(month: Path, tmp_path: Path) -> None:
    plot = pytest.importorskip("warehouse.timeline_plot")
    found = timeline(month, made.BAD, made.FIRST, HOUR)
    one, two = tmp_path / "one.svg", tmp_path / "two.svg"
    plot.draw(found, one)
    plot.draw(found, two)
    assert one.read_bytes() == two.read_bytes()
    texts = " ".join("".join(part.itertext()) for part in ET.parse(one).getroot().iter())
    for word in ("xid 48", "localized gpu-memory", "isolate drain", "temperature", "no samples"):
        assert word in texts


def test_a_picture_is_whole_or_not_there(month: Path, tmp_path: Path) -> None:
    plot = pytest.importorskip("warehouse.timeline_plot")
    found = timeline(month, "rack:r1", made.FIRST, HOUR)
    plot.draw(found, tmp_path / "rack.png")
    assert (tmp_path / "rack.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(OSError, match="nowhere"):
        plot.draw(found, tmp_path / "nowhere" / "rack.png")
    assert [one.name for one in tmp_path.glob("*rack*")] == ["rack.png"]


def test_the_page_needs_nothing_else_and_shows_text_as_it_is(month: Path, tmp_path: Path) -> None:
    plot = pytest.importorskip("warehouse.timeline_plot")
    found = timeline(month, "job:train-7", made.FIRST, HOUR)
    event = found.events[0]
    from msgspec.structs import replace  # noqa: PLC0415

    found = replace(found, events=(replace(event, text="<script>alert(1)</script>"),))
    plot.draw(found, tmp_path / "job.html")
    page = (tmp_path / "job.html").read_text()
    assert "<svg" in page
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert re.findall(r'(?:src|href)="(?!#)[^"]*"', page) == []


def test_a_sensor_that_tells_nonsense_spoils_no_picture(month: Path, tmp_path: Path) -> None:
    plot = pytest.importorskip("warehouse.timeline_plot")
    from msgspec.structs import replace  # noqa: PLC0415

    found = timeline(month, made.BAD, made.FIRST, HOUR)
    (one,) = found.series
    odd = (1e308, -1e308, float("inf"), float("nan"))
    values = {name: (odd * len(one.at))[: len(one.at)] for name in one.values}
    plot.draw(replace(found, series=(replace(one, values=values),)), tmp_path / "odd.png")
    assert (tmp_path / "odd.png").read_bytes().startswith(b"\x89PNG")
