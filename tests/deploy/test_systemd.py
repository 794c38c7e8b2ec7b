"""The systemd units: systemd takes them, and they name what is there."""

import configparser
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from collectors.doctor import held_capabilities
from ringfence.cli import main

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        missing = f"no {name} here (Debian package systemd)"
        if os.environ.get("RINGFENCE_REQUIRE_PARTS"):
            pytest.fail(missing)
        pytest.skip(missing)
    return found


def settings(unit: Path) -> dict[str, list[str]]:
    """A unit's [Service] settings; one may stand several times."""
    found: dict[str, list[str]] = {}
    text = unit.read_text().partition("[Service]")[2].partition("[Install]")[0]
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_finds_no_fault_with_the_unit(unit: Path) -> None:
    done = subprocess.run(
        [tool("systemd-analyze"), "verify", str(unit)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_unit_is_confined_and_comes_back(unit: Path) -> None:
    found = settings(unit)
    assert found["User"] == ["ringfence"]
    for name in ("NoNewPrivileges", "LockPersonality", "RestrictSUIDSGID"):
        assert found[name] == ["yes"], name
    assert found["ProtectSystem"] == ["strict"]
    assert found["Restart"] == ["always"]
    assert found["DevicePolicy"] == ["closed"]
    assert found["StateDirectory"] == ["ringfence"]


def test_the_agent_gets_the_one_capability_that_a_collector_needs(tmp_path: Path) -> None:
    found = settings(FOLDER / "ringfence-agent.service")
    assert found["AmbientCapabilities"] == found["CapabilityBoundingSet"] == ["CAP_SYSLOG"]
    status = tmp_path / "status"
    status.write_text(f"CapEff:\t{1 << 34:016x}\n")
    assert held_capabilities(status) == set(found["AmbientCapabilities"])
    assert found["MemoryMax"] == ["200M"]
    # READY=1 and WATCHDOG=1 are said by collectors/notify.py.
    assert found["Type"] == ["notify"]
    assert found["WatchdogSec"] == ["60"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_unit_starts_a_command_there_is(unit: Path) -> None:
    (line,) = settings(unit)["ExecStart"]
    words = line.split()
    command = words[-1]
    assert words[:2] == ["/usr/bin/env", "ringfence"]
    if command not in main.commands:
        pytest.skip(f"the {command} subcommand is not part of this build")
    context = main.make_context("ringfence", [*words[2:-1], command], resilient_parsing=True)
    assert str(context.params["data"]) == "/var/lib/ringfence"


def test_the_user_and_the_groups_are_made_by_sysusers(tmp_path: Path) -> None:
    text = (FOLDER / "ringfence.sysusers.conf").read_text()
    made = {line.split()[1] for line in text.splitlines() if line and not line.startswith("#")}
    named = {settings(unit)[key][0] for unit in UNITS for key in ("User", "Group")}
    groups = {
        one
        for unit in UNITS
        for line in settings(unit)["SupplementaryGroups"]
        for one in line.split()
    }
    assert named <= made
    # These two systemd itself brings.
    assert groups - made <= {"systemd-journal", "adm"}
    rule = (FOLDER / "90-ringfence-umad.rules").read_text()
    assert 'GROUP="ringfence-umad"' in rule
    (tmp_path / "etc").mkdir()
    done = subprocess.run(
        [tool("systemd-sysusers"), f"--root={tmp_path}", str(FOLDER / "ringfence.sysusers.conf")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    passwd = (tmp_path / "etc" / "passwd").read_text()
    assert "ringfence:" in passwd
    assert "nologin" in passwd


def test_no_unit_sets_a_thing_twice_that_systemd_takes_once() -> None:
    # configparser refuses a repeated key; only lists may repeat.
    for unit in UNITS:
        text = unit.read_text()
        once = "\n".join(line for line in text.splitlines() if not line.startswith("DeviceAllow"))
        reader = configparser.ConfigParser(interpolation=None)
        reader.optionxform = str  # type: ignore[assignment, method-assign]
        repeated = [line for line in once.splitlines() if line.startswith("Environment")]
        reader.read_string("\n".join(one for one in once.splitlines() if one not in repeated))
        assert reader["Install"]["WantedBy"] == "multi-user.target"
