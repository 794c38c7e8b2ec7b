"""The node's cards: which there are, which one a domain names, which of them the job uses."""

import logging
import os
import shlex
import signal
import subprocess
from collections.abc import Sequence

from msgspec import Struct

from evidence.decisions import Domain, DomainKind
from evidence.identity import normalise_pci

__all__ = ["CARDS", "Card", "card_of", "listed", "used"]

_LOG = logging.getLogger(__name__)
_TIMEOUT_S = 10.0
#: Kinds of domain that are a card or a part of one.
CARDS = frozenset({DomainKind.MIG, DomainKind.GPU, DomainKind.NVLINK})


class Card(Struct, frozen=True):
    """One card; ``index`` is nvidia-smi's."""

    index: int
    uuid: str
    pci: str


def listed(command: str) -> tuple[Card, ...]:
    """The cards that a command line prints, none where it fails: a lost card may make it hang."""
    words = shlex.split(command)
    if not words:
        return ()
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        _LOG.warning("the cards are not known: %s: %s", words[0], error.strerror)
        return ()
    try:
        text, _ = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        _LOG.warning("the cards are not known: %s gave no answer in %g s", words[0], _TIMEOUT_S)
        return ()
    cards = [_card(line) for line in text.decode(errors="replace").splitlines()]
    return tuple(sorted((one for one in cards if one is not None), key=lambda one: one.index))


def _card(line: str) -> Card | None:
    # 0, GPU-6b2f4d3e-8a1c-4e0f-9d2b-7c5a1e9f3b42, 00000000:1B:00.0
    words = [word.strip() for word in line.split(",")]
    try:
        index, uuid, bus = words
        return Card(int(index), uuid, normalise_pci(bus)[0])
    except ValueError:
        return None


def card_of(domain: Domain, cards: Sequence[Card]) -> Card | None:
    """The card that a domain is or is a part of, by UUID, PCI address or index."""
    for one in cards:
        if domain.uuid is not None and domain.uuid == one.uuid:
            return one
    for one in cards:
        if domain.pci is not None and domain.pci == one.pci:
            return one
    if domain.uuid is None and domain.pci is None:
        return next((one for one in cards if one.index == domain.index), None)
    return None


def used(cards: Sequence[Card], visible: str | None) -> tuple[Card, ...]:
    """The cards that ``CUDA_VISIBLE_DEVICES`` leaves a job, in its order; all where it is unset."""
    if visible is None:
        return tuple(cards)
    found: list[Card] = []
    for word in (word.strip() for word in visible.split(",")):
        card = next(
            (
                one
                for one in cards
                if word
                and (str(one.index) == word or (not word.isdecimal() and one.uuid.startswith(word)))
            ),
            None,
        )
        if card is None:
            break  # as CUDA does: what follows an unknown one is not visible
        found.append(card)
    return tuple(found)
