"""How answers are counted, and what the whole measurement says of the rules as they are."""

import json
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from evidence.decisions import Action, Cause, Command, Domain, DomainKind, Level, Status, Verdict
from ringfence.drive import Driver
from ringfence.triage import triage

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import accuracy  # noqa: E402
from fleet.cast import Cast  # noqa: E402
from fleet.plant import Plant  # noqa: E402
from fleet.play import play  # noqa: E402
from fleet.scenario import load_all  # noqa: E402
from fleet.schedule import schedule  # noqa: E402
from fleet.score import score  # noqa: E402

SCENARIOS = {one.name: one for one in load_all(ROOT / "bench" / "scenarios")}
PLANT = Plant(256, 7)


def cast_of(name: str, variant: str | None = None, seed: int = 5) -> Cast:
    (cast,) = schedule(PLANT, [SCENARIOS[name]], incidents=1, days=1, seed=seed)
    if variant is None:
        return cast
    (found,) = (one for one in cast.scenario.variant if one.name == variant)
    return replace(cast, variant=found)


# --- How answers are counted. ------------------------------------------------------------------


def gpu(cast: Cast, index: int | None = None) -> Domain:
    card = cast.it if index is None else cast.host.cards[index]
    return Domain(kind=DomainKind.GPU, host=card.host, pci=card.pci)


def node(cast: Cast) -> Domain:
    return Domain(kind=DomainKind.NODE, host=cast.host.name)


def verdict(cast: Cast, domain: Domain, after_s: float = 5.0, **changed: Any) -> Verdict:
    at = cast.begin + timedelta(seconds=after_s)
    told: dict[str, Any] = {
        "id": f"v-{domain.id}-{after_s}",
        "incident": f"i-{domain.id}",
        "revision": 1,
        "at": at,
        "decided_at": at,
        "status": Status.LOCALIZED,
        "cause": Cause.GPU_LOST,
        "domain": domain,
        "confidence": 0.9,
        "reason": "because",
        "host": cast.host.name,
    }
    return Verdict(**(told | changed))


def command(cast: Cast, domain: Domain, after_s: float = 5.0, **changed: Any) -> Command:
    told: dict[str, Any] = {
        "id": f"c-{domain.id}-{after_s}",
        "action": Action.ISOLATE,
        "domain": domain,
        "domain_id": domain.id,
        "level": Level.DRAIN,
        "cause": Cause.GPU_LOST,
        "reason": "because",
        "incident": f"i-{domain.id}",
        "generation": 1,
        "issued_at": cast.begin + timedelta(seconds=after_s),
    }
    return Command(**(told | changed))


def test_the_part_at_fault_is_right_and_its_neighbour_is_false() -> None:
    cast = cast_of("gpu-lost")
    other = (cast.it.index + 1) % 8
    found = score([cast], [verdict(cast, gpu(cast))], [command(cast, gpu(cast))])
    row = found.by_part()["gpu"]
    assert (row.due, row.found, row.right, row.false, row.narrow) == (1, 1, 1, 0, 0)
    assert (found.precision, found.recall, found.wrong()) == (1.0, 1.0, [])
    found = score([cast], [], [command(cast, gpu(cast, other))])
    row = found.by_part()["gpu"]
    assert (row.due, row.found, row.right, row.false) == (1, 0, 0, 1)
    assert (found.precision, found.recall) == (0.0, 0.0)
    assert [line.split(": ")[1].split()[0] for line in found.wrong()] == ["isolated", "missed"]


def test_a_larger_part_is_false() -> None:
    cast = cast_of("gpu-lost")
    found = score([cast], [], [command(cast, node(cast))])
    assert found.by_part()["node"].false == 1
    assert found.recall == 0.0


def test_one_card_of_a_dead_node_is_narrow_when_the_node_follows_and_false_when_not() -> None:
    cast = cast_of("node-all-gpus-lost")
    card = command(cast, gpu(cast, 2))
    found = score([cast], [], [card, command(cast, node(cast), 900.0)])
    assert (found.precision, found.recall) == (1.0, 1.0)
    assert found.by_part()["gpu"].narrow == 1
    assert found.by_part()["node"].right == 1
    found = score([cast], [], [card])
    assert (found.precision, found.recall) == (0.0, 0.0)
    assert found.by_part()["gpu"].false == 1


def test_where_nobody_can_know_of_the_whole_a_part_of_it_is_narrow() -> None:
    cast = cast_of("node-pcie-switch")
    found = score([cast], [], [command(cast, gpu(cast))])
    assert found.by_part()["gpu"].narrow == 1
    assert found.false == []


def test_a_link_is_known_by_both_of_its_ends() -> None:
    cast = cast_of("ib-bad-cable")
    ends = [(cast.port.switch, cast.port.number), (cast.port.hca_guid, 1)]
    for switch, port in ends:
        link = Domain(kind=DomainKind.LINK, switch=switch, port=port)
        assert score([cast], [], [command(cast, link)]).recall == 1.0
    link = Domain(kind=DomainKind.LINK, switch=cast.port.switch, port=cast.port.number + 1)
    assert len(score([cast], [], [command(cast, link)]).false) == 1


def test_nothing_is_right_in_chatter() -> None:
    cast = cast_of("software-silent-rank")
    found = score([cast], [], [command(cast, gpu(cast))])
    assert len(found.false) == 1
    assert found.recall == 1.0


def test_a_held_command_isolates_nobody_and_is_told() -> None:
    cast = cast_of("gpu-lost")
    found = score([cast], [], [command(cast, gpu(cast), held="the budget is spent")])
    assert found.false == []
    assert found.recall == 0.0
    (line,) = found.wrong()
    assert "the budget is spent" in line


def test_a_command_that_is_about_nothing_is_false_too() -> None:
    cast = cast_of("gpu-lost")
    elsewhere = Domain(kind=DomainKind.NODE, host="trn9999")
    found = score([cast], [], [command(cast, elsewhere)])
    assert len(found.stray) == 1
    assert found.precision == 0.0
    assert "for nothing" in found.wrong()[-1]


def test_a_revision_hours_later_still_belongs_to_its_incident() -> None:
    cast = cast_of("gpu-lost")
    first = verdict(cast, gpu(cast), status=Status.SUSPECTED)
    last = verdict(cast, gpu(cast), 80_000.0, revision=2)
    found = score([cast], [first, last], [command(cast, gpu(cast), 80_000.0)])
    assert found.recall == 1.0
    (one,) = found.told
    assert one.verdict is not None
    assert one.verdict.status is Status.LOCALIZED


def test_that_a_part_is_well_again_does_not_unsay_what_it_had() -> None:
    cast = cast_of("gpu-lost")
    last = verdict(cast, gpu(cast), 300.0, revision=2, status=Status.RECOVERED)
    found = score([cast], [verdict(cast, gpu(cast)), last], [])
    assert list(found.confusion()) == [("gpu-lost", "gpu-lost (localized)")]


def test_what_is_missed_without_evidence_does_not_count() -> None:
    cast = cast_of("gpu-lost", "the ranks' logs alone")
    found = score([cast], [], [])
    assert found.recall == 1.0
    assert found.by_part()["gpu"].due == 0
    assert found.insufficient == 1.0
    assert list(found.confusion()) == [("gpu-lost", "nothing said")]


# --- Driving and measuring. --------------------------------------------------------------------


def test_driving_in_order_of_time_says_the_same_as_holding_everything() -> None:
    wanted = [one for one in SCENARIOS.values() if one.name.startswith(("gpu-lost", "ib-", "plan"))]
    casts = list(schedule(PLANT, wanted, incidents=40, days=2, seed=3, reuse_hosts=True))
    whole = Driver(accuracy.rules_in_force())
    for cast in casts:
        for one in play(cast).records:
            whole.add(one.topic, one.key, one.record, one.at)
    outcome = whole.run()
    assert outcome.commands
    assert accuracy.drive(casts) == outcome


def _measured(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    path = tmp_path / "found.json"
    code = accuracy.main([*arguments, "--json", str(path)])
    return code, json.loads(path.read_text())


def test_the_sums_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = _measured(tmp_path, "--only", "gpu-lost", "--incidents", "30", "--days", "3")
    told = capsys.readouterr().out
    faults = found["fault"]
    assert faults["incidents"] == 30
    row = faults["by_part"]["gpu"]
    assert row["incidents"] == 30
    assert row["found"] <= row["due"] <= 30
    assert faults["recall"] == row["found"] / row["due"]
    assert faults["precision"] == row["right"] / (row["right"] + faults["false_isolations"])
    assert sum(faults["confusion"].values()) == 30
    assert f"precision {faults['precision']:.4f}" in told.replace("\n", " ")
    assert code == (0 if faults["met"] else 1)
    assert faults["precision"] >= accuracy.PRECISION
    assert faults["recall"] >= accuracy.RECALL


def test_no_hardware_is_isolated_in_chatter(tmp_path: Path) -> None:
    code, found = _measured(
        tmp_path, "--incidents", "0", "--chatter", str(len(SCENARIOS)), "--days", "10"
    )
    assert found["chatter"]["wrong"] == []
    assert found["chatter"]["false_isolations"] == 0
    assert code == 0


def test_a_name_that_no_scenario_has_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert accuracy.main(["--only", "gremlins"]) == 2
    assert capsys.readouterr().err == "accuracy: no scenario's name begins with 'gremlins'\n"


@pytest.mark.parametrize(
    "name",
    [
        "gpu-lost",
        "gpu-lost-pcie-port",
        "gpu-lost-with-peers",
        "gpu-memory-contained",
        "gpu-memory-uncontained",
        "gpu-firmware-pmu-halt",
        "gpu-thermal",
        "nvlink-74-link-down",
        "nvlink5-peer-at-fault",
    ],
)
def test_triage_of_the_written_texts_names_the_part_that_the_records_name(
    name: str, tmp_path: Path
) -> None:
    cast = accuracy.write(SCENARIOS[name], None, 3, tmp_path)
    rules = accuracy.rules_in_force()
    found = triage(tmp_path, rules, cast.begin + timedelta(days=1))
    driven = accuracy.drive([cast], rules)
    named = {one.domain.id for one in driven.latest() if one.status is Status.LOCALIZED}
    assert named == {cast.domain()}
    assert {one.domain.id for one in found.verdicts if one.status is Status.LOCALIZED} == named
    assert found.unread == []
