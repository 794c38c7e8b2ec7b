"""Three nodes train under real agents of torch; commands take nodes out and give them back."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from evidence.decisions import AckStatus, Action, Level

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
#: The training loop's: steps between two checkpoints.
_EVERY = 20
#: Back in training within so many seconds: what an operator is promised.
_PROMISED_S = 90.0


def _last_step(job: Any) -> int:
    last: int = [line["step"] for line in job.lines() if line["what"] == "step"][-1]
    return last


def _resumed(job: Any, world: int, since: float) -> int:
    """The step from which so many workers went on."""
    first = next(
        line
        for line in job.lines()
        if line["what"] == "resume" and line["world"] == world and line["at"] >= since
    )
    step: int = first["step"]
    return step


def test_an_evicted_node_stays_out_over_a_kill_and_returns_by_a_release(
    job: Any, desk: Any, record_property: Callable[[str, object], None]
) -> None:
    workers = job.workers("hgx-c")
    evict = desk.command("hgx-c")
    sent, before = time.time(), _last_step(job)
    ack = desk.send(evict)
    assert (ack.status, ack.scheduler) == (AckStatus.DONE, "torchrun-hgx-c")
    assert ack.detail.endswith(
        "(evicted); node:hgx-c keeps the node out; after a release it returns"
    )
    assert workers
    assert job.workers("hgx-c") == []

    back = job.trains(2, sent)
    record_property("seconds_to_resume", round(back["at"] - sent, 2))
    assert back["at"] - sent <= _PROMISED_S
    stopped = max(line["step"] for line in job.steps(3, sent - 2))
    assert before <= stopped
    assert 0 <= stopped - _resumed(job, 2, sent) <= _EVERY

    assert desk.send(evict, acks=2) == ack
    job.kill("hgx-c")
    again = time.time()
    job.start("hgx-c")
    job.until(lambda: "reads" in _since_last_start(job, "hgx-c"), "its supervisor reads commands")
    assert [line for line in job.lines() if line["node"] == "hgx-c" and line["at"] > again] == []

    released = desk.send(desk.command("hgx-c", Action.RELEASE))
    assert (released.status, released.detail) == (AckStatus.DONE, "the agent was started again")
    record_property("seconds_to_rejoin", round(job.trains(3, again)["at"] - again, 2))


def _since_last_start(job: Any, host: str) -> str:
    text: str = (job.folder / f"{host}.log").read_text()
    return text.rpartition("signal: 15")[2].rpartition("no agent runs")[2][-400:]


def test_a_drain_waits_for_the_next_checkpoint_and_loses_no_step(job: Any, desk: Any) -> None:
    hold = job.folder / "hold"
    hold.touch()
    began = time.time()
    ack = desk.send(desk.command("hgx-b", level=Level.DRAIN))
    assert ack.status is AckStatus.DONE
    assert ack.detail.startswith("the agent stops at the next checkpoint, at ")
    time.sleep(1.5)  # more than a checkpoint's interval
    assert job.steps(3, time.time() - 0.3)
    hold.unlink()
    job.trains(2, began)
    # The one that was waited for, or one that came after it: none before it.
    resumed = _resumed(job, 2, began)
    held = [line["step"] for line in job.steps(3, began) if line["at"] < began + 1.5]
    assert resumed > held[-1]


@pytest.mark.slow
def test_workers_do_not_outlive_a_killed_supervisor_and_its_successor_joins_again(job: Any) -> None:
    workers = job.workers("hgx-a")
    assert workers
    killed = time.time()
    job.kill("hgx-a")
    job.until(
        lambda: not set(workers) & set(job.workers("hgx-a")),
        "the workers end with their supervisor",
        within_s=20,
    )
    job.trains(2, killed)
    job.start("hgx-a")
    job.trains(3, time.time())


@pytest.mark.slow
def test_that_the_store_goes_with_its_node_is_said_in_the_ack(
    jobs: Callable[..., Any], desk: Any
) -> None:
    job = jobs(store_at="hgx-d", rejoin=False)
    job.start("hgx-d", "hgx-e")
    job.trains(2)
    ack = desk.send(desk.command("hgx-d"))
    assert ack.status is AckStatus.DONE
    assert ack.detail.endswith(
        "the rendezvous store is on this node: the whole job ends with its agent"
    )
    assert job.supervisors["hgx-d"].wait(30) == 75
    assert job.supervisors["hgx-e"].wait(60) == 1
    job.start("hgx-d")
    assert job.supervisors["hgx-d"].wait(30) == 75
