"""Lines of a program about its checkpoints and its end."""

from datetime import UTC, datetime

import pytest

from collectors.nccl import parse_stream
from evidence.records import NcclKind, NcclRecord

NOW = datetime(2027, 1, 1, tzinfo=UTC)


def read(*lines: str) -> list[NcclRecord]:
    data = [f"{line}\n".encode() for line in lines]
    return list(parse_stream(data, job="j", host="train01", now=NOW, file="0.log"))


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("saving checkpoint at iteration    7500 to /scratch/run9 in torch_dist format", "saving"),
        ("  successfully saved checkpoint from iteration    7500 to /scratch/run9", "saved"),
        ("Saving model checkpoint to out/checkpoint-250", "saving"),
        ("[2027-01-01 10:00:00,112] [INFO] [Torch] Saving out/mp_rank_00_states.pt...", "saving"),
        ("[2027-01-01 10:00:09,301] [INFO] [Torch] Saved out/mp_rank_00_states.pt.", "saved"),
        ("[rank0]: 10:00:00 INFO saving a checkpoint of step 900", "saving"),
    ],
)
def test_the_beginning_and_the_end_of_a_checkpoint_are_told(line: str, phase: str) -> None:
    (record,) = read(line)
    assert (record.kind, record.phase) == (NcclKind.OTHER, phase)


@pytest.mark.parametrize(
    "line", ["loading checkpoint from /scratch/run9", "checkpoint interval: 500", "saving logs"]
)
def test_other_lines_about_checkpoints_say_nothing(line: str) -> None:
    assert read(line) == []


@pytest.mark.parametrize(
    "line",
    [
        "10:00:00 INFO training finished after 9000 steps",
        "Training completed in 3:12:44",
        "[after training is done] datetime: 2027-01-01 10:00:00",
        "Training is done.",
    ],
)
def test_the_end_of_a_training_is_told(line: str) -> None:
    (record,) = read(line)
    assert record.kind is NcclKind.FINISHED


@pytest.mark.parametrize(
    "line", ["Epoch 3: training finished", "training step finished", "training epoch 3 done"]
)
def test_the_end_of_a_part_of_it_is_not(line: str) -> None:
    assert read(line) == []
