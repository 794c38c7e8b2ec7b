"""Ports, paths, peers, stores and services."""

from datetime import timedelta

import pytest

from evidence.decisions import Cause, Says, Status
from evidence.records import NcclKind, NcclRecord, Tick
from rules.job import JobState, step
from rules.stage import Arrived

from .job_lines import RULES, STALL, T0, host, line, run, told, waits, world


def test_a_port_that_reports_its_own_failure_is_suspect_with_its_host() -> None:
    events = [
        line(NcclKind.IB_ASYNC, STALL, host="train02", pid=5004 + n, message="port error",
             hca="mlx5_2", port=1)
        for n in range(4)
    ]  # fmt: skip
    echo = line(NcclKind.IB_COMPLETION, host="train01", peer="train02<37948>", status=12)
    said = run([*world(8), *events, echo])
    assert told(said)[0] == ("suspected", "accuses", "ib-link", "link:train02/1")
    assert (said[0].cause, said[0].weight) == (Cause.IB_LINK, 0.6)
    assert "mlx5_2" in said[0].reason


def port_event(name: str, message: str, second: int = 0, pid: int = 1) -> NcclRecord:
    at = STALL + timedelta(seconds=second)
    return line(NcclKind.IB_ASYNC, at, host=name, pid=pid, message=message, hca="mlx5_0", port=1)


def test_a_port_that_came_back_weighs_less() -> None:
    down = [port_event("train02", "port error", pid=pid) for pid in (1, 2)]
    back = run([*world(8), *down, port_event("train02", "port active", 3)])
    assert back[0].weight == 0.3


def test_ports_of_several_hosts_accuse_none_of_them() -> None:
    both = [port_event("train01", "port error"), port_event("train02", "port error")]
    assert told(run(world(8) + both)) == [("insufficient", "blind", "ib-link", "job:4711.0")]


def test_one_event_that_nobody_suffered_from_accuses_nothing() -> None:
    said = run([*world(8), port_event("train02", "port error")])
    assert told(said) == [("insufficient", "blind", "ib-link", "job:4711.0")]
    said = run([*world(8), port_event("train02", "port error"), *waits(range(8))])
    assert [answer[1] for answer in told(said)] == ["blind", "accuses"]
    assert run([*world(8), port_event("train02", "port active")]) == []


def unreachable(reporter: str, peer: str, status: int = 12) -> NcclRecord:
    return line(NcclKind.IB_COMPLETION, host=reporter, peer=f"{peer}<4791>", status=status)


def test_an_end_that_two_others_cannot_reach_is_suspect() -> None:
    said = run([*world(16), unreachable("train01", "train03"), unreachable("train02", "train03")])
    assert told(said)[0] == ("suspected", "accuses", "ib-link", "link:train03/None")


@pytest.mark.parametrize(
    "errors",
    [
        [("train01", "train02", 12)],
        [("train01", "train02", 12), ("train02", "train01", 12)],
        [("train01", "train02", 12), ("train03", "train04", 12)],
        [("train01", "10.9.8.7", 12), ("train02", "10.9.8.7", 12)],
        [("train01", "train02", 4)],
        [("train01", "train02", 9), ("train03", "train02", 9)],
    ],
)
def test_completion_errors_that_name_no_single_end_accuse_nobody(
    errors: list[tuple[str, str, int]],
) -> None:
    said = run([*world(16), *(unreachable(*error) for error in errors)])
    assert told(said)[0] == ("insufficient", "blind", "ib-link", "job:4711.0")
    assert {one.says for one in said} == {Says.BLIND}


def test_both_ends_of_a_path_that_failed_are_asked_for_their_links() -> None:
    said = run([*world(16), unreachable("train02", "train01"), unreachable("train04", "train03")])
    ends = [(one.host, one.domain.id, one.cause, one.says, one.status) for one in said[1:]]
    assert ends == [
        (name, f"link:{name}/None", Cause.IB_LINK, Says.BLIND, Status.INSUFFICIENT)
        for name in ("train01", "train02", "train03", "train04")
    ]
    many = [unreachable(f"train{n:02d}", f"train{n + 1:02d}") for n in range(1, 40, 2)]
    assert len(run([*world(160), *many])) == 1 + 16


@pytest.mark.parametrize("status", [4, 9, 13])
def test_an_error_that_no_link_makes_asks_for_none(status: int) -> None:
    assert len(run([*world(16), unreachable("train02", "train01", status)])) == 1


def address(rank: int, ip: str, phase: str = "bootstrap") -> NcclRecord:
    return line(NcclKind.SETUP, T0, host=host(rank, 4), address=ip, phase=phase)


def test_an_address_is_the_host_whose_process_printed_it() -> None:
    known = [address(rank, f"10.4.0.{rank // 4 + 1}") for rank in range(16)]
    errors = [unreachable("train01", "10.4.0.3"), unreachable("train02", "10.4.0.3")]
    said = run([*world(16), *known, *errors])
    assert told(said)[0] == ("suspected", "accuses", "ib-link", "link:train03/None")
    closed = line(NcclKind.PEER_CLOSED, host="train01", pid=1, peer="10.4.0.3<88>")
    assert run([*world(16), *known, closed])[0].domain.host == "train03"


def test_an_address_that_every_host_has_is_nobodys() -> None:
    known = [address(rank, "172.17.0.1") for rank in (0, 8, 12)]
    errors = [unreachable("train01", "172.17.0.1"), unreachable("train02", "172.17.0.1")]
    for order in (known, known[::-1]):
        said = run([*world(16), *order, *errors])
        assert {one.says for one in said} == {Says.BLIND}


def test_a_gid_is_the_host_that_uses_it_as_its_own() -> None:
    def between(mine: int, far: int) -> NcclRecord:
        return line(
            NcclKind.IB_COMPLETION, host=f"train{mine:02d}", status=12,
            local_gid=f"fe80::{mine}", remote_gid=f"fe80::{far}",
        )  # fmt: skip

    said = run([*world(16), between(1, 3), between(2, 3), between(3, 2)])
    assert told(said)[0] == ("suspected", "accuses", "ib-link", "link:train03/None")


def test_flushed_work_is_an_echo() -> None:
    said = run(
        [*world(16), unreachable("train01", "train02", 5), unreachable("train03", "train02", 5)]
    )
    assert told(said)[0][2] == "no-culprit"


def test_an_access_violation_names_its_own_host_and_no_part() -> None:
    event = line(
        NcclKind.IB_ASYNC, host="train02", hca="mlx5_0",
        message="local access violation work queue error",
    )  # fmt: skip
    said = run([*world(8), event, unreachable("train01", "train02", 9)])
    assert told(said) == [("insufficient", "blind", "ib-access", "job:4711.0")]
    assert said[0].domain.host == "train02"


def test_a_peer_that_is_lost_and_accuses_nobody_ended_first() -> None:
    def closed(reporter: str, peer: str) -> NcclRecord:
        return line(NcclKind.PEER_CLOSED, host=reporter, pid=1, peer=peer)

    said = run([*world(16), closed("train01", "train03<88>"), closed("train02", "train01<99>")])
    assert told(said) == [("insufficient", "blind", "peer-death", "job:4711.0")]
    assert said[0].domain.host == "train03"
    ring = run([*world(8), closed("train01", "train02<1>"), closed("train02", "train01<2>")])
    assert ring[0].domain.host is None
    own = run([*world(8), closed("train01", "127.0.0.1<1>"), closed("train02", "localRank 2")])
    assert own[0].domain.host is None


def test_a_lost_store_points_at_its_host_unless_rank_0_waited_itself() -> None:
    lost = [
        line(NcclKind.STORE_LOST, rank=rank, host=host(rank, 4), peer="[train01]:40027")
        for rank in range(4, 8)
    ]
    said = run([*world(8), *lost])
    assert (said[0].kind, said[0].domain.host) == ("store-lost", "train01")
    said = run([*world(8), *waits(range(8)), *lost])
    assert said[0].kind == "all-joined"


def test_nvlink_sharp_failures_are_the_fabric_managers_and_no_cards() -> None:
    bind = "CUDA error 401. This is usually caused by an error in the Fabric Manager"
    said = run([*world(8), line(NcclKind.NVLS, host="train02", pid=5005, message=bind)])
    assert told(said)[0] == ("suspected", "accuses", "fabric-manager", "node:train02")
    plain = line(NcclKind.NVLS, host="train02", message="Cuda failure 1 'invalid argument'")
    assert told(run([*world(8), plain])) == [
        ("insufficient", "blind", "fabric-manager", "job:4711.0")
    ]


def test_an_nvlink_fault_seen_by_many_is_the_domain_of_the_first() -> None:
    words = "CUDA_ERROR_CONTAINED: Invalid access of peer GPU memory over nvlink"
    faults = [
        line(NcclKind.CUDA_ERROR, STALL + timedelta(milliseconds=40 * n), rank=(9 + n) % 16,
             host=host((9 + n) % 16, 4), message=words)
        for n in range(16)
    ]  # fmt: skip
    said = run(world(16) + faults)
    assert told(said)[0] == ("suspected", "accuses", "nvlink-error", "node:train03")
    assert said[0].cause is Cause.NVLINK


@pytest.mark.parametrize(
    "kind",
    [NcclKind.WATCHDOG_STUCK, NcclKind.REMOTE_ERROR, NcclKind.ABORTED, NcclKind.STORE_CLIENTS],
)
def test_a_symptom_that_names_nobody_is_said_once_as_undecided(kind: NcclKind) -> None:
    records = [line(kind, rank=rank, host=host(rank, 4)) for rank in range(8)]
    said = run(world(8) + records)
    assert told(said) == [("insufficient", "blind", "no-culprit", "job:4711.0")]
    assert "settled by" in said[0].reason


@pytest.mark.parametrize("kind", [NcclKind.OTHER, NcclKind.WARN, NcclKind.UNREADABLE])
def test_lines_without_meaning_leave_the_same_state(kind: NcclKind) -> None:
    state = JobState()
    assert step(state, Arrived("nccl", line(kind), T0, offset=4), RULES) == (state, [])
    assert step(state, Arrived("nccl", line(kind), T0), RULES)[0] is state
    assert step(state, Arrived("nccl", Tick(id="t", at=T0), T0), RULES)[0] is state
