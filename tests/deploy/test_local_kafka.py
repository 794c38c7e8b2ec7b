import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ringfence.embedded import broker_answers, free_port

SCRIPT = Path(__file__).parents[2] / "deploy/kafka/local_kafka.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("deploy_local_kafka", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH, with a Java 17 that only tells its version."""
    folder = tmp_path / "tools"
    folder.mkdir()
    _program(folder, "java", "echo 'openjdk version \"17.0.9\" 2023-10-17' >&2")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return folder


def test_a_missing_java_is_said(script: ModuleType, tools: Path, tmp_path: Path) -> None:
    (tools / "java").unlink()
    with pytest.raises(script.KafkaUnavailable, match="Java is missing"):
        script.class_path(tmp_path / "cache")


def test_a_java_that_is_too_old_is_said(script: ModuleType, tools: Path, tmp_path: Path) -> None:
    _program(tools, "java", "echo 'openjdk version \"11.0.24\" 2024-07-16' >&2")
    with pytest.raises(script.KafkaUnavailable, match=r"needs Java 17 or newer.*11\.0\.24"):
        script.class_path(tmp_path / "cache")


def test_java_home_wins_over_the_path(
    script: ModuleType, tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jdk/bin").mkdir(parents=True)
    shutil.copy(tools / "java", tmp_path / "jdk/bin/java")
    _program(tools, "java", "echo 'openjdk version \"1.8.0_392\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert script.java() == str(tmp_path / "jdk/bin/java")


@pytest.mark.usefixtures("tools")
def test_a_missing_maven_is_said(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(script.KafkaUnavailable, match=r"Maven \(mvn\) is missing"):
        script.class_path(tmp_path / "cache")


def test_what_maven_complains_about_is_said_and_nothing_is_kept(
    script: ModuleType, tools: Path, tmp_path: Path
) -> None:
    _program(tools, "mvn", "echo '[ERROR] Could not transfer artifact: unknown host'; exit 1")
    with pytest.raises(script.KafkaUnavailable, match=r"could not fetch .*unknown host"):
        script.class_path(tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".kafka.lock"]


def test_a_maven_that_succeeds_without_jars_is_not_believed(
    script: ModuleType, tools: Path, tmp_path: Path
) -> None:
    _program(tools, "mvn", "exit 0")
    with pytest.raises(script.KafkaUnavailable, match="could not fetch"):
        script.class_path(tmp_path / "cache")


def test_what_was_fetched_once_needs_no_maven(
    script: ModuleType, tools: Path, tmp_path: Path
) -> None:
    put = 'for a in "$@"; do case $a in -DoutputDirectory=*) d=${a#*=};; esac; done\n'
    jar = f"kafka_2.13-{script.version()}.jar"
    _program(tools, "mvn", f"{put}/bin/mkdir -p $d; : > $d/{jar}")
    folder = script.class_path(tmp_path / "cache")
    (tools / "mvn").unlink()
    assert script.class_path(tmp_path / "cache") == folder
    assert (folder / jar).exists()


@pytest.mark.usefixtures("tools")
def test_the_script_says_what_is_missing_and_exits_2(
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RINGFENCE_CACHE", str(tmp_path / "cache"))
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert script.main(["--fetch"]) == 2
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err == "Maven (mvn) is missing: it fetches Apache Kafka.\n"


@pytest.mark.kafka
def test_the_script_runs_a_broker_until_it_is_told_to_stop(
    script: ModuleType, tmp_path: Path
) -> None:
    try:
        script.class_path()
    except script.KafkaUnavailable as missing:
        if os.environ.get("RINGFENCE_REQUIRE_KAFKA"):
            raise
        pytest.skip(f"Apache Kafka left out: {missing}")
    port = free_port(None)
    running = subprocess.Popen(
        [sys.executable, str(SCRIPT), f"--port={port}", f"--data={tmp_path / 'data'}"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        assert running.stdout is not None
        said = running.stdout.readline()
        assert f"serves 127.0.0.1:{port}" in said
        assert broker_answers("127.0.0.1", port)
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 128 + signal.SIGTERM
        assert not broker_answers("127.0.0.1", port)
    finally:
        running.kill()
        running.communicate()
