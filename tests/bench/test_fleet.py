"""The simulated fleet: its scenario files, what it writes, and how answers are counted."""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from evidence.decisions import Cause, DomainKind
from evidence.records import FabricRecord, GpuFrame, KernelKind, KernelRecord, NcclRecord

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))

from fleet.cast import Cast  # noqa: E402
from fleet.plant import Plant  # noqa: E402
from fleet.play import Played, play  # noqa: E402
from fleet.scenario import SAYINGS, Scenario, ScenarioError, load, load_all  # noqa: E402
from fleet.schedule import schedule  # noqa: E402

SCENARIOS = {one.name: one for one in load_all(ROOT / "bench" / "scenarios")}
PLANT = Plant(256, 7)


def cast_of(name: str, variant: str | None = None, seed: int = 5) -> Cast:
    (cast,) = schedule(PLANT, [SCENARIOS[name]], incidents=1, days=1, seed=seed)
    if variant is None:
        return cast
    (found,) = (one for one in cast.scenario.variant if one.name == variant)
    return replace(cast, variant=found)


def kernel_of(played: Played) -> list[KernelRecord]:
    return [one.record for one in played.records if isinstance(one.record, KernelRecord)]


def nccl_of(played: Played) -> list[NcclRecord]:
    return [one.record for one in played.records if isinstance(one.record, NcclRecord)]


def frames_of(played: Played, host: str) -> list[GpuFrame]:
    frames = [one.record for one in played.records if isinstance(one.record, GpuFrame)]
    return [frame for frame in frames if frame.host == host]


# --- Scenario files. ---------------------------------------------------------------------------


def test_there_are_faults_of_every_cause_and_chatter_with_sources_and_weights() -> None:
    faults = [one for one in SCENARIOS.values() if one.group == "fault"]
    chatter = [one for one in SCENARIOS.values() if one.group == "chatter"]
    assert len(faults) >= 40
    assert len(chatter) >= 40
    assert {one.truth.cause for one in SCENARIOS.values()} == set(Cause)
    assert {one.truth.part for one in faults} == {*DomainKind, "none"} - {"job"}
    assert all(one.source and one.title and one.weight > 0 for one in SCENARIOS.values())
    assert not [one.name for one in chatter if one.truth.isolate]


def test_scenario_files_are_short() -> None:
    lengths = {
        path.stem: len(path.read_text().splitlines())
        for path in (ROOT / "bench" / "scenarios").glob("*.toml")
    }
    assert {name: lines for name, lines in lengths.items() if lines > 75} == {}


GOOD = """
title = "A card is lost"
source = "a test"
[truth]
cause = "gpu-lost"
[[kernel]]
after_s = 0.0
line = "NVRM: Xid (PCI:{pci}): 79, GPU has fallen off the bus."
"""


def test_a_small_file_is_a_scenario(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    assert load(path).name == "mine"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('cause = "gpu-lost"', 'cause = "gremlins"', "gremlins"),
        ('cause = "gpu-lost"', 'cause = "gpu-lost"\npart = "wheel"', "there is no part 'wheel'"),
        ('cause = "gpu-lost"', 'cause = "gpu-lost"\npart = "none"', "nothing can be isolated"),
        ("after_s = 0.0", 'after_s = 0.0\non = "everybody"', "nobody is called 'everybody'"),
        ("after_s = 0.0", "after_s = 90.0", "it lasts 60 s"),
        ("line =", "lyne =", "lyne"),
        ("[[kernel]]", "[[kernels]]", "kernels"),
        ("[truth]", "[truth", "mine.toml"),
        ('source = "a test"', 'source = "a test"\ngroup = "chatter"', "in chatter"),
        (
            "[[kernel]]\nafter_s = 0.0\nline",
            '[[nccl]]\nafter_s = 0.0\nsay = "hullo"\nline',
            "either",
        ),
    ],
)
def test_a_wrong_file_is_told_in_one_sentence(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    path = tmp_path / "mine.toml"
    assert old in GOOD
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(ScenarioError) as told:
        load(path)
    assert str(told.value).startswith("mine.toml: ")
    assert words in str(told.value)
    assert "\n" not in str(told.value)


def test_an_unknown_saying_and_an_unknown_name_are_told(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace("[[kernel]]", "[[nccl]]").replace("line =", 'say = "hullo" #'))
    with pytest.raises(ScenarioError, match="nobody can say 'hullo'"):
        load(path)
    path.write_text(GOOD.replace("{pci}", "{pcj}"))
    (cast,) = schedule(PLANT, [load(path)], incidents=1, days=1, seed=1)
    with pytest.raises(ScenarioError, match="mine: 'pcj' in"):
        play(cast)


def test_an_empty_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="no scenario file"):
        load_all(tmp_path)


def test_the_fleet_never_imports_the_rules() -> None:
    ours = {"evidence", "collectors", "fleet"}
    for path in (ROOT / "bench" / "fleet").glob("*.py"):
        found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add((node.module or "").partition(".")[0])
        assert found - set(sys.stdlib_module_names) <= ours | {"msgspec"}, path.name


# --- What is written. --------------------------------------------------------------------------


def test_the_same_seed_writes_the_same_records_and_another_one_others() -> None:
    for name in ("gpu-lost", "rack-power-loss", "ib-flapping"):
        first, again = play(cast_of(name)), play(cast_of(name))
        assert first.records == again.records
        assert first.texts == again.texts
        assert play(cast_of(name, seed=6)).records != first.records


def _wholes_and_variants() -> Iterator[tuple[Scenario, str | None]]:
    for scenario in SCENARIOS.values():
        yield scenario, None
        for variant in scenario.variant:
            yield scenario, variant.name


def test_every_scenario_plays_and_every_name_in_its_lines_is_filled_in() -> None:
    for scenario, variant in _wholes_and_variants():
        played = play(cast_of(scenario.name, variant))
        assert played.records, scenario.name
        assert [one.at for one in played.records] == sorted(one.at for one in played.records)
        for lines in played.texts.values():
            assert not [line for line in lines if re.search(r"\{[a-z]\w*[:}]", line)], scenario.name
        ids = [getattr(one.record, "id") for one in played.records]  # noqa: B009
        assert len(ids) == len(set(ids)), scenario.name


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("gpu-lost", {KernelKind.XID: 79}),
        ("gpu-lost-pcie-port", {KernelKind.AER: None, KernelKind.XID: 79}),
        ("gpu-lost-dpc", {KernelKind.DPC: None, KernelKind.PCIEHP: None, KernelKind.XID: 79}),
        ("nvlink5-local-link", {KernelKind.XID: 149}),
        ("nvswitch-access-port", {KernelKind.SXID: 20034, KernelKind.XID: 74}),
        ("node-host-memory", {KernelKind.MCE: None}),
        ("software-host-out-of-memory", {KernelKind.OOM: None}),
        ("noise-hung-task", {KernelKind.HUNG_TASK: None}),
        ("noise-network-driver", {KernelKind.MLX5: None}),
        ("noise-unknown-xid", {KernelKind.XID: 331}),
    ],
)
def test_kernel_lines_are_read_as_what_was_meant(
    name: str, kinds: dict[KernelKind, int | None]
) -> None:
    records = kernel_of(play(cast_of(name)))
    for kind, code in kinds.items():
        found = [one for one in records if one.kind is kind]
        assert found, kind
        if code is not None:
            assert code in {one.code for one in found}


def test_an_instance_a_link_and_registers_are_read_from_the_lines() -> None:
    cast = cast_of("mig-contained")
    migs = {one.mig.gi for one in kernel_of(play(cast)) if one.mig is not None}
    assert migs == {cast.drawn["gi"]}
    cast = cast_of("nvlink-74-repeated")
    links = [one for one in kernel_of(play(cast)) if one.code == 74]
    assert {one.link for one in links} == {cast.drawn["link"]}
    assert {one.pci for one in links} == {cast.it.pci}
    assert links[0].registers[:2] == (0x10, 0)
    cast = cast_of("nvlink5-peer-at-fault")
    (told,) = (one for one in kernel_of(play(cast)) if one.code == 149)
    assert told.pci == cast.cards("peer")[0].pci != cast.it.pci
    assert told.link == cast.drawn["link"]
    assert told.registers[0] >> 20 & 0x3F == 33


#: What the parser makes of a saying; the words of training scripts are nobody's it knows.
MEANT = {
    "joined": ["setup", "setup", "comm-init"],
    "timeout": ["timeout"],
    "timeout-ahead": ["timeout"],
    "first-step-timeout": ["timeout"],
    "never-joined": ["dump-signal"],
    "mismatch": ["mismatch"],
    "nvls-bind": ["nvls"],
    "cuda-ecc": ["cuda-error"],
    "cuda-illegal-access": ["cuda-error"],
    "cuda-launch-failure": ["cuda-error"],
    "cuda-nvlink": ["cuda-error"],
    "cuda-out-of-memory": ["out-of-memory"],
    "stop-iteration": ["python-error"],
    "key-error": ["python-error"],
    "loader-killed": ["python-error"],
    "saving": [],
    "finished": ["finished"],
    "ib-retry-to-it": ["ib-completion", "warn"],
    "ib-retry-to-mate": ["ib-completion", "warn"],
    "ib-port-error": ["ib-async"],
    "ib-port-active": ["ib-async"],
    "peer-closed": ["peer-closed"],
    "peer-timed-out": ["peer-closed"],
    "remote-error": ["remote-error"],
    "sigterm": ["external-stop"],
    "worker-killed": ["worker-exit"],
    "worker-segfault": ["worker-exit"],
    "worker-failed": ["worker-exit"],
    "closing": ["worker-exit"],
    "aborted": ["comm-abort"],
    "destroyed": ["comm-destroy"],
    "store-lost": ["store-lost"],
    "preempted": ["external-stop"],
    "cancelled": ["external-stop"],
    "requeued": ["external-stop"],
}


@pytest.mark.parametrize("say", sorted(SAYINGS))
def test_what_a_rank_says_is_read_as_what_was_meant(say: str, tmp_path: Path) -> None:
    path = tmp_path / "say.toml"
    path.write_text(
        'title = "t"\nsource = "s"\n[truth]\ncause = "software"\npart = "none"\nisolate = false\n'
        f'[job]\nnodes = 2\nlogs = false\n[[nccl]]\nafter_s = 0.0\nsay = "{say}"\n'
    )
    (cast,) = schedule(PLANT, [load(path)], incidents=1, days=1, seed=2)
    records = nccl_of(play(cast))
    assert [str(one.kind) for one in records if one.kind != "other"] == MEANT[say]
    ranks = {one.rank if one.rank is not None else one.comm_rank for one in records}
    assert ranks <= {None, cast.ranks[cast.it.uuid]}
    assert {one.host for one in records} <= {cast.it.host}


def test_a_clock_that_is_wrong_and_records_that_are_late() -> None:
    plain = cast_of("gpu-lost")
    behind = cast_of("gpu-lost", "the node's clock is 90 s behind")
    late = cast_of("gpu-lost", "the node's records arrive 8 s late")

    def first_xid(cast: Cast) -> tuple[datetime, datetime]:
        timed = next(
            one
            for one in play(cast).records
            if isinstance(one.record, KernelRecord) and one.record.code == 79
        )
        assert isinstance(timed.record, KernelRecord)
        assert timed.record.at is not None
        return timed.record.at, timed.at

    said, arrived = first_xid(plain)
    assert abs(said - plain.begin) < timedelta(seconds=0.01)
    assert timedelta(0) < arrived - plain.begin < timedelta(seconds=1)
    said, arrived = first_xid(behind)
    assert abs(said - plain.begin + timedelta(seconds=90)) < timedelta(seconds=0.01)
    assert timedelta(0) < arrived - plain.begin < timedelta(seconds=1)
    said, arrived = first_xid(late)
    assert abs(said - plain.begin) < timedelta(seconds=0.01)
    assert timedelta(seconds=8) < arrived - plain.begin < timedelta(seconds=9)


def test_a_source_that_nobody_reads_brings_nothing() -> None:
    played = play(cast_of("gpu-lost", "the ranks' logs alone"))
    assert {one.topic for one in played.records} == {"nccl", "inventory"}
    played = play(cast_of("software-silent-rank", "one rank's log alone"))
    assert len({one.rank for one in nccl_of(played)} - {None}) == 1


def test_a_node_without_power_says_nothing_and_comes_back_with_another_boot() -> None:
    cast = cast_of("planned-reboot")
    frames = frames_of(play(cast), cast.it.host)
    dark = (cast.begin, cast.begin + timedelta(seconds=400))
    assert not [one for one in frames if dark[0] <= one.observed_at < dark[1]]
    assert len({one.boot_id for one in frames}) == 2


def test_ports_of_a_dead_node_go_down_and_its_neighbours_stay_up() -> None:
    cast = cast_of("rack-power-loss")
    swept = [one.record for one in play(cast).records if isinstance(one.record, FabricRecord)]
    switches = [one for one in swept if one.kind == "switch" and one.at and one.at > cast.begin]
    down = {(one.guid, p.port) for one in switches for p in one.ports if p.state == "down"}
    rack = cast.plant.racks[cast.host.rack]
    assert down == {(port.switch, port.number) for host in rack for port in host.ports}


def test_a_spare_card_has_its_own_name_and_its_own_past() -> None:
    cast = cast_of("planned-card-swap")
    cards = [
        gpu
        for frame in frames_of(play(cast), cast.it.host)
        for gpu in frame.ticks[0].gpus
        if gpu.index == cast.it.index
    ]
    assert cards[0].uuid == cast.it.uuid
    assert cards[0].ecc_aggregate_uncorrected == 0
    assert cards[-1].uuid != cast.it.uuid
    assert cards[-1].ecc_aggregate_uncorrected == 240
    assert cards[-1].pci == cast.it.pci


def test_an_old_ring_is_read_late_with_its_own_times() -> None:
    cast = cast_of("noise-old-kernel-ring")
    (old,) = (one for one in kernel_of(play(cast)) if one.code == 48)
    assert old.at is not None
    assert old.observed_at - old.at > timedelta(days=2)


def test_incidents_never_meet_behind_one_switch() -> None:
    plant = Plant(1_024, 1)
    casts = list(
        schedule(plant, list(SCENARIOS.values()), incidents=200, days=20, seed=4, reuse_hosts=True)
    )
    ends: dict[str, datetime] = {}
    for cast in casts:
        assert ends.get(cast.host.leaf, cast.begin) <= cast.begin
        ends[cast.host.leaf] = cast.begin + timedelta(seconds=cast.scenario.lasts_s)
        assert {host.leaf for host in cast.hosts} == {cast.host.leaf}
    assert {cast.scenario.name for cast in casts} == set(SCENARIOS)


def test_a_fleet_that_is_too_small_is_told() -> None:
    with pytest.raises(ValueError, match="too few"):
        list(schedule(Plant(8, 1), [SCENARIOS["gpu-lost"]], incidents=9, days=1, seed=1))
