"""What came of one fault drill: a fault made on purpose, and how long each step took."""

from datetime import datetime

from evidence.records.wire import OpenEnum, Wire

__all__ = ["DrillOutcome", "DrillRecord"]


class DrillOutcome(OpenEnum):
    """How a drill ended; ``RUNNING`` is said at its start.

    ``PASSED``: all came as expected, and in time. ``MISSED``: as expected, and too late.
    ``DIFFERED``: something else came, or something did not. ``ABORTED``: somebody stopped it, or
    it could not go on; the fault is undone.
    """

    RUNNING = "running"
    PASSED = "passed"
    MISSED = "missed"
    DIFFERED = "differed"
    ABORTED = "aborted"


class DrillRecord(Wire, frozen=True, kw_only=True, omit_defaults=True, tag="drill/1"):
    """One drill; the last record of an ``id`` tells the whole of it.

    ``decided_at``, ``issued_at``, ``acked_at`` and ``release_acked_at`` are what the verdict, the
    command and the acks say themselves; what ends in ``_s`` is seconds from the injection until it
    was seen, all by one clock. ``recovered_s`` is until the job trained again, held against
    ``objective_s``. ``differed`` says in sentences what was not as expected.
    """

    id: str
    drill: str
    at: datetime
    observed_at: datetime
    host: str
    by: str
    outcome: DrillOutcome
    objective_s: float
    expected: str = ""
    pool: str | None = None
    mode: str | None = None
    injected_at: datetime | None = None
    verdict: str | None = None
    incident: str | None = None
    status: str | None = None
    cause: str | None = None
    domain_id: str | None = None
    decided_at: datetime | None = None
    detected_s: float | None = None
    command: str | None = None
    level: str | None = None
    issued_at: datetime | None = None
    commanded_s: float | None = None
    ack: str | None = None
    acked_at: datetime | None = None
    acked_s: float | None = None
    out_s: float | None = None
    recovered_s: float | None = None
    undone_s: float | None = None
    release: str | None = None
    release_asked_s: float | None = None
    release_acked_at: datetime | None = None
    released_s: float | None = None
    in_service_s: float | None = None
    differed: tuple[str, ...] = ()
