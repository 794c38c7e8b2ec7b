"""Checks a launch script before the job starts: would it survive the loss of a node?"""

from ringfence.preflight.checks import CHECKS, Finding, Severity, examine
from ringfence.preflight.launch import Launch, LaunchError, read

__all__ = ["CHECKS", "Finding", "Launch", "LaunchError", "Severity", "examine", "read"]
