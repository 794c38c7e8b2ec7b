import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What `make setup` reads, in a folder without an environment."""
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def _make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_missing_python_is_one_sentence(checkout: Path) -> None:
    done = _make(checkout, "setup", "PYTHON=python3.nowhere")
    assert done.returncode == 2
    first = done.stderr.splitlines()[0]
    assert first == "Ringfence needs Python 3.11 or newer; there is no python3.nowhere."
    assert not (checkout / ".venv").exists()


def test_a_python_that_is_too_old_is_one_sentence(checkout: Path) -> None:
    old = checkout / "old-python"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2 || exit 1\n')
    old.chmod(0o755)
    done = _make(checkout, "setup", f"PYTHON={old}")
    assert done.returncode == 2
    assert done.stderr.startswith(f"Ringfence needs Python 3.11 or newer; {old} is Python 3.9.2.")


def test_help_names_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    targets = set(phony[1].split())
    shown = set(re.findall(r"^  make (\S+)", _make(ROOT, "help").stdout, re.MULTILINE))
    assert shown == targets


def test_the_lock_pins_every_package_with_hashes_and_names_no_index() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    assert "--index-url" not in lock
    assert "://" not in lock
    entries = [line for line in lock.splitlines() if re.match(r"[A-Za-z0-9]", line)]
    assert [line for line in entries if not re.match(r"[\w.-]+==\S+ .*\\$", line)] == []
    assert lock.count("--hash=sha256:") > len(entries)


def test_the_lock_holds_every_dependency_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
    ]
    locked = set(
        re.findall(r"^([\w.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    )
    names = {re.match(r"[\w.-]+", one)[0] for one in wanted}  # type: ignore[index]
    assert names - locked == set()


def test_ci_requires_what_a_user_may_leave_out() -> None:
    run = (ROOT / ".ci/run").read_text()
    assert run.startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in run
    assert "RINGFENCE_REQUIRE_KAFKA=1" in run
    assert run.index("make lint") < run.index("make test")
