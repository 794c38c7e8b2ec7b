from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from evidence.decisions import AckStatus, Command
from schedulers.adapter import Outcome, SchedulerError
from schedulers.journal import Entry, Journal

Build = Callable[..., Command]
BEGUN = datetime(2026, 11, 3, 2, 14, 9, 120_000, tzinfo=UTC)
FINISHED = datetime(2026, 11, 3, 2, 14, 11, tzinfo=UTC)


def test_what_was_finished_is_remembered_over_a_restart(tmp_path: Path, command: Build) -> None:
    with Journal(tmp_path, "exec") as journal:
        journal.begin(command(), 1, BEGUN)
        journal.begin(command(), 2, FINISHED)
        journal.finish("c1", Outcome(AckStatus.FAILED, "exit code 3", 3), FINISHED, 1880)
    with Journal(tmp_path, "exec") as journal:
        assert journal.find("c1") == Entry(
            id="c1",
            attempt=2,
            begun_at=BEGUN,
            finished_at=FINISHED,
            status=AckStatus.FAILED,
            detail="exit code 3",
            exit_code=3,
            took_ms=1880,
        )


def test_what_was_begun_and_not_finished_says_so(tmp_path: Path, command: Build) -> None:
    with Journal(tmp_path, "exec") as journal:
        journal.begin(command(), 1, BEGUN)
    with Journal(tmp_path, "exec") as journal:
        assert journal.find("c1") == Entry(id="c1", attempt=1, begun_at=BEGUN)
        assert journal.find("c2") is None


def test_two_processes_do_not_share_a_journal(tmp_path: Path) -> None:
    with (
        Journal(tmp_path, "exec"),
        pytest.raises(SchedulerError, match="Another scheduler 'exec' runs with the state folder"),
    ):
        Journal(tmp_path, "exec")
    Journal(tmp_path, "exec").close()


def test_schedulers_of_two_names_share_a_folder(tmp_path: Path, command: Build) -> None:
    with Journal(tmp_path, "exec") as one, Journal(tmp_path, "slurm") as other:
        one.begin(command(), 1, BEGUN)
        assert other.find("c1") is None


def test_a_folder_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SchedulerError, match=r"The state folder .* cannot be used"):
        Journal(tmp_path / "file", "exec")


def test_a_journal_that_is_no_database_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "exec.sqlite").write_bytes(b"not a database, but long enough to be read as one" * 9)
    with pytest.raises(SchedulerError, match=r"The journal .*exec.sqlite cannot be used"):
        Journal(tmp_path, "exec")
