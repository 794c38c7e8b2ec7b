"""What a table takes from its changelog and from our own writes, without a broker."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import faust
import pytest
from faust.types import TP

from streams.config import StreamsError
from streams.shelves import MemoryShelf
from streams.tables import EPOCH_HEADER, StageTable, TableStore

CHANGELOG = "tables-count-changelog"


@dataclass
class Message:
    key: bytes
    value: bytes | None
    offset: int
    partition: int = 0
    topic: str = CHANGELOG
    headers: Any = field(default_factory=list)


@dataclass
class Event:
    message: Message


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 12, 5, 6, 7, 8, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> TableStore:
    app = faust.App("tables", store="memory://", datadir=str(tmp_path), Table=StageTable)
    shelf = MemoryShelf()
    table = app.Table("count", key_type=bytes, value_type=bytes, partitions=4, shelf=shelf)
    return TableStore(shelf, clock, "stage://", app, table)


def took(store: TableStore, *messages: Message) -> None:
    store.apply_changelog_batch([Event(one) for one in messages], bytes, bytes)


def epoch(number: int) -> Sequence[tuple[str, bytes]]:
    return [(EPOCH_HEADER, b"%d" % number)]


def held(store: TableStore, *partitions: int) -> dict[bytes, bytes]:
    return {key: value for _, key, value in store.items_of(partitions or (0,))}


def offset(store: TableStore, partition: int = 0) -> int | None:
    return store.persisted_offset(TP(CHANGELOG, partition))


def test_the_changelog_is_applied_in_order_and_remembered_up_to_its_last_message(
    store: TableStore,
) -> None:
    took(store, Message(b"a", b"1", 3), Message(b"b", b"1", 4), Message(b"a", None, 7))
    took(store, Message(b"c", b"1", 8, partition=2))

    assert held(store, 0, 2) == {b"b": b"1", b"c": b"1"}
    assert (offset(store), offset(store, 1), offset(store, 2)) == (7, None, 8)


def test_what_was_applied_already_does_not_go_back_to_an_older_value(store: TableStore) -> None:
    took(store, Message(b"a", b"1", 3), Message(b"a", b"2", 4))
    took(store, Message(b"a", b"1", 3))

    assert held(store) == {b"a": b"2"}


def test_what_is_of_another_table_is_left_out(store: TableStore) -> None:
    took(store, Message(b"a", b"1", 3, topic="tables-other-changelog"))

    assert held(store) == {}
    assert offset(store) is None


def test_a_value_of_who_had_lost_the_partition_is_passed_over(store: TableStore) -> None:
    took(
        store,
        Message(b"a", b"first owner", 0, headers=epoch(4)),
        Message(b"a", b"second owner", 1, headers={EPOCH_HEADER: b"5"}),
        Message(b"a", b"the first wakes up", 2, headers=epoch(4)),
        Message(b"b", None, 3, headers=epoch(4)),
    )

    assert held(store) == {b"a": b"second owner"}
    assert offset(store) == 3


@pytest.mark.parametrize("headers", [None, [], [("epoch", b"x")], {"other": b"1"}])
def test_an_older_releases_message_has_no_epoch_and_counts(
    store: TableStore, headers: object
) -> None:
    took(store, Message(b"a", b"1", 0, headers=headers))

    assert held(store) == {b"a": b"1"}


def test_a_term_is_later_than_every_term_in_the_changelog_and_than_the_groups_generation(
    store: TableStore,
) -> None:
    took(store, Message(b"a", b"1", 0, headers=epoch(7)), Message(b"a", b"1", 0, partition=1))

    store.claim(0, generation=3, end=0)
    store.claim(1, generation=3, end=0)

    assert (store.epoch(0), store.epoch(1)) == (8, 3)


def test_a_partition_that_is_not_ours_is_not_written(store: TableStore) -> None:
    with pytest.raises(StreamsError, match="Partition 2 of count was taken away"):
        store.epoch(2)


def test_our_own_writes_are_part_of_the_copy(store: TableStore) -> None:
    store.claim(0, generation=1, end=-1)
    store.wrote(0, 1, b"a", b"2")
    store.wrote(0, 0, b"a", b"1")  # told in another order than written
    store.wrote(0, 2, b"b", None)

    assert offset(store) == 2
    assert held(store) == {b"a": b"2"}


def test_a_copy_into_which_somebody_else_wrote_is_dropped(store: TableStore) -> None:
    store.claim(0, generation=1, end=-1)
    store.wrote(0, 0, b"a", b"1")
    store.wrote(0, 2, b"b", b"1")  # what is at 1 is not known here

    assert offset(store) is None
    assert held(store) == {}


def test_a_copy_that_is_followed_stays_fresh_though_nothing_is_written(
    store: TableStore, clock: Clock
) -> None:
    store.claim(0, generation=1, end=5)
    clock.now += timedelta(hours=3)
    store.flush()

    mark = store._shelf.mark(0)
    assert mark is not None
    assert (mark.offset, mark.at) == (5, clock.now)
