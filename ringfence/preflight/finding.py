"""What a check found."""

from dataclasses import dataclass
from enum import StrEnum

from ringfence.preflight.launch import Said

__all__ = ["Finding", "Severity", "found"]


class Severity(StrEnum):
    """How bad, worst first: the job will not come back; it may not, or late; worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of one check: what is wrong, what to write instead, and where it stands."""

    check: str
    severity: Severity
    what: str
    fix: str
    file: str | None = None
    line: int | None = None


def found(check: str, severity: Severity, what: str, fix: str, at: Said | None = None) -> Finding:
    """A finding, at the place where the value is written if it is."""
    if at is None:
        return Finding(check, severity, what, fix)
    return Finding(check, severity, what, fix, at.file, at.line)
