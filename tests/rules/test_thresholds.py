"""thresholds.toml: the shipped values, overrides, and one clear sentence for a mistake."""

from dataclasses import replace
from pathlib import Path

import pytest

from rules import tables, thresholds
from rules.thresholds import ThresholdsError


def test_the_shipped_thresholds_are_the_projects_defaults() -> None:
    shipped = thresholds.load()
    assert shipped.ecc_uncorrectable_growth == 100
    assert (shipped.temperature_c, shipped.temperature_for_s) == (85.0, 600.0)
    assert shipped.settle_s == 2.0


def test_an_operators_file_overrides_only_what_it_names(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(
        'temperature_c = { value = 80, reason = "warm-water loop", source = "change 4711" }\n'
    )
    loaded = tables.load(thresholds=own).thresholds
    assert loaded.grounds["temperature_c"].reason == "warm-water loop"
    shipped = thresholds.load()
    assert loaded == replace(shipped, temperature_c=80.0, grounds=loaded.grounds)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("\n[settle]\nvalue = 1\n", "line 2: settle: no such threshold"),
        ("settle_s = 3\n", "line 1: settle_s: an entry is a table with value, reason and source"),
        ('[settle_s]\nvalue = 3\nreason = "r"\n', "line 1: settle_s: source is missing"),
        (
            '# ours\n[settle_s]\nvalue = "3"\nreason = "r"\nsource = "s"\n',
            "line 3: settle_s.value: must be a number, but is '3'",
        ),
        (
            '[settle_s]\nvalue = -1\nreason = "r"\nsource = "s"\n',
            "line 2: settle_s.value: must be a number above zero, but is -1",
        ),
        (
            '[boots_in_a_day]\nvalue = 2.5\nreason = "r"\nsource = "s"\n',
            "line 2: boots_in_a_day.value: must be a whole number, but is 2.5",
        ),
        (
            '[settle_s]\nvalue = nan\nreason = "r"\nsource = "s"\n',
            "line 2: settle_s.value: must be a number above zero, but is nan",
        ),
        (
            '[settle_s]\nvalue = 1\nreason = " "\nsource = "s"\n',
            "line 3: settle_s.reason: must be a sentence",
        ),
        (
            '[settle_s]\nvalue = 1\nreason = "r"\nsource = "s"\nunit = "s"\n',
            "line 5: settle_s.unit: an entry has only value, reason and source",
        ),
        (
            'settle_s.value = 0\nsettle_s.reason = "r"\nsettle_s.source = "s"\n',
            "line 1: settle_s.value: must be a number above zero, but is 0",
        ),
        (
            '[temperature_margin_c]\nvalue = inf\nreason = "r"\nsource = "s"\n',
            "line 2: temperature_margin_c.value: must be a number, but is inf",
        ),
        (
            "\n[settle_s]\nvalue = 1\n[settle_s]\n",
            "line 4: is not TOML: Cannot declare ('settle_s',) twice",
        ),
        ("settle_s.why.value = 1\n", "line 1: settle_s.why: no such threshold"),
    ],
)
def test_a_mistake_is_told_with_file_line_and_key(tmp_path: Path, text: str, sentence: str) -> None:
    own = tmp_path / "own.toml"
    own.write_text(text)
    with pytest.raises(ThresholdsError) as caught:
        thresholds.load(own)
    assert str(caught.value) == f"{own}, {sentence}"


def test_what_is_no_file_of_ours_is_told_without_a_traceback(tmp_path: Path) -> None:
    with pytest.raises(ThresholdsError, match="cannot be read: No such file"):
        thresholds.load(tmp_path / "none.toml")
    (tmp_path / "half.toml").write_text("[settle_s\n")
    with pytest.raises(ThresholdsError, match="is not TOML"):
        thresholds.load(tmp_path / "half.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ThresholdsError, match="is not UTF-8"):
        thresholds.load(tmp_path / "bytes.toml")
