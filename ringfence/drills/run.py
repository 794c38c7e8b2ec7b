"""Runs one drill: looks around, makes the fault, follows what comes, undoes it, records it."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from evidence.decisions import RequestAction
from evidence.identity import digest
from evidence.records import DrillOutcome, DrillRecord
from evidence.transport import Kafka
from ringfence import desk
from ringfence.drills.config import DrillConfig
from ringfence.drills.course import Course
from ringfence.drills.guard import Asked, place
from ringfence.drills.lines import Lines, filled, lines
from ringfence.drills.plan import DrillError, Expected, Plan
from ringfence.drills.reading import Reader
from ringfence.drills.scene import TOPICS_READ, Scene
from ringfence.drills.telling import complete, sentence
from ringfence.drills.undo import Undo, UndoFile, call, left_over
from ringfence.drills.watchers import FileWatcher, ProgramWatcher
from rules.policy import Policy
from rules.severity import mode_of

__all__ = ["Call", "run", "undo_left_over"]

#: How long a release may take, and how long an aborted drill waits for the command that may come.
_RELEASE_WITHIN_S = 60.0
_LINGER_S = 15.0
_POLL_MS = 50
_CLAIM_WITHIN_S = 10.0


class _Stopped(Exception):  # noqa: N818 (somebody's wish, no error)
    """Somebody stopped the drill."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the command: how Kafka is reached, what allows it, and who it is."""

    kafka: Kafka
    config: DrillConfig
    policy: Policy
    by: str
    stop: threading.Event
    say: Callable[[str], None]


def run(at: Call, plan: Plan, asked: Asked, *, dry_run: bool = False) -> DrillRecord:
    """Run a drill, or with ``dry_run`` only say what would be done; what killed ones left first.

    Raises DrillError where it may not be run, or where its end could not be recorded.
    """
    with Reader(at.kafka, *TOPICS_READ) as reader:
        scene = Scene()
        scene.take_all(reader.past())
        if not dry_run:
            _undo_all(at, reader, scene)
        now = datetime.now(UTC)
        host, pool = place(plan, at.config, scene, at.policy, asked, now)
        ident = digest("drill", plan.name, host, now.isoformat(), at.by)
        values = plan.values | {
            "host": host, "short": host.partition(".")[0], "pool": pool, "id": ident,
        }  # fmt: skip
        made = lines(plan, values)
        record = DrillRecord(
            id=ident,
            drill=plan.name,
            at=now,
            observed_at=now,
            host=host,
            pool=pool,
            by=at.by,
            mode=mode_of(at.policy, pool),
            outcome=DrillOutcome.RUNNING,
            objective_s=at.config.objective_s,
            expected=str(plan.expect),
        )
        if dry_run:
            at.say(f"would hit {host} of pool {pool}: {' '.join(plan.via)} {made.inject!r}")
            at.say(f"would undo it by: {made.undo or 'nothing'}")
            return record
        course = Course(host, plan, frozenset(scene.incidents))
        return _Run(at, plan, reader, course, record, values).whole(made)


def undo_left_over(at: Call) -> int:
    """Undo what killed drills left; how many there were."""
    with Reader(at.kafka, *TOPICS_READ) as reader:
        scene = Scene()
        scene.take_all(reader.past())
        return _undo_all(at, reader, scene)


def _undo_all(at: Call, reader: Reader, scene: Scene) -> int:
    count = 0
    for file in left_over(at.config.state_dir):
        record = file.undo.record
        at.say(f"the drill {record.drill} on {record.host} ({record.id}) was killed: undone now")
        file.make_undone()
        parts = {file.undo.release} if file.undo.release else set()
        parts |= {
            state.domain_id
            for state in scene.states.values()
            if state.isolated and state.domain.host == record.host and state.at >= record.at
        }
        for domain_id in sorted(parts):
            _ask_for_release(reader, domain_id, record)
        if record.outcome is DrillOutcome.RUNNING:
            words = "the drill was killed; the next one undid it"
            record = replace(
                record, observed_at=datetime.now(UTC), outcome=DrillOutcome.ABORTED,
                differed=(words,),
            )  # fmt: skip
        reader.tell(record)
        scene.take(record)
        file.forget()
        count += 1
    return count


def _ask_for_release(reader: Reader, domain_id: str, record: DrillRecord) -> None:
    try:
        request = desk.request(
            action=RequestAction.RELEASE,
            domain=domain_id,
            at=datetime.now(UTC),
            by=record.by,
            reason=f"the drill {record.drill} ({record.id}) is over",
        )
    except desk.DeskError as error:
        raise DrillError(f"{domain_id} has to be released by hand: {error}") from error
    reader.send("requests", request)


class _Run:
    """One drill under way."""

    def __init__(
        self,
        at: Call,
        plan: Plan,
        reader: Reader,
        course: Course,
        record: DrillRecord,
        values: dict[str, str],
    ) -> None:
        self._at = at
        self._plan = plan
        self._reader = reader
        self._course = course
        self._record = record
        self._values = values
        self._began = time.monotonic()
        self._told: set[str] = set()
        self._differed: list[str] = []

    def whole(self, made: Lines) -> DrillRecord:
        """Everything; the fault is undone however it goes."""
        undo = Undo(self._record, self._plan.via, made.undo)
        with UndoFile.write(self._at.config.state_dir, undo) as file:
            aborted = False
            try:
                self._claim()
                self._inject(made)
                self._follow(file)
            except (_Stopped, DrillError) as error:
                aborted = True
                self._differed.append(str(error))
                self._at.say(f"aborted: {error}")
            finally:
                # Whatever was raised: what was done is undone before it goes on.
                undone = self._undo(file)
            with contextlib.suppress(_Stopped):
                self._release(file, aborted=aborted)
            self._record = complete(self._record, self._course, self._differed, aborted=aborted)
            if undone:
                file.keep(self._record)
                self._reader.tell(self._record)
                file.forget()
            else:
                self._reader.tell(self._record)
        return self._record

    # --- Steps ----------------------------------------------------------------------------------

    def _claim(self) -> None:
        """Tell that the drill runs; of two that begin at once the first in the topic goes on."""
        self._reader.tell(self._record)
        deadline = time.monotonic() + _CLAIM_WITHIN_S
        while time.monotonic() < deadline:
            for _, record in self._reader.news(_POLL_MS):
                if not isinstance(record, DrillRecord) or record.outcome != "running":
                    continue
                if record.id == self._record.id:
                    return
                raise DrillError(f"another drill ({record.drill} on {record.host}) began first")
        raise DrillError("Kafka did not give back that the drill runs")

    def _inject(self, made: Lines) -> None:
        if self._at.stop.is_set():
            raise _Stopped("stopped before the fault was made")
        self._record = replace(self._record, injected_at=datetime.now(UTC))
        self._began = time.monotonic()
        self._say("injected", made.inject)
        call(self._plan.via, made.inject)

    def _follow(self, file: UndoFile) -> None:
        """Until all that must come has come, or the time is up."""
        course, recovery = self._course, self._plan.recovery
        wants_command = course.expect.command is not Expected.NONE
        out = self._program(recovery.out)
        training = self._training()
        deadline = self._began + self._plan.within_s
        try:
            for _ in self._rounds(deadline):
                if course.command is not None and file.undo.release is None:
                    file.isolated(course.command.domain_id)
                if course.is_over:
                    return
                acts = course.is_answered and not self._is_dry()
                if acts and out is not None and not course.has("out") and out.look():
                    self._see("out")
                if (acts or not wants_command) and training is not None and training.look():
                    self._see("training")
                if self._has_all(wants_out=out is not None, wants_training=training is not None):
                    return
        finally:
            for watcher in (out, training):
                if watcher is not None:
                    watcher.stop()

    def _has_all(self, *, wants_out: bool, wants_training: bool) -> bool:
        course = self._course
        if not course.has("verdict") or (wants_training and not course.has("training")):
            return False
        if course.expect.command is Expected.NONE:
            quiet_from = course.seen_s["verdict"]
            return self._now_s() - quiet_from >= course.expect.quiet_s
        return course.has("ack") and (course.has("out") or not wants_out or self._is_dry())

    def _undo(self, file: UndoFile) -> bool:
        try:
            file.make_undone()
        except DrillError as error:
            self._differed.append(f"not undone: {error}")
            self._at.say(f"NOT UNDONE: {error}")
            return False
        self._see("undone")
        return True

    def _release(self, file: UndoFile, *, aborted: bool) -> None:
        """Ask for the release of what the drill isolated, and see it back in service."""
        course, recovery = self._course, self._plan.recovery
        if aborted:
            self._linger(file)
        found = (course.command, *course.surplus.values())
        parts = [one for one in found if one is not None and not one.dry_run]
        if not parts or not recovery.release:
            return
        self._wait(recovery.settle_s)
        for command in parts:
            _ask_for_release(self._reader, command.domain_id, self._record)
        self._see("release-asked")
        if not aborted and course.command is not None and not course.is_over:
            self._await_return()

    def _linger(self, file: UndoFile) -> None:
        """Wait for the command of an aborted drill: it may come after the fault is undone."""
        course = self._course
        if self._record.injected_at is None or course.expect.command is Expected.NONE:
            return
        if course.command is None:
            self._at.say(f"waiting {_LINGER_S:g} s for a command that may still come")
        deadline = time.monotonic() + _LINGER_S
        while course.command is None and time.monotonic() < deadline:
            self._wait(_POLL_MS / 1000)
        if course.command is not None:
            file.isolated(course.command.domain_id)

    def _wait(self, for_s: float) -> None:
        """Go on reading, whatever was asked of us."""
        for _ in self._rounds(time.monotonic() + for_s, stoppable=False):
            pass

    def _await_return(self) -> None:
        course = self._course
        words = self._plan.recovery.out if course.has("out") else ()
        out = self._program(words)
        for _ in self._rounds(time.monotonic() + _RELEASE_WITHIN_S):
            if out is not None and course.has("released") and out.look() is False:
                self._see("in-service")
            if course.has("released") and (out is None or course.has("in-service")):
                break
        else:
            self._differed.append(f"not back in service within {_RELEASE_WITHIN_S:g} s")
        if out is not None:
            out.stop()

    # --- Looking --------------------------------------------------------------------------------

    def _rounds(self, deadline: float, *, stoppable: bool = True) -> Iterator[None]:
        """Read what came, and give a turn, until the deadline. Raises _Stopped."""
        while time.monotonic() < deadline:
            if stoppable and self._at.stop.is_set():
                raise _Stopped("stopped by hand")
            for _, record in self._reader.news(_POLL_MS):
                self._course.take(record, self._now_s())
            for step in self._course.seen_s:
                if step not in self._told:
                    self._say(step, sentence(self._course, step))
            yield

    def _now_s(self) -> float:
        return time.monotonic() - self._began

    def _see(self, step: str) -> None:
        self._course.see(step, self._now_s())
        if step not in self._told:
            self._say(step, sentence(self._course, step))

    def _say(self, step: str, words: str) -> None:
        self._told.add(step)
        at_s = self._course.seen_s.get(step, self._now_s())
        self._at.say(f"{at_s:7.2f} s  {step}: {words}" if words else f"{at_s:7.2f} s  {step}")

    def _is_dry(self) -> bool:
        return self._course.command is not None and self._course.command.dry_run

    def _program(self, words: tuple[str, ...]) -> ProgramWatcher | None:
        return ProgramWatcher(filled(words, self._values)) if words else None

    def _training(self) -> ProgramWatcher | FileWatcher | None:
        recovery = self._plan.recovery
        if recovery.training_file is not None:
            path = Path(recovery.training_file.format_map(self._values))
            return FileWatcher(path, recovery.training_changes)
        return self._program(recovery.training)
