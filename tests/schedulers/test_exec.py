import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from evidence.decisions import AckStatus, Command
from schedulers.adapter import Outcome
from schedulers.exec import ExecAdapter


def _sh(script: str, timeout_s: float = 30.0) -> ExecAdapter:
    return ExecAdapter(["/bin/sh", "-c", script], timeout_s=timeout_s)


def test_the_program_gets_the_command_as_json_on_stdin(
    command: Callable[..., Command], tmp_path: Path
) -> None:
    given = command()
    outcome = _sh(f"cat > {tmp_path}/seen").apply(given)
    assert outcome == Outcome(AckStatus.DONE, "", 0)
    assert msgspec.json.decode((tmp_path / "seen").read_bytes(), type=Command) == given


def test_exit_0_is_done_with_what_the_program_said(command: Callable[..., Command]) -> None:
    assert _sh("echo node is draining").apply(command()) == Outcome(
        AckStatus.DONE, "node is draining", 0
    )


def test_another_exit_code_is_failed_with_the_end_of_stderr(
    command: Callable[..., Command],
) -> None:
    outcome = _sh("echo out; echo 'no such node: n9' >&2; exit 7").apply(command())
    assert outcome == Outcome(AckStatus.FAILED, "exit code 7: no such node: n9", 7)


def test_only_the_end_of_a_long_complaint_is_kept(command: Callable[..., Command]) -> None:
    outcome = _sh("yes noise | head -c 600000 >&2; echo the end >&2; exit 1").apply(command())
    assert outcome.detail.startswith("exit code 1: ")
    assert outcome.detail.endswith("noise the end")
    assert len(outcome.detail) == len("exit code 1: ") + 500


def test_output_that_is_not_utf8_is_still_a_sentence(command: Callable[..., Command]) -> None:
    outcome = _sh(r"printf 'bad \377\376 bytes' >&2; exit 1").apply(command())
    assert outcome == Outcome(AckStatus.FAILED, "exit code 1: bad \ufffd\ufffd bytes", 1)


def test_a_missing_program_is_failed_and_not_worth_a_second_try(
    command: Callable[..., Command],
) -> None:
    assert ExecAdapter(["/nowhere/drain"]).apply(command()) == Outcome(
        AckStatus.FAILED, "/nowhere/drain cannot be run: No such file or directory", retry=False
    )


def test_a_program_without_the_execute_bit_is_named(
    command: Callable[..., Command], tmp_path: Path
) -> None:
    (tmp_path / "drain").write_text("#!/bin/sh\n")
    outcome = ExecAdapter([str(tmp_path / "drain")]).apply(command())
    assert outcome.status is AckStatus.FAILED
    assert outcome.detail == f"{tmp_path}/drain cannot be run: Permission denied"


def test_a_program_that_hangs_is_killed_with_its_children(
    command: Callable[..., Command], tmp_path: Path
) -> None:
    outcome = _sh(
        f"sleep 600 & echo $! > {tmp_path}/child; echo waiting >&2; wait", timeout_s=0.5
    ).apply(command())
    assert outcome == Outcome(AckStatus.FAILED, "no answer within 0.5 s: waiting")
    _assert_gone(int((tmp_path / "child").read_text()))


def test_a_program_ended_by_a_signal_says_which(command: Callable[..., Command]) -> None:
    assert _sh("kill -TERM $$").apply(command()) == Outcome(
        AckStatus.FAILED, "ended by SIGTERM", -15
    )


def test_a_child_that_the_program_leaves_behind_does_not_hold_the_answer(
    command: Callable[..., Command], tmp_path: Path
) -> None:
    outcome = _sh(f"sleep 600 & echo $! > {tmp_path}/child; echo left", timeout_s=20).apply(
        command()
    )
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    assert outcome == Outcome(AckStatus.DONE, "left", 0)


def test_the_environment_is_bare_but_for_the_command_id(
    command: Callable[..., Command], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGFENCE_KAFKA_SASL_PASSWORD", "secret")
    ExecAdapter(["/usr/bin/env", "sh", "-c", f"env > {tmp_path}/env"]).apply(command(id="c77"))
    names = {
        line.partition("=")[0]: line.partition("=")[2]
        for line in (tmp_path / "env").read_text().splitlines()
    }
    assert names["RINGFENCE_COMMAND_ID"] == "c77"
    assert set(names) <= {"PATH", "HOME", "LANG", "RINGFENCE_COMMAND_ID", "PWD", "_", "SHLVL"}


def test_no_program_at_all_is_misuse() -> None:
    with pytest.raises(ValueError, match="exec needs a program"):
        ExecAdapter([])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills children with their parent")
def test_the_program_ends_when_the_scheduler_is_killed(tmp_path: Path) -> None:
    program = (
        "from datetime import UTC, datetime\n"
        "from evidence.decisions import Action, Cause, Command, Domain, DomainKind, Level\n"
        "from schedulers.exec import ExecAdapter\n"
        "d = Domain(kind=DomainKind.NODE, host='n1')\n"
        "c = Command(id='c', action=Action.ISOLATE, domain=d, domain_id=d.id, level=Level.CORDON,"
        " cause=Cause.NODE, reason='', incident='i', generation=1, issued_at=datetime.now(UTC))\n"
        f"ExecAdapter(['/bin/sh', '-c', 'echo $$ > {tmp_path}/pid; exec sleep 600']).apply(c)\n"
    )
    scheduler = subprocess.Popen([sys.executable, "-c", program])
    try:
        deadline = time.monotonic() + 20
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        scheduler.kill()
        scheduler.wait()
    _assert_gone(int((tmp_path / "pid").read_text()))


def _assert_gone(pid: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state == "Z":
            return
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.02)
