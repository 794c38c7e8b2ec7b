"""A job that could not send and the links it used: all stages, wired as the stream wires them."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from evidence.decisions import Action, Cause, DomainKind, Says, Status, Witness
from evidence.identity import digest
from evidence.records import (
    FabricPort,
    FabricRecord,
    HcaIdentity,
    InventoryRecord,
    NcclKind,
    NcclRecord,
)
from ringfence.drive import Driver, Outcome
from rules import tables
from rules.tables import Rules

from .job_lines import GIVE_UP, T0, host, line, world

LEAF = "0x506b4b0300cc0010"
HOSTS = [host(rank, 4) for rank in range(0, 16, 4)]
JOB = "4711.0"


@pytest.fixture(scope="module")
def rules() -> Rules:
    return tables.load()


def adapter(number: int) -> str:
    return f"0x506b4b0300dd{number:04x}"


def inventory(number: int) -> InventoryRecord:
    return InventoryRecord(
        id=digest("inventory", number),
        host=HOSTS[number],
        observed_at=T0,
        hcas=(
            HcaIdentity(
                name="mlx5_0",
                guid=adapter(number),
                port=1,
                switch_guid=LEAF,
                switch_port=number + 1,
            ),
        ),
    )


def sweeps(grown: dict[int, int]) -> list[FabricRecord]:
    """Five minutes of sweeps; ``grown`` is symbol errors a sweep, by port, from just before on."""
    found = []
    for number in range(30):
        at = GIVE_UP + timedelta(seconds=10 * number - 120)
        bad = max(0, number - 10)
        ports = tuple(
            FabricPort(
                port=place + 1,
                state="active",
                peer_guid=adapter(place),
                peer_port=1,
                peer_name=f"{name} mlx5_0",
                counters={"symbol_error": bad * grown.get(place + 1, 0)},
            )
            for place, name in enumerate(HOSTS)
        )
        found.append(
            FabricRecord(
                id=digest("sweep", number, sorted(grown)),
                observed_at=at,
                at=at,
                subnet="ib0",
                guid=LEAF,
                name="leaf-7",
                ports=ports,
            )
        )
    return found


def between(rank: int, other: int, milliseconds: int = 0) -> NcclRecord:
    """Rank ``rank`` got no answer from the host of rank ``other``, which it names by address."""
    return line(
        NcclKind.IB_COMPLETION,
        GIVE_UP + timedelta(milliseconds=milliseconds),
        host=host(rank, 4),
        rank=rank,
        status=12,
        peer=f"10.4.0.{other // 4 + 1}<4791>",
        hca="mlx5_0",
    )


def addresses() -> list[NcclRecord]:
    return [
        line(NcclKind.SETUP, T0, host=name, address=f"10.4.0.{n + 1}", phase="network")
        for n, name in enumerate(HOSTS)
    ]


#: The ring of the job crosses train02 twice: four ranks on three hosts see it fail.
RING = [between(3, 4), between(4, 3, 5), between(7, 8, 9), between(8, 7, 12)]
#: Only two hosts talk to each other: neither end can be told from the other.
PAIR = [between(3, 4), between(4, 3, 5), between(2, 5, 9), between(5, 2, 12)]


def judged(rules: Rules, errors: Sequence[NcclRecord], grown: dict[int, int] | None) -> Outcome:
    driver = Driver(rules)
    for number, name in enumerate(HOSTS):
        driver.add("inventory", name, inventory(number), T0)
    for record in [*world(16), *addresses(), *errors]:
        driver.add("nccl", JOB, record, record.at or T0)
    for sweep in [] if grown is None else sweeps(grown):
        driver.add("fabric", sweep.subnet, sweep, sweep.observed_at)
    return driver.run()


@pytest.mark.parametrize("errors", [RING, PAIR], ids=["ring", "pair"])
@pytest.mark.parametrize("grown", [1, 400], ids=["a few", "many"])
def test_one_bad_switch_port_that_four_ranks_report_is_one_verdict_and_one_command(
    rules: Rules, errors: list[NcclRecord], grown: int
) -> None:
    found = judged(rules, errors, {2: grown})
    sure = {one.incident: one for one in found.verdicts if one.status is Status.LOCALIZED}
    (link,) = sure.values()
    assert (link.domain.id, link.domain.host) == (f"link:{LEAF}/2", "train02")
    assert link.cause is Cause.IB_LINK
    assert {one.witness for one in link.testimony} == {Witness.FABRIC, Witness.COLLECTIVE}
    assert link.job == JOB
    (command,) = {one.domain_id: one for one in found.commands}.values()
    assert command.action is Action.ISOLATE
    assert command.domain_id == f"link:{LEAF}/2"


@pytest.mark.parametrize("grown", [None, {}], ids=["no counters", "counters at rest"])
def test_without_a_word_of_the_fabric_nothing_is_commanded(
    rules: Rules, grown: dict[int, int] | None
) -> None:
    for errors in (RING, PAIR):
        found = judged(rules, errors, grown)
        assert found.commands == []
        assert {one.status for one in found.verdicts} <= {Status.SUSPECTED, Status.INSUFFICIENT}
        assert len({one.incident for one in found.verdicts}) == 1


def test_no_end_of_a_path_that_failed_gets_a_verdict_of_its_own(rules: Rules) -> None:
    found = judged(rules, PAIR, None)
    ends = [one for one in found.suspicions if one.domain.kind is DomainKind.LINK]
    assert [(one.host, one.says) for one in ends] == [
        ("train01", Says.BLIND),
        ("train02", Says.BLIND),
    ]
    assert [one.domain.kind for one in found.latest()] == [DomainKind.JOB]


def test_errors_of_a_link_that_the_job_did_not_use_are_no_part_of_it(rules: Rules) -> None:
    found = judged(rules, PAIR, {4: 1})
    assert found.commands == []
    assert Status.LOCALIZED not in {one.status for one in found.verdicts}
