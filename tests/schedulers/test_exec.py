import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from evidence.decisions import AckStatus, Command
from evidence.records import ContextKind
from schedulers.adapter import Outcome, SchedulerError, View
from schedulers.exec import ExecAdapter, ObservingExec


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
    assert set(names) <= {
        "PATH",
        "HOME",
        "LANG",
        "RINGFENCE_COMMAND_ID",
        "RINGFENCE_RUN",
        "PWD",
        "_",
        "SHLVL",
    }


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


def test_all_that_the_last_runs_wrote_is_kept(
    command: Callable[..., Command], tmp_path: Path
) -> None:
    adapter = ExecAdapter(
        [
            "/bin/sh",
            "-c",
            r"printf 'out of '; echo $RINGFENCE_COMMAND_ID; printf '\377' >&2; exit 3",
        ],
        outputs=tmp_path / "output",
        keep=2,
    )
    for ident in ("c1", "c2", "c3"):
        adapter.apply(command(id=ident))
    kept = [path.read_bytes() for path in sorted((tmp_path / "output").iterdir())]
    assert [text.split(b",")[0] for text in kept] == [b"command c2", b"command c3"]
    assert kept[1].partition(b"\n")[2] == b"\n--- stdout\nout of c3\n\n--- stderr\n\xff"
    assert (tmp_path / "output").stat().st_mode & 0o077 == 0


def test_an_output_folder_that_cannot_be_written_changes_no_answer(
    command: Callable[..., Command], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    adapter = ExecAdapter(["/bin/true"], outputs=tmp_path / "file")
    assert adapter.apply(command()) == Outcome(AckStatus.DONE, "", 0)


def test_output_without_end_does_not_fill_the_disk(
    command: Callable[..., Command], tmp_path: Path
) -> None:
    adapter = ExecAdapter(
        ["/bin/sh", "-c", "head -c 90000000 /dev/zero; sleep 0.5; echo the end; exit 2"],
        timeout_s=30,
        outputs=tmp_path / "output",
    )
    outcome = adapter.apply(command())
    assert outcome.exit_code == 2
    assert outcome.detail.endswith("the end")
    (kept,) = (tmp_path / "output").iterdir()
    assert kept.stat().st_size < 33 * 1024 * 1024
    assert b"stdout (its beginning was left out)" in kept.read_bytes()


def test_a_daemon_that_the_program_became_is_killed_when_the_time_is_up(
    command: Callable[..., Command], tmp_path: Path
) -> None:
    outcome = _sh(
        f"setsid sh -c 'echo $$ > {tmp_path}/daemon; exec sleep 600' & sleep 600", timeout_s=1.0
    ).apply(command())
    assert outcome.detail == "no answer within 1 s"
    _assert_gone(int((tmp_path / "daemon").read_text()))


def _look(script: str, timeout_s: float = 10.0) -> View:
    inner = ExecAdapter(["/bin/true"])
    return ObservingExec(inner, ["/bin/sh", "-c", script], timeout_s=timeout_s).observe()


def test_a_program_tells_what_stands_out_of_service_and_what_is_planned(tmp_path: Path) -> None:
    (tmp_path / "said").write_text(
        """{"standing": [{"domain": {"kind": "node", "host": "hpc-n041"}, "command": "c1"},
        {"domain": {"kind": "node", "host": "hpc-n007"}, "by": "kim", "reason": "DIMM",
         "since": "2026-11-03T02:14:09Z", "newer": 1}],
        "context": [{"host": "hpc-n007", "kind": "maintenance", "at": "2026-11-03T02:00:00Z"}]}"""
    )
    first, second = (_look(f"cat {tmp_path}/said") for _ in range(2))
    ours, theirs = first.standing
    assert (ours.domain.id, ours.command) == ("node:hpc-n041", "c1")
    since = datetime(2026, 11, 3, 2, 14, 9, tzinfo=UTC)
    assert (theirs.command, theirs.by, theirs.reason, theirs.since) == (None, "kim", "DIMM", since)
    assert first.context[0].kind is ContextKind.MAINTENANCE
    assert first.context[0].id == second.context[0].id


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("echo no cluster >&2; exit 3", "/bin/sh: exit code 3: no cluster"),
        ("echo '{'", "/bin/sh printed something else"),
        ("""echo '{"standing": [{"domain": {"kind": "card"}}]}'""", "Invalid enum value 'card'"),
        (r"printf '\377\376'", "/bin/sh printed something else"),
        ("sleep 60", "/bin/sh gave no answer within 0.5 s"),
    ],
)
def test_a_look_that_fails_is_one_sentence(script: str, sentence: str) -> None:
    with pytest.raises(SchedulerError, match=re.escape(sentence)):
        _look(script, timeout_s=0.5 if "sleep" in script else 10.0)


def test_a_child_that_a_look_leaves_behind_holds_up_nobody() -> None:
    began = time.monotonic()
    assert _look("sleep 20 & echo '{}'", timeout_s=15).standing == ()
    assert time.monotonic() - began < 15
