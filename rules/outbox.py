"""Commands that nobody has acknowledged yet: sent again, unchanged, until somebody does.

A command lost between the state's write and the broker comes again; its id is the same, so a
consumer that has it already does nothing.
"""

from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from evidence.decisions import Ack, AckStatus, Action, Command
from rules.policy import Policy

__all__ = ["Pending", "answered", "expired", "next_due", "post", "resent"]

#: Characters of a refusal that are kept.
_REFUSAL = 400


class Pending(Struct, frozen=True, omit_defaults=True):
    """One command without an ack: when it goes out next, and how long it then waits.

    ``refused`` is the last refusal: by whom, and why.
    """

    command: Command
    next_at: datetime
    wait_s: float
    failures: int = 0
    refused: str = ""


def post(command: Command, now: datetime, policy: Policy) -> Pending:
    """Put a command that is being emitted now into the outbox."""
    return Pending(
        command=command,
        next_at=now + timedelta(seconds=policy.resend_s),
        wait_s=policy.resend_s,
    )


def next_due(pending: Pending) -> datetime:
    """When the outbox must be looked at for this command."""
    if pending.command.act_by is None:
        return pending.next_at
    return min(pending.next_at, pending.command.act_by)


def expired(pending: Pending, now: datetime) -> bool:
    """Whether the command's time is over; a release has no end."""
    return pending.command.act_by is not None and now >= pending.command.act_by


def resent(pending: Pending, now: datetime, policy: Policy) -> Pending:
    """The entry after one more emission: the interval doubles up to the policy's limit."""
    wait_s = min(pending.wait_s * 2, policy.resend_limit_s)
    return replace(pending, next_at=now + timedelta(seconds=wait_s), wait_s=wait_s)


def answered(pending: Pending, ack: Ack, now: datetime, policy: Policy) -> Pending | None:
    """The entry after an ack; None when the command is settled.

    ``failed`` is tried again (an isolate `failed_retries` times, a release always). ``skipped``
    settles what was not to be carried out (dry run, held) and a release; an isolate that one
    scheduler skipped may be another one's. ``refused`` is said; an isolate stays until its time is
    up, as another scheduler may take it, or the same one when its own budget allows. A release,
    which has no end, is tried `failed_retries` times more: keys may have been put in order.
    """
    command = pending.command
    release = command.action is Action.RELEASE
    match ack.status:
        case AckStatus.DONE:
            return None
        case AckStatus.SKIPPED:
            settled = release or command.dry_run or command.held is not None
            return None if settled else pending
        case AckStatus.REFUSED:
            return _refused(pending, ack, now, policy)
        case AckStatus.EXPIRED:
            return pending if release else None
        case AckStatus.FAILED:
            failures = pending.failures + 1
            if failures > policy.failed_retries and not release:
                return None
            later = now + timedelta(seconds=policy.retry_failed_s)
            return replace(pending, failures=failures, next_at=later)


def _refused(pending: Pending, ack: Ack, now: datetime, policy: Policy) -> Pending | None:
    command = pending.command
    if command.dry_run or command.held is not None:
        return None  # it was not to be carried out
    words = f"refused by {ack.scheduler}: {ack.detail}"[:_REFUSAL]
    if command.action is Action.ISOLATE:
        return pending if words == pending.refused else replace(pending, refused=words)
    failures = pending.failures + 1
    if failures > policy.failed_retries:
        return None
    later = now + timedelta(seconds=policy.retry_failed_s)
    return replace(pending, failures=failures, next_at=later, refused=words)
