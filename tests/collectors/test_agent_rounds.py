"""The agent's loop: what wakes it, and that nothing else keeps a collector waiting."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

import pytest
from msgspec import Struct

from collectors.agent import Chores, rounds
from collectors.collector import Unavailable
from collectors.metrics import Metrics
from collectors.notify import Notifier
from collectors.shipping.shipper import Shipper
from collectors.source import Source
from collectors.waiting import Waiter
from evidence.records import KernelKind, KernelRecord
from evidence.transport import Kafka

NEVER_S = 3600.0


def line(number: int) -> KernelRecord:
    at = datetime(2026, 10, 2, 3, 4, 5, tzinfo=UTC)
    return KernelRecord(id=f"q{number}", observed_at=at, raw="x", kind=KernelKind.OTHER)


class Piped:
    """Returns a record a byte of a pipe; its own time is far away."""

    name = topic = "kernel"

    def __init__(self) -> None:
        self.end, self.write_end = os.pipe()
        os.set_blocking(self.end, False)
        self.seen = threading.Semaphore(0)

    def read(self) -> Iterable[Struct]:
        try:
            found = os.read(self.end, 100)
        except BlockingIOError:
            found = b""
        for _ in found:
            self.seen.release()
        return [line(byte) for byte in found]

    def fileno(self) -> int:
        return self.end

    def next_due(self, now: float) -> float:
        return now + NEVER_S

    def saved(self) -> None: ...

    def close(self) -> None:
        os.close(self.end)
        os.close(self.write_end)


class Threaded:
    """Has a record when its thread says so; its own time is far away."""

    name = topic = "nccl"

    def __init__(self) -> None:
        self.on_ready: Callable[[], None] | None = None
        self.reads = threading.Semaphore(0)

    def read(self) -> Iterable[Struct]:
        self.reads.release()
        return []

    def next_due(self, now: float) -> float:
        return now + NEVER_S

    def saved(self) -> None: ...

    def close(self) -> None: ...


class Failing(Threaded):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def read(self) -> Iterable[Struct]:
        self.reads.release()
        raise self.error


@pytest.fixture
def shipper() -> Iterator[Shipper]:
    shipper = Shipper(Kafka(bootstrap="127.0.0.1:1"))
    yield shipper
    shipper.close(0)


@pytest.fixture
def start(shipper: Shipper) -> Iterator[Callable[..., None]]:
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def begin(*collectors: Piped | Threaded) -> None:
        sources = [Source(one, "n8", patient=False) for one in collectors]
        chores = Chores(sources, shipper, Metrics("n8", sources, shipper), Notifier({}))

        def work() -> None:
            with Waiter() as waiter:
                rounds(sources, shipper, waiter, chores, stop)

        thread = threading.Thread(target=work)
        thread.start()
        threads.append(thread)

    yield begin
    stop.set()
    for thread in threads:
        thread.join()


def test_what_is_readable_is_read_although_its_time_has_not_come(
    start: Callable[..., None],
) -> None:
    piped = Piped()
    start(piped)
    for _ in range(3):
        os.write(piped.write_end, b"a")
        assert piped.seen.acquire(timeout=20)


def test_a_thread_that_has_something_is_asked_although_its_time_has_not_come(
    start: Callable[..., None],
) -> None:
    threaded = Threaded()
    start(threaded)
    assert threaded.reads.acquire(timeout=20)
    for _ in range(3):
        assert threaded.on_ready is not None
        threaded.on_ready()
        assert threaded.reads.acquire(timeout=20)
    assert not threaded.reads.acquire(blocking=False)


def test_collectors_without_source_or_sense_stop_nobody(start: Callable[..., None]) -> None:
    piped, absent, broken = Piped(), Failing(Unavailable("not here")), Failing(ValueError("odd"))
    start(absent, broken, piped)
    assert absent.reads.acquire(timeout=20)
    assert broken.reads.acquire(timeout=20)
    os.write(piped.write_end, b"ab")
    assert piped.seen.acquire(timeout=20)
    assert piped.seen.acquire(timeout=20)


def test_a_descriptor_of_a_source_that_is_left_alone_is_not_waited_for(
    shipper: Shipper,
) -> None:
    piped = Piped()
    os.write(piped.write_end, b"a")
    source = Source(piped, "n8", patient=False)
    assert source.descriptor(0.0) == piped.end
    piped.read = Failing(Unavailable("gone")).read  # type: ignore[method-assign]
    assert source.ship(shipper, 0.0) == 0
    assert source.descriptor(0.5) is None
    assert source.descriptor(1.5) == piped.end
    source.finish(2.0)


def test_the_word_of_the_last_read_holds_however_often_the_loop_goes_round() -> None:
    threaded = Threaded()
    source = Source(threaded, "n8", patient=False)
    assert source.due_at(0.0) <= 0.0
    source.take(0.0)
    assert [source.due_at(now) for now in (10.0, NEVER_S - 1)] == [NEVER_S, NEVER_S]
    assert source.due_at(NEVER_S + 5) <= NEVER_S + 5


def test_a_cursor_that_waits_is_looked_after_although_nothing_is_to_be_read(
    shipper: Shipper,
) -> None:
    piped = Piped()
    source = Source(piped, "n8", patient=False)
    os.write(piped.write_end, b"a")
    assert source.ship(shipper, 100.0) == 1
    looks = []
    now = 100.0
    for _ in range(4):  # Kafka is away: each look finds the record still under way
        now = source.due_at(now)
        looks.append(now)
        source.ship(shipper, now)
    assert len(set(looks)) == 4
    assert looks[-1] < 105.0
    source.finish(now)
