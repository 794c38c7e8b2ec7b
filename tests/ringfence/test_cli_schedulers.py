import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ringfence.cli import main


def _ringfence(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_keys_are_made_in_the_data_folder_and_said_where(tmp_path: Path) -> None:
    result = _ringfence("--data", str(tmp_path), "keys", "new", "2026-11")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"{tmp_path}/keys/2026-11.key: for the worker alone (worker.signing_key)",
        f"{tmp_path}/keys/2026-11.pem: for every consumer "
        "(scheduler.verify_keys: this file, or its folder)",
    ]
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    again = _ringfence("--data", str(tmp_path), "keys", "new", "2026-11")
    assert again.exit_code == 2
    assert "a key is never overwritten" in again.stderr


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("max_isolations = -1", "max_isolations must be 0 or more"),
        ("window_s = 0", "window_s must be more than 0 seconds"),
        ("per_minute = 0", "per_minute must be at least 1"),
        ('at_most = "reboot"', "Invalid enum value 'reboot'"),
        ("observe_s = 0", "observe_s must be more than 0 seconds"),
        ('metrics_listen = "here"', "metrics_listen: 'here' is not HOST:PORT"),
    ],
)
def test_a_wrong_limit_starts_nothing(tmp_path: Path, setting: str, sentence: str) -> None:
    (tmp_path / "r.toml").write_text(f"[scheduler]\n{setting}\n")
    result = _ringfence("--config", str(tmp_path / "r.toml"), "scheduler", "exec", "/bin/true")
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stderr.startswith("Error: [scheduler]")
