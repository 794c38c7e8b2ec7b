import pytest

from evidence.topics import TOPICS
from rules.tables import load
from streams.config import StreamsError, WorkerConfig
from streams.stages import STAGES, bind


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
