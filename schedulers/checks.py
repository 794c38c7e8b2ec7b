"""What a command must be before it is looked at: within bounds, and signed where keys are set."""

import logging
import re
from pathlib import Path
from typing import Any

from evidence.decisions import Command, Domain, DomainKind
from evidence.transport import Kafka
from schedulers.adapter import SchedulerError

__all__ = ["Checks", "odd"]

_LOG = logging.getLogger(__name__)
_LONGEST_NAME = 512
_WIDE = (DomainKind.RACK, DomainKind.SWITCH, DomainKind.JOB)
_LARGEST_GENERATION = 2**62
# c1, gpu:hpc-n041/0000:5e:00: anything that prints
_NAME = re.compile(r"[^\x00-\x20\x7f-\x9f\u2028\u2029\ud800-\udfff]+")


# hpc-n041.train.example: no path, and no folder of one
_HOST = re.compile(r"(?!\.+\Z)[^\x00-\x20/\x7f-\x9f\u2028\u2029\ud800-\udfff]+")


def odd(command: Command) -> str | None:
    """What makes a command of the right shape impossible, in one sentence, or None."""
    for name, text in (("id", command.id), ("domain_id", command.domain_id)):
        if len(text) > _LONGEST_NAME:
            return f"its {name} has {len(text)} characters, more than {_LONGEST_NAME}"
        if not _NAME.fullmatch(text):
            return f"its {name} is empty or holds what does not print"
    if (why := _misplaced(command.domain)) is not None:
        return why
    if not 0 <= command.generation < _LARGEST_GENERATION:
        return f"its generation is no number from 0 to {_LARGEST_GENERATION}"
    if command.issued_at.tzinfo is None or (
        command.act_by is not None and command.act_by.tzinfo is None
    ):
        return "a time of it names no zone"
    return None


def _misplaced(domain: Domain) -> str | None:
    """Why a domain is nowhere, or None."""
    if domain.host is None:
        return None
    if len(domain.host) > _LONGEST_NAME or not _HOST.fullmatch(domain.host):
        return "its host is no host's name"
    if domain.kind in _WIDE:  # else one host would be counted, and all of them taken out
        return f"it is about a {domain.kind} and names one host"
    return None


class Checks:
    """Checks signatures; without ``keys`` (a file or folder of public keys) all is believed.

    Raises SchedulerError where the keys cannot be used at the start. Keys that change are seen;
    while they cannot be read, nothing is believed.
    """

    def __init__(self, kafka: Kafka, keys: Path | None) -> None:
        self._kafka = kafka
        self._keys: Any = None
        if keys is None:
            return
        try:
            from evidence.signing import (  # noqa: PLC0415 (only who checks needs cryptography)
                KeyFileError,
                Keyring,
            )
        except ImportError as error:
            raise SchedulerError(f"verify_keys needs the package {error.name}.") from error
        self._error = KeyFileError
        try:
            self._keys = Keyring(keys)
        except KeyFileError as error:
            raise SchedulerError(f"verify_keys: {error}") from error
        _LOG.info("commands must be signed with one of: %s", ", ".join(self._keys.names))

    def refresh(self) -> None:
        """See keys that came or went."""
        if self._keys is None:
            return
        try:
            self._keys.refresh()
        except self._error as error:
            _LOG.error("no command is believed: verify_keys: %s", error)

    def flaw(self, topic: str, message: Any) -> str | None:  # noqa: ANN401 (kafka-python's)
        """Why a message of a topic (short name) is not to be believed, or None."""
        if self._keys is None:
            return None
        found: str | None = self._keys.flaw(
            self._kafka.topic(topic), message.value or b"", message.headers
        )
        return found
