"""A drill's steps in words, and its record when it is over."""

from collections.abc import Sequence
from datetime import UTC, datetime

from msgspec.structs import replace

from evidence.records import DrillOutcome, DrillRecord
from ringfence.drills.course import Course

__all__ = ["complete", "sentence"]


def sentence(course: Course, step: str) -> str:
    """What was seen, in a few words; empty where the step's name says it all."""
    verdict, command, ack = course.verdict, course.command, course.ack
    if step == "verdict" and verdict is not None:
        return f"{verdict.status} {verdict.cause} {verdict.domain.id}"
    if step == "command" and command is not None:
        marks = "".join(
            (" dry run" * command.dry_run, f" held: {command.held}" * bool(command.held))
        )
        return f"{command.action} {command.domain_id} {command.level}{marks}"
    if step == "ack" and ack is not None:
        return f"{ack.scheduler} {ack.status} {ack.detail}".rstrip()
    if step == "released" and course.release_ack is not None:
        return course.release_ack.detail
    return ""


def complete(
    record: DrillRecord, course: Course, more: Sequence[str], *, aborted: bool
) -> DrillRecord:
    """The record of a drill that is over; ``more`` is what differed beside the course."""
    seen = {step: round(at_s, 3) for step, at_s in course.seen_s.items()}
    verdict, command, ack = course.verdict, course.command, course.ack
    differed = (*more, *(() if aborted else course.differed()))
    record = replace(
        record,
        observed_at=datetime.now(UTC),
        detected_s=seen.get("verdict"),
        commanded_s=seen.get("command"),
        acked_s=seen.get("ack"),
        out_s=seen.get("out"),
        recovered_s=seen.get("training"),
        undone_s=seen.get("undone"),
        release_asked_s=seen.get("release-asked"),
        released_s=seen.get("released"),
        in_service_s=seen.get("in-service"),
        outcome=_outcome(record, course, differed, aborted=aborted),
        differed=(*differed, *_late(record, course, aborted=aborted)),
    )
    if verdict is not None:
        record = replace(
            record, verdict=verdict.id, incident=verdict.incident, status=verdict.status,
            cause=verdict.cause, domain_id=verdict.domain.id, decided_at=verdict.decided_at,
        )  # fmt: skip
    if command is not None:
        record = replace(
            record, command=command.id, level=command.level, issued_at=command.issued_at,
        )  # fmt: skip
    if ack is not None:
        record = replace(record, ack=ack.status, acked_at=ack.at)
    if course.release is not None:
        back = course.release_ack
        record = replace(
            record, release=course.release.id, release_acked_at=None if back is None else back.at
        )
    return record


def _outcome(
    record: DrillRecord, course: Course, differed: Sequence[str], *, aborted: bool
) -> DrillOutcome:
    if aborted:
        return DrillOutcome.ABORTED
    if differed:
        return DrillOutcome.DIFFERED
    return DrillOutcome.MISSED if _late(record, course, aborted=False) else DrillOutcome.PASSED


def _late(record: DrillRecord, course: Course, *, aborted: bool) -> tuple[str, ...]:
    recovery = course.plan.recovery
    if aborted or not (recovery.training or recovery.training_file):
        return ()
    took_s = course.seen_s.get("training")
    if took_s is None:
        return ("the job was not seen to train again",)
    if took_s > record.objective_s:
        return (f"the job trained again after {took_s:.1f} s, not {record.objective_s:g} s",)
    return ()
