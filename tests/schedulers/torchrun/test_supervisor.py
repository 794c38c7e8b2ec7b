"""One node's supervisor with a stand-in for torchrun: what each command makes of its agent."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from evidence.decisions import (
    AckStatus,
    Action,
    Cause,
    Command,
    DesiredState,
    Domain,
    DomainKind,
    Hold,
    Level,
)
from schedulers.budget import Limits
from schedulers.torchrun.adapter import TorchrunAdapter
from schedulers.torchrun.config import TorchrunConfig
from schedulers.torchrun.launch import Launch
from schedulers.torchrun.memory import Memory
from schedulers.torchrun.supervisor import EVICTED, Supervisor

HOST = "hgx-07"
_STAND_IN = str(Path(__file__).with_name("stand_in.py"))
_UUIDS = [f"GPU-{number:08x}-1c7e-4f0a-b1d2-9e3c5a7f{number:04d}" for number in range(4)]
_LIST = "".join(
    f"{number}, {uuid}, 00000000:{0x1A + number:02X}:00.0\n" for number, uuid in enumerate(_UUIDS)
)


def alive(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


@dataclass
class Node:
    """A supervisor that runs in a thread, and what it is told."""

    folder: Path
    config: TorchrunConfig
    environ: dict[str, str]
    code: int | None = None
    supervisor: Any = None
    adapter: Any = None
    memory: Any = None
    thread: Any = None

    def start(self, mode: str = "well", **settings: Any) -> "Node":
        config = replace(self.config, **settings)
        torchrun = self.folder / "torchrun"
        torchrun.write_text(f'#!/bin/sh\nexec {sys.executable} {_STAND_IN} "$@"\n')
        torchrun.chmod(0o755)
        flags = ("--nproc_per_node=4", "--rdzv_id=j7", "train.py", "--nproc_per_node=9")
        launch = Launch((str(torchrun), *flags), self.environ)
        self.memory = Memory(self.folder / "state", "torchrun")
        environ = self.environ | {"MODE": mode}
        self.supervisor = Supervisor(config, launch, self.memory, environ, f"test-{self.folder}")
        self.adapter = TorchrunAdapter(self.supervisor)
        self.code = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        return self

    def _run(self) -> None:
        self.supervisor.clean()
        self.code = self.supervisor.run()

    def starts(self) -> list[dict[str, Any]]:
        path = self.folder / "starts"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def started(self, times: int = 1) -> dict[str, Any]:
        self.until(lambda: len(self.starts()) == times, f"{times} starts")
        return self.starts()[-1]

    def until(self, done: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + 20
        while not done():
            assert time.monotonic() < deadline, what
            time.sleep(0.02)

    def ended(self) -> int | None:
        self.thread.join(20)
        assert not self.thread.is_alive()
        self.memory.close()
        return self.code

    def stop(self) -> None:
        (self.folder / "end").touch()
        self.supervisor.config = replace(self.supervisor.config, rejoin=False)
        self.thread.join(20)
        self.memory.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    (tmp_path / "cards").write_text(_LIST)
    config = TorchrunConfig(host=HOST, cards=f"cat {tmp_path / 'cards'}", stop_within_s=3.0)
    environ = {"FOLDER": str(tmp_path), "PATH": os.environ["PATH"]}
    one = Node(tmp_path, config, environ)
    yield one
    if one.thread is not None and one.thread.is_alive():
        one.stop()


NODE = Domain(kind=DomainKind.NODE, host=HOST)
OTHER = Domain(kind=DomainKind.NODE, host="hgx-08")
CARD = Domain(kind=DomainKind.GPU, host=HOST, pci="0000:1b:00")


def ask(level: Level = Level.EVICT, domain: Domain = NODE, **fields: Any) -> Command:
    plain: dict[str, Any] = {
        "id": f"c-{level}",
        "action": Action.ISOLATE,
        "domain": domain,
        "domain_id": domain.id,
        "level": level,
        "cause": Cause.GPU_LOST,
        "reason": "GPU has fallen off the bus",
        "incident": "i1",
        "generation": 1,
        "issued_at": datetime.now(UTC),
    }
    return Command(**plain | fields)


def give_back(domain: Domain = NODE) -> Command:
    return ask(domain=domain, id="r", action=Action.RELEASE, generation=2)


def test_the_agents_exit_code_is_ours_and_its_worker_does_not_outlive_it(node: Node) -> None:
    node.environ["CODE"] = "7"
    told = node.start("careless").started()
    node.until(lambda: node.supervisor.agent is not None, "the agent is known")
    time.sleep(0.3)
    (node.folder / "end").touch()
    assert node.ended() == 7
    assert not alive(told["worker"])
    assert told["share"] == "1"


def test_a_cordon_leaves_the_agent_alone_and_the_next_start_out(node: Node) -> None:
    told = node.start().started()
    outcome = node.adapter.apply(ask(Level.CORDON))
    assert outcome.status is AckStatus.DONE
    assert outcome.detail == (
        "the running agent goes on; the agent is not started again until a release"
    )
    time.sleep(0.3)
    assert alive(told["pid"])
    (node.folder / "end").touch()
    assert node.ended() == 0
    assert node.start().ended() == EVICTED
    assert len(node.starts()) == 1


def test_an_evicted_agent_ends_with_its_worker_and_is_not_started_again(node: Node) -> None:
    told = node.start().started()
    outcome = node.adapter.apply(ask())
    assert outcome.status is AckStatus.DONE
    assert outcome.detail.endswith(
        "(evicted); node:hgx-07 keeps the node out; nothing starts it here"
    )
    assert not alive(told["pid"])
    assert not alive(told["worker"])
    assert node.ended() == EVICTED
    assert node.start().ended() == EVICTED
    assert len(node.starts()) == 1


@pytest.mark.parametrize("mode", ["stubborn", "careless"])
def test_what_does_not_end_when_told_to_is_killed_whole(node: Node, mode: str) -> None:
    told = node.start(mode, stop_within_s=0.5).started()
    assert node.adapter.apply(ask()).status is AckStatus.DONE
    assert not alive(told["pid"])
    assert not alive(told["worker"])


def test_an_evict_sent_twice_is_done_twice_and_stops_once(node: Node) -> None:
    node.start(rejoin=True).started()
    first, second = node.adapter.apply(ask()), node.adapter.apply(ask())
    assert (first.status, second.status) == (AckStatus.DONE, AckStatus.DONE)
    assert second.detail == "no agent runs here; the agent is not started again until a release"
    assert [one.command for one in node.memory.marks] == ["c-evict"]


def test_a_release_starts_the_agent_again_where_it_may_rejoin(node: Node) -> None:
    node.start(rejoin=True).started()
    node.adapter.apply(ask())
    (node.folder / "end").unlink(missing_ok=True)
    assert node.adapter.apply(give_back()).detail == "the agent was started again"
    node.started(2)
    assert node.adapter.observe().standing == ()
    (record,) = replace_allocation(node)
    assert (record.job, record.attempt, record.host) == ("j7", 1, HOST)


def replace_allocation(node: Node) -> Any:
    node.adapter._config = replace(node.adapter._config, allocation=True)
    return node.adapter.observe().context


def test_a_release_of_one_reason_leaves_the_other(node: Node) -> None:
    node.start(rejoin=True).started()
    node.adapter.apply(ask())
    node.adapter.apply(ask(domain=CARD, id="c2"))
    said = node.adapter.apply(give_back())
    assert said.detail == f"the node stays out for {CARD.id}"
    assert [one.command for one in node.adapter.observe().standing] == ["c2"]
    assert len(node.starts()) == 1


def test_a_drain_waits_for_a_file_that_is_new_and_still(node: Node) -> None:
    glob = str(node.folder / "*.pt")
    (node.folder / "old.pt").write_text("x")
    told = node.start(
        checkpoint_glob=glob, checkpoint_settle_s=0.4, checkpoint_signal="USR1"
    ).started()
    assert node.adapter.apply(ask(Level.DRAIN)).status is AckStatus.DONE
    node.until((node.folder / "asked").exists, "the worker is asked for a checkpoint")
    time.sleep(0.6)
    assert alive(told["pid"])
    (node.folder / "new.pt").write_text("x")
    assert node.ended() == EVICTED
    assert not alive(told["worker"])


def test_a_drain_without_a_checkpoint_ends_with_patience(node: Node) -> None:
    began = time.monotonic()
    node.start(checkpoint_glob=str(node.folder / "*.pt"), drain_patience_s=0.7).started()
    node.adapter.apply(ask(Level.DRAIN))
    assert node.ended() == EVICTED
    assert time.monotonic() - began >= 0.7
    assert "no checkpoint within 0.7 s" in node.supervisor.stopped


def test_a_hook_says_when_the_checkpoint_is_written(node: Node) -> None:
    hook = f"sh -c 'test $RINGFENCE_HOOK_JOB = j7 && touch {node.folder}/hooked'"
    node.start(checkpoint_hook=hook).started()
    node.adapter.apply(ask(Level.DRAIN))
    assert node.ended() == EVICTED
    assert (node.folder / "hooked").exists()
    assert "the hook says" in node.supervisor.stopped


def test_an_evict_does_not_wait_behind_a_drain_and_a_release_ends_one(node: Node) -> None:
    glob = str(node.folder / "*.pt")
    told = node.start(rejoin=True, checkpoint_glob=glob).started()
    node.adapter.apply(ask(Level.DRAIN))
    time.sleep(0.3)
    node.adapter.apply(give_back())
    (node.folder / "late.pt").write_text("x")
    time.sleep(1.6)
    assert alive(told["pid"])
    node.adapter.apply(ask(Level.DRAIN, id="c3", generation=3))
    assert node.adapter.apply(ask(id="c4", generation=3)).status is AckStatus.DONE
    assert not alive(told["pid"])


def test_one_card_is_the_node_unless_the_job_may_shrink(node: Node) -> None:
    node.start().started()
    node.adapter.apply(ask(domain=CARD))
    assert node.ended() == EVICTED


def test_a_job_that_may_shrink_goes_on_with_the_cards_that_are_left(node: Node) -> None:
    assert node.start(shrink=True).started()["cards"] is None
    outcome = node.adapter.apply(ask(domain=CARD))
    assert outcome.detail.endswith(f"it is started again without {_UUIDS[1]}")
    told = node.started(2)
    assert told["cards"] == ",".join([_UUIDS[0], *_UUIDS[2:]])
    script = ["train.py", "--nproc_per_node=9"]
    assert told["argv"] == ["--nproc_per_node=3", "--rdzv_id=j7", *script]


def test_a_card_that_comes_back_is_taken_at_a_checkpoint_where_the_job_may_rejoin(
    node: Node,
) -> None:
    node.start(shrink=True, rejoin=True).started()
    node.adapter.apply(ask(domain=CARD))
    node.started(2)
    said = node.adapter.apply(give_back(CARD))
    assert said.detail == "the running agent goes on; it has the card back at the next checkpoint"
    assert node.started(3)["cards"] is None


def test_a_card_that_the_job_may_not_use_stops_nothing(node: Node) -> None:
    node.environ["CUDA_VISIBLE_DEVICES"] = f"{_UUIDS[3]},0"
    node.start().started()
    outcome = node.adapter.apply(ask(domain=CARD))
    assert outcome.detail == "the running agent goes on; the job does not use this card"


def test_the_last_card_takes_the_node_with_it(node: Node) -> None:
    node.environ["CUDA_VISIBLE_DEVICES"] = "1"
    node.start(shrink=True).started()
    node.adapter.apply(ask(domain=CARD))
    assert node.ended() == EVICTED


def test_a_card_that_is_lost_to_the_driver_is_still_known(node: Node) -> None:
    node.start(shrink=True).started()
    (node.folder / "end").touch()
    assert node.ended() == 0
    (node.folder / "end").unlink()
    (node.folder / "cards").write_text(_LIST.splitlines(keepends=True)[0])
    node.start(shrink=True).started(2)
    node.adapter.apply(ask(domain=CARD))
    assert _UUIDS[1] not in node.started(3)["cards"]


def test_only_commands_for_this_host_or_its_rack_are_ours(node: Node) -> None:
    node.start(rack="r12")
    ours = [NODE, CARD, Domain(kind=DomainKind.RACK, rack="r12")]
    theirs = [
        Domain(kind=DomainKind.NODE, host="hgx-08"),
        Domain(kind=DomainKind.RACK, rack="r13"),
        Domain(kind=DomainKind.SWITCH, switch="0x248a0703009c0001"),
        Domain(kind=DomainKind.JOB, job="j7"),
    ]
    assert [node.adapter.concerns(ask(domain=one)) for one in ours] == [True] * 3
    assert [node.adapter.concerns(ask(domain=one)) for one in theirs] == [False] * 4


def _state(generation: int, level: Level | None, domain: Domain = NODE) -> dict[str, DesiredState]:
    now = datetime.now(UTC)
    hold = Hold(id="i1", cause=Cause.GPU_LOST, by="ringfence", at=now, reason="lost")
    return {
        domain.id: DesiredState(
            id=f"s{generation}",
            domain_id=domain.id,
            domain=domain,
            at=now,
            generation=generation,
            isolated=level is not None,
            level=level,
            holds=() if level is None else (hold,),
        )
    }


def test_what_was_commanded_while_we_were_away_follows_from_the_desired_states(node: Node) -> None:
    told = node.start(rejoin=True).started()
    node.adapter.reconcile(_state(1, Level.EVICT, OTHER), Limits())
    node.adapter.reconcile(_state(1, Level.EVICT), Limits(dry_run=True))
    node.adapter.reconcile(_state(1, Level.EVICT), Limits(at_most=Level.CORDON))
    time.sleep(0.3)
    assert alive(told["pid"])
    node.adapter.reconcile(_state(2, None), Limits())
    assert node.memory.marks == ()
    node.adapter.reconcile(_state(3, Level.EVICT), Limits())
    node.until(lambda: not alive(told["pid"]), "the agent is stopped")
    node.adapter.reconcile(_state(4, None), Limits())
    node.started(2)


def test_what_a_person_cleared_is_not_brought_back_by_the_state_of_then(tmp_path: Path) -> None:
    memory = Memory(tmp_path, "torchrun")
    config = TorchrunConfig(host=HOST, cards="")
    adapter = TorchrunAdapter(Supervisor(config, Launch(("x",)), memory, {}, "none"))
    adapter.reconcile(_state(4, Level.EVICT), Limits())
    memory.clear()
    adapter.reconcile(_state(4, Level.EVICT), Limits())
    assert memory.marks == ()
    adapter.reconcile(_state(6, Level.EVICT), Limits())
    assert [one.level for one in memory.marks] == [Level.EVICT]


def test_a_mark_that_cannot_be_kept_stops_nothing(node: Node) -> None:
    told = node.start().started()
    node.memory.path.with_suffix(".new").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        node.adapter.apply(ask())
    time.sleep(0.3)
    assert alive(told["pid"])
    assert node.memory.marks == ()


def test_what_an_agent_left_is_ended_before_the_next_starts(node: Node) -> None:
    told = node.start("careless").started()
    environ = dict(node.environ) | {"RINGFENCE_TORCHRUN": f"test-{node.folder}"}
    left = os.posix_spawn("/bin/sleep", ["sleep", "600"], environ, setsid=True)
    node.supervisor.config = replace(node.supervisor.config, stop_within_s=0.2)
    node.supervisor.clean()
    assert not alive(left)
    assert not alive(told["pid"])
