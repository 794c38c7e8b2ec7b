"""What ends the agent's sleep: a descriptor, a thread, a time, a signal."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.waiting import Waiter

LONG_S = 60.0


@pytest.fixture
def waiter() -> Iterator[Waiter]:
    with Waiter(gap_s=0.001) as waiter:
        yield waiter


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_a_readable_descriptor_ends_the_wait(waiter: Waiter, pipe: tuple[int, int]) -> None:
    read, write = pipe
    assert waiter.wait(0, [read]) == set()
    os.write(write, b"x")
    assert waiter.wait(LONG_S, [read]) == {read}


def test_a_thread_ends_the_wait_once(waiter: Waiter) -> None:
    threading.Timer(0.05, waiter.wake).start()
    assert waiter.wait(LONG_S, []) == set()
    before = time.monotonic()
    waiter.wait(0.05, [])
    assert time.monotonic() - before >= 0.05


def test_a_descriptor_that_is_never_quiet_does_not_make_the_loop_spin(
    pipe: tuple[int, int],
) -> None:
    read, write = pipe
    os.write(write, b"x")
    with Waiter(gap_s=0.02) as waiter:
        waiter.wait(LONG_S, [read])
        before = time.monotonic()
        for _ in range(5):
            assert waiter.wait(LONG_S, [read]) == {read}
    assert time.monotonic() - before >= 0.1


def test_a_descriptor_that_was_closed_is_told_and_not_waited_for(waiter: Waiter) -> None:
    read, write = os.pipe()
    os.close(read)
    os.close(write)
    assert waiter.wait(LONG_S, [read]) == {read}


def test_who_wakes_an_ended_waiter_writes_nowhere(pipe: tuple[int, int]) -> None:
    with Waiter() as waiter:
        ends = {waiter._woken, waiter._wakes}
    # The next descriptors get the numbers that were given back.
    read, write = os.pipe()
    try:
        assert {read, write} == ends
        waiter.wake()
        os.set_blocking(read, False)
        with pytest.raises(BlockingIOError):
            os.read(read, 1)
    finally:
        os.close(read)
        os.close(write)
    assert pipe


def test_woken_more_often_than_a_pipe_holds_it_does_not_block(waiter: Waiter) -> None:
    for _ in range(70_000):
        waiter.wake()
    waiter.wait(LONG_S, [])


_SLEEPER = """
import signal, threading
from collectors.waiting import Waiter
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
with Waiter() as waiter:
    print("waits", flush=True)
    waiter.wait(60, [])
    print("stopped" if stop.is_set() else "woke", flush=True)
"""


def test_a_signal_ends_the_wait() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _SLEEPER],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=30)[0] == "stopped\n"
