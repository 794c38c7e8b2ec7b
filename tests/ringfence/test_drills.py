"""Drills without a broker: their files, the lines that break something, the guard, the undoing."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evidence.decisions import (
    Ack,
    AckStatus,
    Action,
    Cause,
    Command,
    DesiredState,
    Domain,
    DomainKind,
    Hold,
    Level,
    Status,
    Verdict,
)
from evidence.records import (
    ContextKind,
    ContextRecord,
    DrillOutcome,
    DrillRecord,
    InventoryRecord,
)
from ringfence.drills.config import DrillConfig
from ringfence.drills.course import Course
from ringfence.drills.guard import Asked, place
from ringfence.drills.lines import lines
from ringfence.drills.plan import DrillError, Plan, load
from ringfence.drills.scene import Scene
from ringfence.drills.telling import complete
from ringfence.drills.undo import Undo, UndoFile, call, left_over
from ringfence.drills.watchers import FileWatcher, ProgramWatcher
from rules.policy import Mode
from rules.policy import load as load_policy

SHIPPED = Path(__file__).parents[2] / "deploy" / "drills"
NOW = datetime(2026, 9, 2, 10, 30, tzinfo=UTC)  # a Wednesday
HOST, POOL = "dgx-41.yard.example", "yard"
VALUES = {"host": HOST, "short": "dgx-41", "pool": POOL, "id": "d1"}

MINIMAL = """
name = "unplug"
[inject]
action = "program"
inject = ["true"]
[expect]
status = ["localized"]
domain = ["gpu"]
command = "isolate"
"""


def plan_of(folder: Path, text: str = MINIMAL, **given: str) -> Plan:
    path = folder / "unplug.toml"
    path.write_text(text)
    return load("unplug", folder, given)


# --- Files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.toml")), ids=lambda path: path.stem)
def test_every_shipped_drill_is_read_and_has_lines_that_a_shell_takes(path: Path) -> None:
    plan = load(str(path), Path(), {})
    made = lines(plan, plan.values | VALUES)
    for line in (made.inject, made.undo or "true"):
        subprocess.run(["sh", "-n", "-c", line], check=True)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("name = ", "cannot be read"),
        (MINIMAL.replace('"true"', '"touch", "{hots}"'), "names {hots}"),
        (MINIMAL.replace('"true"', '"awk", "{print}{"'), "a brace that is meant"),
        (MINIMAL + 'colour = "red"\n', "colour"),
        (MINIMAL.replace("localized", "sure"), "'sure'"),
        (MINIMAL + 'cause = ["gremlins"]\n', "'gremlins' is none of"),
        (MINIMAL + "quiet_s = 900\n", "quiet_s"),
        (MINIMAL + '[values]\nhost = "x"\n', "'host' is a word of ours"),
    ],
)
def test_a_wrong_file_is_refused_with_one_sentence(tmp_path: Path, wrong: str, says: str) -> None:
    with pytest.raises(DrillError, match=says):
        plan_of(tmp_path, wrong)


def test_values_are_given_by_name_and_only_those_that_the_file_has(tmp_path: Path) -> None:
    text = MINIMAL + '[values]\npci = "0000:1b:00"\n'
    assert plan_of(tmp_path, text, pci="0000:c3:00").values == {"pci": "0000:c3:00"}
    with pytest.raises(DrillError, match="no value 'pcie'"):
        plan_of(tmp_path, text, pcie="x")
    with pytest.raises(DrillError, match="There is no drill 'absent'"):
        load("absent", tmp_path, {})


# --- What breaks something, carried out for real on this machine ---------------------------------


def inject(tmp_path: Path, words: str, **values: str) -> tuple[str, str | None]:
    text = f'name = "x"\n[inject]\n{words}\n[expect]\nstatus = ["localized"]\n'
    (tmp_path / "x.toml").write_text(text)
    made = lines(load("x", tmp_path, {}), VALUES | values)
    return made.inject, made.undo


def test_a_lost_card_is_one_marked_line_of_the_kernel_and_a_note_that_it_is_over(
    tmp_path: Path,
) -> None:
    log = tmp_path / "kern it's.log"
    log.write_text("boot\n")
    given = f'action = "lose-gpu"\npci = "00000000:C3:00.0"\nkernel_log = "{log}"'
    done, undo = inject(tmp_path, given)
    call(("sh", "-c"), done)
    assert undo is not None
    call(("sh", "-c"), undo)
    first, lost, over = log.read_text().splitlines()
    assert first == "boot"
    stamp, host, source, *said = lost.split(" ")
    assert datetime.now(UTC) - datetime.fromisoformat(stamp) < timedelta(minutes=1)
    assert (host, source) == ("dgx-41", "kernel:")
    assert " ".join(said) == (
        "NVRM: Xid (PCI:0000:c3:00): 79, pid='<unknown>', name=<unknown>, "
        "GPU has fallen off the bus. (ringfence drill d1)"
    )
    assert over.endswith("the drill d1 is over, 0000:c3:00 never left the bus")


def test_a_card_lost_in_the_stand_in_comes_back_as_it_was_however_often(tmp_path: Path) -> None:
    control = tmp_path / "nvml.txt"
    before = "present = 0,1\ngpu.1.all = \ngpu.11.all = x\n"
    control.write_text(before)
    done, undo = inject(tmp_path, f'action = "lose-gpu"\nslot = 1\nnvml_control = "{control}"')
    call(("sh", "-c"), done)
    assert control.read_text() == "present = 0,1\ngpu.11.all = x\ngpu.1.all = !15\n"
    for _ in range(2):
        call(("sh", "-c"), undo or "")
        assert control.read_text() == before


def test_a_process_is_stopped_and_goes_on_by_its_pattern_or_its_file(tmp_path: Path) -> None:
    script = tmp_path / "agent-of-this-test"
    script.write_text("import time\nwhile True:\n    time.sleep(0.1)\n")
    process = subprocess.Popen([sys.executable, str(script)])

    def state() -> str:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def until(letters: str) -> None:
        deadline = time.monotonic() + 10
        while state() not in letters:
            assert time.monotonic() < deadline, state()
            time.sleep(0.02)

    try:
        (tmp_path / "pid").write_text(f"{process.pid}\n")
        for how in (f'pattern = "{script}"', f'pid_file = "{tmp_path}/pid"'):
            done, undo = inject(tmp_path, f'action = "stop-agent"\n{how}')
            call(("sh", "-c"), done)
            until("T")
            call(("sh", "-c"), undo or "")
            until("SR")
        done, undo = inject(tmp_path, f'action = "kill-rank"\npattern = "{script}"')
        assert undo is None
        call(("sh", "-c"), done)
        assert process.wait(10) == -signal.SIGKILL
        with pytest.raises(DrillError, match="ended with"):
            call(("sh", "-c"), done)  # nobody is there any more, not even the shell itself
    finally:
        process.kill()
        process.wait()


def test_a_link_is_cut_at_the_simulators_console(tmp_path: Path) -> None:
    console = tmp_path / "console"
    words = f'action = "cut-link"\nconsole = "{console}"\nnode = "S-506b4b0300a10040"\nport = 7'
    done, undo = inject(tmp_path, words)
    call(("sh", "-c"), done)
    assert console.read_text() == 'Unlink "S-506b4b0300a10040"[7]\n'
    call(("sh", "-c"), undo or "")
    assert console.read_text() == 'ReLink "S-506b4b0300a10040"[7]\n'


def test_words_of_a_file_cannot_become_commands_of_the_shell(tmp_path: Path) -> None:
    made = inject(
        tmp_path, 'action = "program"\ninject = ["touch", "{host}"]', host=f"x; touch {tmp_path}/no"
    )[0]
    subprocess.run(["sh", "-c", made], check=False, cwd=tmp_path, capture_output=True)
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    "words",
    [
        'action = "kill-rank"',
        'action = "kill-rank"\npattern = ".*"',
        'action = "kill-rank"\npattern = "x"\npid_file = "y"',
        'action = "lose-gpu"\npci = "3b"\nkernel_log = "x"',
        'action = "lose-gpu"\nslot = 1',
        'action = "cut-link"\nconsole = "x"\nnode = "S-1\\" x"\nport = 1',
        'action = "program"',
    ],
)
def test_an_action_that_lacks_something_is_refused(tmp_path: Path, words: str) -> None:
    with pytest.raises(DrillError):
        inject(tmp_path, words)


# --- The guard ----------------------------------------------------------------------------------


def allocation(**fields: Any) -> ContextRecord:
    plain: dict[str, Any] = {
        "id": "a1", "host": HOST, "observed_at": NOW, "kind": ContextKind.ALLOCATION,
        "at": NOW - timedelta(hours=1), "job": "811", "owner": "drill",
    }  # fmt: skip
    return ContextRecord(**plain | fields)


def isolation(domain: Domain, **fields: Any) -> Command:
    plain: dict[str, Any] = {
        "id": "c0", "action": Action.ISOLATE, "domain": domain, "domain_id": domain.id,
        "level": Level.DRAIN, "cause": Cause.GPU_LOST, "reason": "off the bus", "incident": "i0",
        "generation": 0, "issued_at": NOW - timedelta(minutes=5),
    }  # fmt: skip
    return Command(**plain | fields)


def out(domain: Domain) -> DesiredState:
    hold = Hold(id="i0", cause=Cause.GPU_LOST, by="ringfence", at=NOW)
    return DesiredState(
        id="s", domain_id=domain.id, domain=domain, at=NOW, generation=0, isolated=True,
        holds=(hold,),
    )  # fmt: skip


def earlier(**fields: Any) -> DrillRecord:
    plain: dict[str, Any] = {
        "id": "d0", "drill": "unplug", "at": NOW - timedelta(minutes=20), "observed_at": NOW,
        "host": HOST, "by": "kim", "outcome": DrillOutcome.PASSED, "objective_s": 90.0,
        "injected_at": NOW - timedelta(minutes=20),
    }  # fmt: skip
    return DrillRecord(**plain | fields)


def scene(*more: Any, jobs: tuple[ContextRecord, ...] = (allocation(),)) -> Scene:
    made = Scene()
    for host in (HOST, "dgx-42.yard.example"):
        made.take(InventoryRecord(id=host, host=host, observed_at=NOW, pool=POOL))
    made.take(InventoryRecord(id="p", host="dgx-90", observed_at=NOW, pool="production"))
    for record in (*jobs, *more):
        made.take(record)
    return made


SHADOW = load_policy()
ENFORCE = replace(SHADOW, mode=Mode.ENFORCE)
CARD = Domain(kind=DomainKind.GPU, host=HOST, pci="0000:c3:00")
ASKED = Asked(host=HOST, owners=("drill",), yes=True)


def config(**fields: Any) -> DrillConfig:
    return DrillConfig(**{"state_dir": Path("x"), "pools": (POOL,)} | fields)


def test_a_drill_runs_where_nothing_speaks_against_it(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    assert place(plan, config(), scene(), ENFORCE, ASKED, NOW) == (HOST, POOL)
    # Yes is needed only where something is carried out.
    shadowed = replace(ASKED, yes=False)
    assert place(plan, config(), scene(), SHADOW, shadowed, NOW) == (HOST, POOL)
    # Whatever was is over: an ended job, a drain that ended, an old drill, a release.
    over = (
        allocation(id="a2", job="7", owner="lee", ended=True),
        allocation(kind=ContextKind.DRAIN, until=NOW - timedelta(minutes=1)),
        earlier(at=NOW - timedelta(hours=2)),
        out(CARD),
        msgspec.structs.replace(out(CARD), isolated=False, holds=()),
        isolation(CARD, issued_at=NOW - timedelta(hours=2)),
    )
    assert place(plan, config(), scene(*over), ENFORCE, ASKED, NOW) == (HOST, POOL)


_OTHER = Domain(kind=DomainKind.NODE, host="dgx-42.yard.example")
_FAR = Domain(kind=DomainKind.NODE, host="dgx-90")


@pytest.mark.parametrize(
    ("given", "more", "asked", "says"),
    [
        ({"pools": ()}, (), {}, r"\[drill\] pools does not name yard"),
        ({"hours": "11:00-17:00"}, (), {}, "it is Wed 10:30 UTC, outside"),
        ({"days": ("sat",)}, (), {}, "outside the allowed days"),
        ({}, (), {"yes": False}, "the mode of the pool is enforce: .* say --yes"),
        ({}, (), {"owners": ()}, "job 811 of drill runs there"),
        ({}, (allocation(id="a2", job="9", owner="lee"),), {}, "job 9 of lee runs there"),
        ({}, (out(CARD),), {}, "gpu:.* is isolated already"),
        ({}, (out(_OTHER),), {}, "node:dgx-42.* is isolated already"),
        ({}, (isolation(CARD, held="over it"),), {}, "waits for a person: over it"),
        ({}, (isolation(_FAR),), {}, "the budget would hold the drill's command"),
        ({}, (earlier(),), {}, "1 within this hour"),
        (
            {"most_an_hour": 9},
            (earlier(outcome=DrillOutcome.RUNNING),),
            {},
            "runs on .*, or was killed",
        ),
        ({}, (allocation(kind=ContextKind.MAINTENANCE, by="kim"),), {}, "maintenance by kim"),
        ({}, (), {"pool": "production"}, "belongs to pool yard, not production"),
        ({}, (), {"host": "dgx-77"}, "No agent told which pool dgx-77"),
        ({}, (), {"host": None}, "needs --pool or --host"),
        ({}, (), {"host": None, "pool": "lab"}, "No agent told that its host belongs to pool lab"),
    ],
)
def test_a_drill_is_refused(tmp_path: Path, given: Any, more: Any, asked: Any, says: str) -> None:
    with pytest.raises(DrillError, match=says):
        place(
            plan_of(tmp_path), config(**given), scene(*more), ENFORCE, replace(ASKED, **asked), NOW
        )


def test_a_pool_where_nobody_tells_of_jobs_is_not_taken_for_idle(tmp_path: Path) -> None:
    plan, silent = plan_of(tmp_path), scene(jobs=())
    with pytest.raises(DrillError, match="no scheduler told which jobs run where"):
        place(plan, config(), silent, ENFORCE, ASKED, NOW)
    assert place(plan, config(blind=True), silent, ENFORCE, ASKED, NOW) == (HOST, POOL)


def test_of_a_pool_the_first_host_is_taken_that_may_be_hit(tmp_path: Path) -> None:
    taken = scene(allocation(id="a2", job="9", owner="lee"))
    asked = replace(ASKED, host=None, pool=POOL)
    found = place(plan_of(tmp_path), config(), taken, ENFORCE, asked, NOW)
    assert found == ("dgx-42.yard.example", POOL)


def test_hours_may_go_over_midnight() -> None:
    night = config(hours="22:00-04:30")
    assert [night.allows(NOW.replace(hour=hour)) for hour in (21, 22, 3, 4, 12)] == [
        False, True, True, False, False,
    ]  # fmt: skip
    with pytest.raises(ValueError, match="is not like"):
        config(hours="9-17")


# --- The course and the record ------------------------------------------------------------------


def verdict(incident: str = "i1", **fields: Any) -> Verdict:
    plain: dict[str, Any] = {
        "id": f"v-{incident}", "incident": incident, "revision": 1, "at": NOW, "decided_at": NOW,
        "status": Status.LOCALIZED, "cause": Cause.GPU_LOST, "domain": CARD, "confidence": 1.0,
        "reason": "off the bus", "host": HOST,
    }  # fmt: skip
    return Verdict(**plain | fields)


def ack(command: str, status: AckStatus = AckStatus.DONE) -> Ack:
    return Ack(
        id=f"k{command}", command=command, domain_id=CARD.id, at=NOW, scheduler="slurm",
        status=status,
    )  # fmt: skip


def finished(course: Course, **fields: Any) -> DrillRecord:
    return complete(earlier(**fields), course, [], aborted=False)


def test_an_ack_that_is_read_before_its_command_counts_when_that_comes(tmp_path: Path) -> None:
    course = Course(HOST, plan_of(tmp_path), frozenset({"i-old"}))
    for at_s, record in enumerate(
        (
            verdict("i-old"),
            verdict(status=Status.SUSPECTED),
            verdict(),
            ack("c1"),
            isolation(CARD, id="c1", incident="i1"),
            isolation(CARD, id="c2", action=Action.RELEASE),
            ack("c2"),
        )
    ):
        course.take(record, float(at_s))
    assert course.seen_s == {"verdict": 2, "command": 4, "ack": 4, "release": 5, "released": 6}
    record = finished(course)
    assert (record.outcome, record.differed, record.detected_s) == (DrillOutcome.PASSED, (), 2.0)
    assert (record.incident, record.command, record.release) == ("i1", "c1", "c2")


def test_too_late_is_missed_and_never_too(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, MINIMAL + '[recovery]\ntraining = ["true"]\n')
    for took_s, outcome in ((90.0, "passed"), (90.5, "missed"), (None, "missed")):
        course = Course(HOST, plan)
        course.take(verdict(), 1)
        course.take(isolation(CARD, id="c1", incident="i1"), 1)
        course.take(ack("c1"), 2)
        if took_s is not None:
            course.see("training", took_s)
        record = finished(course)
        assert (record.outcome, record.recovered_s) == (outcome, took_s)
        assert bool(record.differed) is (outcome == "missed")


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ((), "no verdict localized gpu, isolate"),
        ((verdict(status=Status.SUSPECTED),), "no verdict"),
        ((verdict(),), "no command"),
        ((verdict(), isolation(CARD, id="c1", incident="i1")), "no scheduler answered"),
        ((verdict(), isolation(CARD, id="c1", incident="i1", held="budget")), "held: budget"),
        ((verdict(), isolation(CARD, id="c1", incident="i1", dry_run=True)), "mode is shadow"),
        (
            (verdict(), isolation(CARD, id="c1", incident="i1"), ack("c1", AckStatus.REFUSED)),
            "slurm answered refused",
        ),
        (
            (
                verdict(), isolation(CARD, id="c1", incident="i1"), ack("c1"),
                isolation(Domain(kind=DomainKind.NODE, host=HOST), id="c9", incident="i9"),
            ),
            "a command about node:",
        ),
    ],
)  # fmt: skip
def test_what_differs_is_said(tmp_path: Path, records: Any, says: str) -> None:
    course = Course(HOST, plan_of(tmp_path))
    for record in records:
        course.take(record, 1.0)
    told = finished(course)
    assert told.outcome is DrillOutcome.DIFFERED
    assert says in told.differed[0]


def test_a_command_where_none_may_come_differs(tmp_path: Path) -> None:
    course = Course(HOST, plan_of(tmp_path, MINIMAL.replace('"isolate"', '"none"')))
    course.take(verdict(), 1.0)
    assert finished(course).outcome is DrillOutcome.PASSED
    course.take(isolation(CARD, id="c1", incident="i1"), 2.0)
    assert finished(course).differed == (f"a command about {CARD.id}: off the bus",)


# --- Undoing and looking ------------------------------------------------------------------------


def test_only_what_a_dead_process_left_is_undone_by_others(tmp_path: Path) -> None:
    record = earlier(outcome=DrillOutcome.RUNNING)
    undo = Undo(record, ("sh", "-c"), f"echo undone >> {tmp_path}/log")
    with UndoFile.write(tmp_path / "drills", undo) as file:
        file.isolated(CARD.id)
        assert list(left_over(tmp_path / "drills")) == []
    # A process that is killed lets go of the lock, as the end of the block did.
    for one in left_over(tmp_path / "drills"):
        assert one.undo == msgspec.structs.replace(undo, release=CARD.id)
        one.make_undone()
        one.forget()
    assert (tmp_path / "log").read_text() == "undone\n"
    assert list(left_over(tmp_path / "drills")) == []


def test_a_file_that_was_cut_off_is_read_as_what_it_was_before(tmp_path: Path) -> None:
    with UndoFile.write(tmp_path, Undo(earlier(), ("sh", "-c"), "true")) as file:
        file.isolated(CARD.id)
    (path,) = tmp_path.glob("*.json")
    path.write_bytes(path.read_bytes()[:-5])
    assert [one.undo.release for one in left_over(tmp_path)] == [None]
    path.write_bytes(b'{"record": {"sch')
    assert list(left_over(tmp_path)) == []
    assert not path.exists()


def look_until(watcher: Any, wanted: bool) -> None:
    deadline = time.monotonic() + 10
    while watcher.look() is not wanted:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_program_says_yes_and_no_and_nothing(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    watcher = ProgramWatcher(["sh", "-c", f"test -e {flag}"])
    look_until(watcher, False)
    flag.touch()
    look_until(watcher, True)
    watcher.stop()
    failing = ProgramWatcher(["sh", "-c", "exit 2"])
    missing = ProgramWatcher([str(tmp_path / "none")])
    ends = time.monotonic() + 1
    while time.monotonic() < ends:
        assert failing.look() is None
        assert missing.look() is None
        time.sleep(0.02)


def test_a_file_counts_as_training_when_it_moved_on_often_enough(tmp_path: Path) -> None:
    steps = tmp_path / "steps"
    watcher = FileWatcher(steps, 2)
    look_until(watcher, False)
    for number in range(3):
        time.sleep(0.12)
        assert watcher.look() is False, number  # the first content is where it stood
        steps.write_text(f"step {number}\n")
    look_until(watcher, True)
    os.truncate(steps, 0)
    assert watcher.look() is not False
