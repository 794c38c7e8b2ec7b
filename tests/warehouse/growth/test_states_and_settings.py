"""States that need no statistics, and settings that are refused in one sentence."""

from pathlib import Path

import pytest

from warehouse.errors import WarehouseError
from warehouse.growth.settings import load
from warehouse.growth.states import states

HARD = [
    ({"remap_failure": True}, "remap-failure"),
    ({"sram_threshold_exceeded": True}, "sram-threshold"),
    ({"unrepairable_memory": True}, "unrepairable"),
    ({"status": "lost"}, "lost"),
    ({"retired_pages": 63}, "retired-pages"),
]
SOFT = [
    ({"remap_pending": True}, "remap-pending"),
    ({"channel_repair_pending": True}, "channel-repair-pending"),
    ({"remap_banks": {"max": 2558, "none": 1}}, "banks-none"),
    ({"remap_banks": {"max": 2558, "low": 1, "none": 0}}, "banks-low"),
]
NOTHING = [
    {},
    {"remap_failure": False, "sram_threshold_exceeded": None, "retired_pages": 62, "status": "ok"},
    # no vendor publishes a number of remapped rows
    {"remapped_uncorrectable": 40, "remap_banks": {"max": 600, "high": 30, "partial": 10}},
]


@pytest.mark.parametrize(("seen", "kind"), HARD)
def test_what_a_vendor_replaces_for_is_hard(seen: dict[str, object], kind: str) -> None:
    assert [(one.kind, one.hard) for one in states(seen)] == [(kind, True)]


@pytest.mark.parametrize(("seen", "kind"), SOFT)
def test_what_waits_or_warns_is_told_and_is_not_hard(seen: dict[str, object], kind: str) -> None:
    assert [(one.kind, one.hard) for one in states(seen)] == [(kind, False)]


@pytest.mark.parametrize("seen", NOTHING)
def test_the_rest_is_silent(seen: dict[str, object]) -> None:
    assert states(seen) == ()


def test_every_setting_has_its_ground() -> None:
    settings = load()
    assert all(one.reason and one.source for one in settings.grounds.values())
    assert len(settings.grounds) == len(settings.__slots__) - 1


def test_every_setting_stands_in_the_docs_with_its_default() -> None:
    text = (Path(__file__).parents[3] / "docs" / "ecc-growth.md").read_text()
    settings = load()
    missing = [
        name
        for name in settings.grounds
        if f"| `{name}` | {getattr(settings, name):g} |" not in text
    ]
    assert missing == []


def test_a_file_changes_only_what_it_names(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[min_effect]\nvalue = 3\nreason = 'few spares'\nsource = 'change 12'\n")
    settings = load(path)
    assert (settings.min_effect, settings.recent_days) == (3.0, load().recent_days)
    assert settings.grounds["min_effect"].source == "change 12"


WRONG = [
    ("[min_efect]\nvalue = 3\nreason = 'a'\nsource = 'b'", "min_efect: no such setting"),
    ("[min_effect]\nvalue = 3", "an entry has value, reason and source"),
    ("min_effect = 3", "an entry has value, reason and source"),
    ("[min_effect]\nvalue = 0.5\nreason = 'a'\nsource = 'b'", "a factor of at least 1"),
    ("[min_episodes]\nvalue = 2.5\nreason = 'a'\nsource = 'b'", "a whole number above zero"),
    ("[min_coverage]\nvalue = 80\nreason = 'a'\nsource = 'b'", "above 0 and below 1"),
    ("[min_coverage]\nvalue = true\nreason = 'a'\nsource = 'b'", "above 0 and below 1"),
    ("[trend_p]\nvalue = nan\nreason = 'a'\nsource = 'b'", "above 0 and below 1"),
    ("[trend_p]\nvalue = 0.1\nreason = ''\nsource = 'b'", "reason: must be a sentence"),
    ("[recent_days]\nvalue = 50\nreason = 'a'\nsource = 'b'", "a multiple of bin_days"),
    ("[history_days]\nvalue = 60\nreason = 'a'\nsource = 'b'", "history_days must hold"),
    ("[[", "is not TOML"),
]


@pytest.mark.parametrize(("text", "said"), WRONG)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(WarehouseError, match=said) as caught:
        load(path)
    assert "\n" not in str(caught.value).strip()


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(WarehouseError, match="cannot be read: No such file"):
        load(tmp_path / "none.toml")
