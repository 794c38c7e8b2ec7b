from datetime import UTC, datetime, timedelta

import pytest

from evidence.records import NcclRecord
from evidence.topics import TOPICS
from rules.stage import Arrived
from rules.tables import load
from streams.config import StreamsError, WorkerConfig
from streams.stages import STAGES, bind
from streams.ticks import tick

NOW = datetime(2026, 11, 3, 9, 12, 44, tzinfo=UTC)


def test_every_stage_of_the_default_worker_can_be_bound() -> None:
    stages = bind(WorkerConfig().stages, load())

    assert [stage.name for stage in stages] == ["host", "job", "fabric", "isolation"]
    for stage in stages:
        assert stage.due(stage.state()) is None


def test_the_topics_of_one_stage_have_one_kind_of_key() -> None:
    for stage in bind(STAGES, load()):
        assert len({TOPICS[name].key for name in stage.topics}) == 1


def test_a_name_that_is_no_stage_is_one_sentence() -> None:
    with pytest.raises(StreamsError, match=r"There is no stage 'hots'; stages are host, job"):
        bind(["host", "hots"], load())


def test_a_job_that_is_over_leaves_no_key_behind() -> None:
    (job,) = bind(["job"], load())
    line = NcclRecord(
        id="n1",
        job="train-7",
        host="trn-0021",
        rank=3,
        kind="comm-init",
        raw="NCCL INFO ncclCommInitRank comm 0x1 rank 3 nranks 8 - Init COMPLETE",
        observed_at=NOW,
    )
    state, _ = job.step(job.state(), Arrived("nccl", line, NOW))
    over = job.due(state)
    assert over == NOW + timedelta(days=1)

    early = job.step(state, Arrived("", tick(over - timedelta(seconds=1)), NOW))[0]
    gone, said = job.step(state, Arrived("", tick(over), over))

    assert early is state
    assert (gone, list(said)) == (None, [])


def test_a_job_of_which_nothing_was_learned_is_the_same_empty_state() -> None:
    (job,) = bind(["job"], load())
    empty = job.state()

    assert job.step(empty, Arrived("", tick(NOW), NOW))[0] is empty
