"""Where imported files stand among the sink's: in partitions that no topic of Kafka has.

A file's place is made of the ids of its rows: the same rows want the same name, and get it once.
"""

import hashlib
from collections.abc import Iterable
from datetime import date

from warehouse.files import Range
from warehouse.kinds import Kind

__all__ = ["TOPIC", "is_import", "place_of"]

#: What imported rows have as ``kafka_topic``.
TOPIC = "import"
#: Kafka numbers partitions from 0 and no topic has a billion.
_FIRST_PARTITION = 1 << 30


def is_import(partition: int) -> bool:
    """Whether a file's or a row's partition says that it was imported."""
    return partition >= _FIRST_PARTITION


def place_of(kind: Kind, ids: Iterable[str], day: date) -> Range:
    """The range of a file that holds the records of these ids, in this order."""
    hashed = hashlib.blake2b(digest_size=8)
    count = 0
    for one in ids:
        hashed.update(one.encode() + b"\n")
        count += 1
    found = hashed.hexdigest()
    return Range(
        kind=kind,
        log=found[:8],
        partition=_FIRST_PARTITION | (int(found[8:], 16) & (_FIRST_PARTITION - 1)),
        start=0,
        first=0,
        last=count - 1,
        day=day,
    )
