"""What a rank says of its own card and its own program."""

from datetime import timedelta

import msgspec
import pytest

from evidence.decisions import Cause, Says, Status
from evidence.records import NcclKind, NcclRecord

from .job_lines import GIVE_UP, STALL, gpu, line, run, told, waits, world

ECC = "uncorrectable ECC error encountered"


def test_an_ecc_error_accuses_the_card_of_the_rank_that_prints_it() -> None:
    error = line(NcclKind.CUDA_ERROR, STALL, rank=6, host="train02", message=ECC)
    said = run([*world(8), error])
    assert told(said)[0] == ("suspected", "accuses", "own-error", gpu(6).id)
    assert (said[0].cause, said[0].weight, said[0].at) == (Cause.GPU_MEMORY, 0.9, STALL)


def test_an_ecc_error_found_late_wins_over_the_silence_of_another_rank() -> None:
    error = line(
        NcclKind.CUDA_ERROR, GIVE_UP + timedelta(seconds=2), pid=5006, host="train02", message=ECC
    )
    said = run([*world(8), *waits(range(1, 8)), error])
    assert told(said)[0] == ("suspected", "accuses", "own-error", gpu(6).id)


def test_an_ecc_error_of_a_card_that_nobody_maps_accuses_its_host_at_half_weight() -> None:
    said = run([line(NcclKind.CUDA_ERROR, rank=1, host="train09", message=ECC)])
    assert told(said) == [("suspected", "accuses", "own-error", "node:train09")]
    assert (said[0].domain.rank, said[0].weight) == (1, 0.45)


@pytest.mark.parametrize(
    ("kind", "message", "says"),
    [
        (NcclKind.CUDA_ERROR, "an illegal memory access was encountered", "launch-failure"),
        (NcclKind.CUDA_ERROR, "unspecified launch failure", "launch-failure"),
        (NcclKind.CUDA_ERROR, "device-side assert triggered", "launch-failure"),
        (NcclKind.OUT_OF_MEMORY, "CUDA out of memory. Tried to allocate 2 GiB", "out-of-memory"),
        (NcclKind.CUDA_ERROR, "out of memory", "out-of-memory"),
        (NcclKind.OUT_OF_MEMORY, "Detected 1 oom_kill event in StepId=9.0", "host-out-of-memory"),
        (NcclKind.PYTHON_ERROR, "ValueError: batch of 7 is not divisible", "exception"),
    ],
)
def test_software_faults_of_a_rank_clear_its_card(kind: NcclKind, message: str, says: str) -> None:
    fault = line(kind, STALL, rank=6, host="train02", message=message)
    said = run([*world(8), fault, *waits(r for r in range(8) if r != 6)])
    assert told(said) == [("software", "clears", says, gpu(6).id)]
    assert said[0].host == "train02"


@pytest.mark.parametrize(
    "message",
    [
        "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp, remote process exited",
        "RuntimeError: [gloo/transport/tcp/pair.cc:545] Read error: Connection reset by peer",
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py",
    ],
)
def test_a_communication_error_is_an_echo_and_proves_no_software_fault(message: str) -> None:
    echo = line(NcclKind.PYTHON_ERROR, STALL, rank=6, host="train02", message=message)
    said = run([*world(8), echo])
    assert {s.status for s in said} == {Status.INSUFFICIENT}


def test_an_exception_of_a_rank_that_waited_itself_is_not_the_cause() -> None:
    late = line(
        NcclKind.PYTHON_ERROR, GIVE_UP, rank=1, host="train01", message="KeyError: 'metrics'"
    )
    said = run([*world(8), *waits(r for r in range(8) if r != 6), late])
    assert said[0].domain == gpu(6)


@pytest.mark.parametrize("kind", [NcclKind.FINISHED, NcclKind.COMM_DESTROY])
def test_a_rank_that_left_while_others_still_call_is_software(kind: NcclKind) -> None:
    left = line(kind, STALL, rank=0, host="train01")
    said = run([*world(8), left, *waits(range(1, 8))])
    assert told(said) == [("software", "clears", "left-the-collective", gpu(0).id)]


def test_ranks_that_all_finish_say_nothing() -> None:
    assert run([*world(8), *(line(NcclKind.FINISHED, rank=rank) for rank in range(8))]) == []


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any"
            " local network address. port: 29511, useIpv6: false, code: -98, name: EADDRINUSE",
            "address-in-use",
        ),
        ("RuntimeError: DataLoader timed out after 90 seconds", "exception"),
        ("RuntimeError: DataLoader worker (pid 6120) is killed by signal: Killed.", "exception"),
        ("StopIteration", "exception"),
        ("OSError: [Errno 28] No space left on device: 'ckpt/step_400.pt'", "exception"),
        ("MemoryError", "exception"),
    ],
)
def test_an_error_of_the_programs_own_is_software_and_clears_the_card(
    message: str, says: str
) -> None:
    fault = line(NcclKind.PYTHON_ERROR, STALL, rank=6, host="train02", message=message)
    for others in ([], waits(r for r in range(8) if r != 6)):
        said = run([*world(8), fault, *others])
        assert told(said) == [("software", "clears", says, gpu(6).id)]


@pytest.mark.parametrize(
    "message",
    [
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError: ",
        "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 3/4"
        " clients joined.",
    ],
)
def test_a_rendezvous_that_failed_names_no_part(message: str) -> None:
    said = run([*world(8), line(NcclKind.PYTHON_ERROR, STALL, host="train02", message=message)])
    assert told(said) == [("insufficient", "blind", "no-culprit", "job:4711.0")]


def test_a_group_that_is_done_with_is_no_rank_that_left() -> None:
    """A rank destroys its small groups while the job goes on; the world is what counts."""
    small = line(NcclKind.COMM_DESTROY, STALL, rank=6, host="train02", comm_size=2)
    said = run([*world(8), small, *waits(r for r in range(8) if r != 6)])
    assert said[0].domain == gpu(6)
    assert said[0].kind == "missing-rank"
    all_of_it = msgspec.structs.replace(small, comm_size=8)
    said = run([*world(8), all_of_it, *waits(r for r in range(8) if r != 6)])
    assert told(said) == [("software", "clears", "left-the-collective", gpu(6).id)]


def saves(phase: str = "saving", second: float = -5, rank: int | None = 0) -> NcclRecord:
    at = STALL + timedelta(seconds=second)
    return line(NcclKind.OTHER, at, phase=phase, rank=rank, host="train01", message="checkpoint")


@pytest.mark.parametrize("rank", [0, None])
def test_a_rank_that_writes_a_checkpoint_while_the_others_wait_is_software(
    rank: int | None,
) -> None:
    said = run([*world(8), saves(rank=rank), *waits(range(1, 8))])
    assert (said[0].status, said[0].kind) == (Status.SOFTWARE, "checkpoint")
    assert {one.says for one in said} == {Says.CLEARS}


def test_a_checkpoint_that_is_written_or_another_ranks_explains_nothing() -> None:
    done = [saves(), saves("saved", -3)]
    assert run([*world(8), *done, *waits(range(1, 8))])[0].says is Says.ACCUSES
    assert run([*world(8), saves(), *waits(r for r in range(8) if r != 6)])[0].domain == gpu(6)
    assert run([*world(8), saves(second=-90), *waits(range(1, 8))])[0].says is Says.ACCUSES
    assert run([*world(8), saves()]) == []


def test_a_rank_late_for_the_first_step_is_named_and_not_accused() -> None:
    first = {"last_enqueued": 2, "last_completed": 1}
    said = run([*world(8), *waits((r for r in range(8) if r != 6), 2, **first)])
    assert told(said) == [("insufficient", "blind", "missing-rank", "job:4711.0")]
    assert said[0].domain.rank == 6
    assert "compile" in said[0].reason
