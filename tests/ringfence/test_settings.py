from dataclasses import dataclass
from pathlib import Path

import pytest

from evidence.transport import Kafka
from ringfence.settings import SettingsError, load


@dataclass(frozen=True)
class Config:
    kafka: Kafka
    host: str
    interval_s: float = 1.0
    state_dir: Path = Path()
    kernel_files: tuple[Path, ...] = ()


def write(folder: Path, text: str) -> Path:
    file = folder / "ringfence.toml"
    file.write_text(text)
    return file


def test_flags_win_over_variables_and_variables_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, '[kafka]\nbootstrap = "a:1"\nprefix = "x."\npartitions = 3\n')
    environ = {"RINGFENCE_KAFKA_PREFIX": "y.", "RINGFENCE_KAFKA_PARTITIONS": "5", "OTHER": "z"}
    settings = load(file, None, environ, {"kafka": {"prefix": "z.", "bootstrap": None}})
    assert settings.kafka == Kafka(bootstrap="a:1", prefix="z.", partitions=5)


def test_a_section_becomes_the_parts_own_config(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        'data = "/srv/rf"\n[agent]\nhost = "n1"\nkernel_files = ["/a", "/b"]\nstate_dir = "/s"\n',
    )
    settings = load(file, None, {"RINGFENCE_AGENT_INTERVAL_S": "2.5"})
    assert settings.data == Path("/srv/rf")
    assert settings.build(Config, "agent", kafka=Kafka()) == Config(
        kafka=Kafka(),
        host="n1",
        interval_s=2.5,
        state_dir=Path("/s"),
        kernel_files=(Path("/a"), Path("/b")),
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[agent]\nhots = 'n1'\n", r"\[agent\] has no setting 'hots'; it has .*host"),
        ("[agent]\nhost = 3\n", r"\[agent\] Expected `str`, got `int` - at `\$.host`"),
        ("[agents]\n", r"unknown section \[agents\]"),
        ("host = [\n", r"ringfence.toml: "),
    ],
)
def test_a_wrong_setting_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        load(write(tmp_path, text), None, {}).build(Config, "agent", kafka=Kafka())


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no\.toml"):
        load(tmp_path / "no.toml", None, {})


def test_the_data_folder_follows_the_same_order_and_never_trips_over_itself(
    tmp_path: Path,
) -> None:
    file = write(tmp_path, 'data = "/from/file"\n')
    environ = {"RINGFENCE_DATA": "/from/variable"}
    assert load(file, None, {}).data == Path("/from/file")
    assert load(file, None, environ).data == Path("/from/variable")
    assert load(file, Path("/from/flag"), environ).data == Path("/from/flag")


def test_a_broker_without_a_port_is_one_sentence() -> None:
    with pytest.raises(SettingsError, match="'localhost' is not HOST:PORT"):
        _ = load(None, None, {}, {"kafka": {"bootstrap": "localhost"}}).kafka


def test_a_variable_of_a_section_of_two_words_finds_it() -> None:
    environ = {
        "RINGFENCE_FABRIC_AGENT_SUBNET": "ib-3",
        "RINGFENCE_FABRIC_AGENT_INTERVAL_S": "5",
        "RINGFENCE_AGENT_HOST": "n7",
        "RINGFENCE_AGENT_": "no name",
        "RINGFENCE_FABRIC_SUBNET": "no such section",
        "OTHER_RINGFENCE_AGENT_HOST": "not ours",
    }
    sections = load(None, None, environ).sections
    assert sections["fabric_agent"] == {"subnet": "ib-3", "interval_s": "5"}
    assert sections["agent"] == {"host": "n7"}
