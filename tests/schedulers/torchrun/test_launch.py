"""Command lines of agents, and what isolations make of a node's cards."""

import os
import socket
from datetime import UTC, datetime
from typing import Any

import pytest

from evidence.decisions import Domain, DomainKind, Level
from evidence.records import Mig
from schedulers.torchrun.cards import Card, listed, used
from schedulers.torchrun.launch import Launch
from schedulers.torchrun.memory import Mark
from schedulers.torchrun.plan import needed, plan
from schedulers.torchrun.processes import listens

_LINE = (
    "torchrun", "--nnodes=2:4", "--nproc-per-node", "8", "--rdzv-backend=c10d", "--rdzv-endpoint",
    "ctl-1:29500", "--rdzv_id=llama", "--rdzv-conf=is_host=0,last_call_timeout=5",
    "--max-restarts=3", "-m", "train.main", "--nproc-per-node", "2", "--rdzv-id=other",
)  # fmt: skip


def test_an_agents_own_options_are_told_from_its_scripts() -> None:
    launch = Launch(_LINE)
    assert (launch.job, launch.workers, launch.endpoint) == ("llama", 8, ("ctl-1", 29500))
    assert launch.conf == {"is_host": "0", "last_call_timeout": "5"}
    assert list(launch.warnings()) == []


@pytest.mark.parametrize(
    ("front", "given"),
    [
        (("torchrun",), ("--nproc_per_node=8",)),
        (("numactl", "-N", "0", "/opt/bin/torchrun"), ("--nproc-per-node", "8")),
        (("python3", "-m", "torch.distributed.run"), ("--nproc_per_node", "8")),
    ],
)
def test_the_number_of_workers_is_rewritten_where_it_stands(
    front: tuple[str, ...], given: tuple[str, ...]
) -> None:
    launch = Launch((*front, "--nnodes=2:4", *given, "train.py", "--nproc_per_node=8"))
    name = given[0].partition("=")[0]
    shrunk = (*front, "--nnodes=2:4", f"{name}=7", "train.py", "--nproc_per_node=8")
    assert launch.with_workers(7).argv == shrunk


def test_workers_that_torch_counts_are_not_rewritten_and_a_variables_are() -> None:
    counted = Launch(("torchrun", "--nproc-per-node=gpu", "train.py"))
    assert counted.with_workers(7) == counted
    told = Launch(("torchrun", "train.py"), {"PET_NPROC_PER_NODE": "8"})
    assert told.with_workers(7).argv == ("torchrun", "--nproc_per_node=7", "train.py")


def test_what_would_end_the_job_or_slow_it_is_warned_of() -> None:
    words = "\n".join(Launch(("torchrun", "--rdzv_endpoint=localhost:29500", "t.py")).warnings())
    for part in ("no range", "max-restarts is 0", "static", "store is on this node", "30 s"):
        assert part in words


def test_who_holds_the_store_is_seen_by_its_socket() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
        assert not listens([os.getpid()], port)
        one.listen()
        assert listens([os.getpid()], port)
        assert not listens([os.getppid()], port)


CARDS = tuple(Card(n, f"GPU-{n}aa", f"0000:{0x1A + n:02x}:00") for n in range(4))


def test_cards_are_read_from_what_nvidia_smi_prints_and_noise_is_passed_over() -> None:
    text = (
        r"1, GPU-1aa, 00000000:1B:00.0\n0, GPU-0aa, 00000000:1A:00.0\nNo devices\n2, GPU-2aa, ?\n"
    )
    assert listed(f"printf '{text}'") == CARDS[:2]
    assert listed("/no/such/program") == ()
    assert listed("") == ()


@pytest.mark.parametrize(
    ("visible", "indices"),
    [(None, [0, 1, 2, 3]), ("2,0", [2, 0]), ("GPU-1", [1]), ("1,9,2", [1]), ("", []), ("-1", [])],
)
def test_a_job_uses_the_cards_that_cuda_shows_it(visible: str | None, indices: list[int]) -> None:
    assert [one.index for one in used(CARDS, visible)] == indices


def _mark(level: Level = Level.EVICT, **domain: Any) -> Mark:
    plain: dict[str, Any] = {"kind": DomainKind.GPU, "host": "h", "pci": "0000:1b:00"}
    one = Domain(**plain | domain)
    now = datetime(2026, 11, 3, tzinfo=UTC)
    return Mark(
        command="c", domain=one, domain_id=one.id, generation=1, level=level, reason="", at=now
    )


@pytest.mark.parametrize(
    "mark",
    [
        _mark(),
        _mark(pci=None, uuid="GPU-1aa"),
        _mark(pci=None, index=1),
        _mark(kind=DomainKind.MIG, mig=Mig(gi=3)),
        _mark(kind=DomainKind.NVLINK, link=4),
    ],
    ids=lambda mark: mark.domain_id,
)
def test_a_card_or_a_part_of_one_takes_out_the_card_where_the_job_may_shrink(mark: Mark) -> None:
    assert plan([mark], CARDS, CARDS, shrink=True).without == {"GPU-1aa": mark}
    assert plan([mark], CARDS, CARDS, shrink=False).out == (mark,)
    assert plan([mark], CARDS, CARDS[1:2], shrink=True).out == (mark,)
    assert plan([mark], CARDS, CARDS[2:], shrink=False) == plan([], CARDS, CARDS, shrink=False)


@pytest.mark.parametrize(
    "mark",
    [
        _mark(kind=DomainKind.NODE),
        _mark(kind=DomainKind.LINK, port=3),
        _mark(kind=DomainKind.RACK, rack="r1"),
        _mark(pci="0000:99:00"),
        _mark(pci="0000:99:00", index=1),
    ],
    ids=lambda mark: mark.domain_id,
)
def test_what_is_no_known_card_takes_the_node_out(mark: Mark) -> None:
    assert plan([mark], CARDS, CARDS, shrink=True).out == (mark,)


def test_an_agent_stops_for_what_it_uses_and_by_the_hardest_level() -> None:
    cordon, drain, evict = _mark(Level.CORDON), _mark(Level.DRAIN), _mark(Level.EVICT)

    def need(*marks: Mark, left_out: frozenset[str] = frozenset(), rejoin: bool = False) -> Any:
        return needed(plan(marks, CARDS, CARDS, shrink=True), left_out, rejoin=rejoin)

    gone = frozenset({"GPU-1aa"})
    assert need(cordon) is None
    assert need(cordon, drain) is Level.DRAIN
    assert need(drain, evict) is Level.EVICT
    assert need(evict, drain) is Level.EVICT
    assert need(evict, left_out=gone) is None
    assert need(left_out=gone) is None
    assert need(left_out=gone, rejoin=True) is Level.DRAIN
