"""A link to the node: what the fabric says of it, and the job that could not cross it."""

from typing import Any

import pytest
from msgspec.structs import replace

from evidence.decisions import Cause, Domain, DomainKind, Says, Status, Suspicion, Witness
from evidence.identity import digest
from evidence.records import ContextKind, HcaIdentity

from .conftest import HOST, Node, Records, at

LEAF = "0x506b4b0300aa0010"


def fabric(seconds: float, kind: str = "ib-errors", **fields: Any) -> Suspicion:
    """What the fabric stage tells the node at the end of a link."""
    plain: dict[str, Any] = {
        "says": Says.ACCUSES,
        "status": Status.SUSPECTED,
        "weight": 0.3,
        "reason": "leaf-a port 13 40 symbol errors within the hour (cable to mlx5_4).",
    }
    return Suspicion(
        id=digest("fabric", seconds, kind, sorted(map(str, fields.items()))),
        at=at(seconds),
        observed_at=at(seconds),
        witness=Witness.FABRIC,
        kind=kind,
        domain=Domain(kind=DomainKind.LINK, switch=LEAF, port=13, host=HOST),
        cause=Cause.IB_LINK,
        host=HOST,
        hcas=("mlx5_4",),
        **(plain | fields),
    )


def failed_here(records: Records, seconds: float, **fields: Any) -> Suspicion:
    """What the job stage tells of a node that others could not reach."""
    return records.suspicion(
        seconds,
        domain=Domain(kind=DomainKind.LINK, host=HOST),
        cause=Cause.IB_LINK,
        kind="ib-link",
        reason="two hosts could not reach this one",
        hcas=fields.pop("hcas", ("mlx5_4",)),
        **fields,
    )


def test_a_fault_in_its_counters_is_enough_to_name_a_link(node: Node, records: Records) -> None:
    node.feed(records.quiet())
    node.take(fabric(20, status=Status.LOCALIZED, weight=0.8))
    node.run_on()
    (verdict,) = node.latest()
    assert (verdict.status, verdict.cause) == (Status.LOCALIZED, Cause.IB_LINK)
    assert (verdict.domain.id, verdict.domain.host) == (f"link:{LEAF}/13", HOST)
    assert [one.witness for one in verdict.testimony] == [Witness.FABRIC]


def test_a_few_errors_alone_are_not_worth_a_word(node: Node, records: Records) -> None:
    node.feed(records.quiet())
    node.take(fabric(20))
    node.run_on()
    assert node.verdicts == []


@pytest.mark.parametrize("fabric_first", [True, False])
def test_a_few_errors_and_a_job_that_failed_there_name_the_link_once(
    node: Node, records: Records, fabric_first: bool
) -> None:
    node.feed(records.quiet())
    said = [fabric(20), failed_here(records, 21)]
    for one in said if fabric_first else reversed(said):
        node.take(one, 22)
    node.run_on()
    (verdict,) = node.latest()
    assert (verdict.status, verdict.domain.id) == (Status.LOCALIZED, f"link:{LEAF}/13")
    assert {one.witness for one in verdict.testimony} == {Witness.FABRIC, Witness.COLLECTIVE}


def test_errors_that_were_watched_are_remembered_when_a_job_fails_minutes_later(
    node: Node, records: Records
) -> None:
    node.feed(records.quiet())
    node.take(fabric(20))
    node.tick(40)
    assert node.verdicts == []
    node.take(failed_here(records, 300))
    node.run_on()
    assert [one.status for one in node.latest()] == [Status.LOCALIZED]


def test_a_few_errors_on_another_adapter_than_the_jobs_are_not_worth_a_word(
    node: Node, records: Records
) -> None:
    node.feed(records.quiet())
    node.take(fabric(20))
    node.take(failed_here(records, 21, hcas=("mlx5_2",)))
    node.run_on()
    assert [one.status for one in node.latest()] == [Status.SUSPECTED]
    assert node.latest()[0].domain.switch is None


def test_where_the_adapter_is_not_told_the_link_is_only_suspected(
    node: Node, records: Records
) -> None:
    node.feed(records.quiet())
    node.take(fabric(20))
    node.take(failed_here(records, 21, hcas=()))
    node.run_on()
    assert {one.status for one in node.latest()} == {Status.SUSPECTED}


def test_a_job_that_failed_there_is_only_suspicious_without_counters(
    node: Node, records: Records
) -> None:
    node.feed(records.quiet())
    node.take(failed_here(records, 21))
    node.run_on()
    (verdict,) = node.latest()
    assert (verdict.status, verdict.cause) == (Status.SUSPECTED, Cause.IB_LINK)


def test_a_link_that_is_down_accuses_nobody_while_its_node_may_be_off(
    node: Node, records: Records
) -> None:
    node.feed(records.quiet())
    node.take(fabric(300, "ib-down", status=Status.LOCALIZED, weight=0.8))
    node.run_on()
    assert [one.status for one in node.latest()] == [Status.SUSPECTED]


def test_a_link_that_is_down_while_its_node_lives_is_at_fault(node: Node, records: Records) -> None:
    node.feed(records.quiet())
    node.take(fabric(300, "ib-down"), 326)
    for seconds in range(310, 540, 30):
        node.take(records.frame((seconds, {})))
    node.take(fabric(300, "ib-down", status=Status.LOCALIZED, weight=0.8), 541)
    node.run_on()
    assert [one.status for one in node.verdicts] == [Status.SUSPECTED, Status.LOCALIZED]


def test_a_slow_link_is_suspected_and_no_more(node: Node, records: Records) -> None:
    node.feed(records.quiet())
    node.take(fabric(20, "ib-degraded"))
    node.take(failed_here(records, 21))
    node.run_on()
    assert {one.status for one in node.latest()} == {Status.SUSPECTED}


def test_a_module_outside_its_limits_is_told_and_with_a_failed_job_it_is_the_link(
    node: Node, records: Records
) -> None:
    node.feed(records.quiet())
    node.take(fabric(20, "ib-optics"))
    node.tick(30)
    assert [one.status for one in node.latest()] == [Status.SUSPECTED]
    node.take(failed_here(records, 60))
    node.run_on()
    assert node.latest()[0].status is Status.LOCALIZED


def test_maintenance_of_the_node_explains_its_link(node: Node, records: Records) -> None:
    node.feed(records.quiet())
    node.take(records.context(10, ContextKind.MAINTENANCE, until_s=4000))
    node.take(fabric(20, status=Status.LOCALIZED, weight=0.8))
    node.run_on()
    (verdict, *_) = node.verdicts
    assert verdict.status is Status.SUSPECTED
    assert verdict.explained_by is not None


def test_a_link_that_works_again_is_said_to(node: Node, records: Records) -> None:
    node.feed(records.quiet())
    node.take(fabric(20, status=Status.LOCALIZED, weight=0.8))
    node.tick(30)
    node.take(fabric(4000, "ib-recovered", says=Says.CLEARS, status=Status.RECOVERED, weight=0.0))
    node.run_on()
    assert [one.status for one in node.latest()] == [Status.RECOVERED]


def two_links(records: Records) -> list[Any]:
    """A node at rest that has two adapters."""
    hcas = (HcaIdentity(name="mlx5_0"), HcaIdentity(name="mlx5_1"))
    return [*records.quiet(), records.inventory(3, hcas=hcas)]


def down(seconds: float, port: int, **fields: Any) -> Suspicion:
    domain = Domain(kind=DomainKind.LINK, switch=LEAF, port=port, host=HOST)
    return replace(fabric(seconds, "ib-down", **fields), id=f"{port}-{seconds}", domain=domain)


def test_a_node_that_goes_dark_is_one_suspicion_and_after_a_while_a_fault(
    node: Node, records: Records
) -> None:
    node.feed(two_links(records))
    node.take(down(200, 13), 230)
    node.take(down(200, 14), 230.5)
    node.run_on()
    assert [f"{one.status} {one.domain.id}" for one in node.verdicts] == [
        f"suspected node:{HOST}",
        f"localized node:{HOST}",
    ]
    (first, last) = node.verdicts
    assert {one.witness for one in first.testimony} == {Witness.FABRIC, Witness.HEALTH}
    assert last.decided_at >= at(200 + 900)


def test_one_of_two_links_down_is_no_dark_node(node: Node, records: Records) -> None:
    node.feed(two_links(records))
    node.take(down(200, 13), 230)
    node.run_on()
    assert {one.domain.kind for one in node.verdicts} == {DomainKind.LINK}


def test_links_that_flap_together_are_the_nodes_restarts(node: Node, records: Records) -> None:
    node.feed(two_links(records))
    for port in (13, 14):
        domain = Domain(kind=DomainKind.LINK, switch=LEAF, port=port, host=HOST)
        flaps = fabric(200, "ib-flapping", status=Status.LOCALIZED, weight=0.8)
        node.take(replace(flaps, id=f"flap-{port}", domain=domain), 210)
    node.run_on()
    assert {one.status for one in node.latest()} == {Status.SUSPECTED}


def test_one_link_that_flaps_alone_is_at_fault(node: Node, records: Records) -> None:
    node.feed(two_links(records))
    node.take(fabric(200, "ib-flapping", status=Status.LOCALIZED, weight=0.8), 210)
    node.take(records.frame((240, {})))
    node.run_on()
    assert [one.status for one in node.latest()] == [Status.LOCALIZED]


def test_a_link_that_flaps_while_nothing_is_heard_of_its_node_is_not_judged_yet(
    node: Node, records: Records
) -> None:
    node.feed(two_links(records))
    node.take(fabric(200, "ib-flapping", status=Status.LOCALIZED, weight=0.8), 210)
    node.run_on()
    assert [one.status for one in node.latest()] == [Status.SUSPECTED]


@pytest.mark.parametrize("names", [("mlx5_0",), ("mlx5_0", "mlx5_bond_0", "mlx5_bond_1")])
def test_a_node_that_starts_anew_takes_its_link_down_and_up_whatever_else_it_is_cabled_to(
    node: Node, records: Records, names: tuple[str, ...]
) -> None:
    hcas = tuple(HcaIdentity(name=name) for name in names)
    node.feed([*records.quiet(), records.inventory(3, hcas=hcas)])
    node.take(records.frame((4, {}), boot_id="before"))
    node.take(fabric(200, "ib-flapping", status=Status.LOCALIZED, weight=0.8), 210)
    node.take(records.frame((240, {}), boot_id="after"))
    node.run_on()
    assert [one.status for one in node.latest()] == [Status.SUSPECTED]


@pytest.mark.parametrize("behind_s", [0, 3600])
def test_the_only_link_of_a_node_that_goes_on_living_is_named_and_not_the_node(
    node: Node, records: Records, behind_s: int
) -> None:
    hcas = (HcaIdentity(name="mlx5_0"),)
    told = records.inventory(3, hcas=hcas, clock_skew_ms=-1000 * behind_s or None)
    node.feed([*records.quiet(), told])
    for seconds in range(3900, 3961, 20):
        node.take(records.frame((seconds - behind_s, {})), seconds)
    node.take(fabric(3965, "ib-down"), 3990)
    for seconds in range(3991, 4210, 20):
        node.take(records.frame((seconds - behind_s, {})), seconds)
    node.take(fabric(3965, "ib-down", status=Status.LOCALIZED, weight=0.8), 4215)
    node.run_on()
    sure = [one.domain.id for one in node.verdicts if one.status is Status.LOCALIZED]
    assert sure == [f"link:{LEAF}/13"]
    assert {str(one.status) for one in node.latest()} <= {"localized", "recovered"}


def test_a_node_whose_links_are_up_again_is_not_dark_however_silent(
    node: Node, records: Records
) -> None:
    node.feed(two_links(records))
    for port in (13, 14):
        node.take(down(200, port), 230)
    node.tick(233)
    for port in (13, 14):
        back = replace(down(260, port), kind="ib-flapping", observed_at=at(270))
        node.take(back, 270)
    node.run_on()
    told = [one.status for one in node.verdicts if one.domain.kind is DomainKind.NODE]
    assert told == [Status.SUSPECTED, Status.RECOVERED]


def test_a_node_that_is_heard_again_was_only_restarted(node: Node, records: Records) -> None:
    node.feed(two_links(records))
    node.take(down(200, 13), 230)
    node.take(down(200, 14), 230.5)
    node.tick(233)
    for seconds in range(400, 700, 61):
        node.take(records.frame((seconds, {})))
    node.run_on()
    assert [one.status for one in node.latest()] == [Status.RECOVERED]


def test_a_restart_that_was_announced_explains_a_dark_node(node: Node, records: Records) -> None:
    node.feed(two_links(records))
    node.take(records.context(150, ContextKind.REBOOT, until_s=600))
    node.take(down(200, 13), 230)
    node.take(down(200, 14), 230.5)
    node.tick(233)
    (verdict,) = node.latest()
    assert verdict.status is Status.SUSPECTED
    assert verdict.explained_by is not None
