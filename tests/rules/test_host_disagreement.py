"""Witnesses that disagree: each pair of them, on cards of one node, and what is made of it.

Health of the named card first, then the links; nobody is isolated because two witnesses speak of
two different cards.
"""

from typing import Any

from evidence.decisions import Cause, Domain, DomainKind, Says, Status, Suspicion, Witness
from evidence.identity import digest
from evidence.records import KernelKind

from .conftest import HOST, PCI, Node, Records, at


def statuses(node: Node) -> dict[str, Status]:
    """The last word about each card, link or node."""
    found = {}
    for verdict in node.latest():
        part = verdict.domain.pci or str(verdict.domain.kind)
        found[str(PCI.index(part)) if part in PCI else part] = verdict.status
    return found


def healthy(records: Records, seconds: float, **differs: dict[str, Any]) -> Any:
    return records.frame((seconds, {int(name[3:]): value for name, value in differs.items()}))


def test_the_kernel_and_the_job_name_two_cards_and_only_the_kernels_is_isolated(
    node: Node, records: Records
) -> None:
    node.feed(records.quiet())
    node.feed(records.chain(10, gpu=0))
    node.take(healthy(records, 14))
    node.take(records.suspicion(20, gpu=5))
    node.run_on()
    told = statuses(node)
    assert told["0"] is Status.LOCALIZED
    assert told.get("5") in (None, Status.VICTIM, Status.SUSPECTED, Status.INSUFFICIENT)


def test_the_kernel_and_health_name_two_cards_and_neither_counts_for_the_other(
    node: Node, records: Records
) -> None:
    node.feed(records.quiet())
    node.take(records.kernel(10, gpu=0, code=119))
    node.take(healthy(records, 14, gpu3={"ecc_volatile_uncorrected": 2}))
    node.run_on()
    told = statuses(node)
    assert Status.LOCALIZED not in told.values()
    for verdict in node.latest():
        accusers = [one.witness for one in verdict.testimony if one.says is Says.ACCUSES]
        assert len(accusers) == 1, verdict.reason


def test_health_and_the_job_name_two_cards_and_neither_is_isolated(
    node: Node, records: Records
) -> None:
    node.feed(records.quiet())
    node.take(healthy(records, 14, gpu3={"ecc_volatile_uncorrected": 2}))
    node.take(records.suspicion(20, gpu=6))
    node.run_on()
    assert Status.LOCALIZED not in statuses(node).values()


def test_the_job_names_a_card_that_kernel_and_health_clear(node: Node, records: Records) -> None:
    node.feed(records.quiet())
    node.take(records.suspicion(20, gpu=1))
    node.take(healthy(records, 40))
    noise = {"kind": KernelKind.OTHER, "code": None, "pci": None, "message": "systemd started"}
    node.take(records.kernel(41, **noise))
    node.run_on()
    (verdict,) = node.latest()
    assert verdict.status in (Status.SUSPECTED, Status.INSUFFICIENT)
    says = {one.witness: one.says for one in verdict.testimony}
    assert says[Witness.COLLECTIVE] is Says.ACCUSES
    assert says[Witness.HEALTH] is Says.CLEARS


def test_the_job_names_a_card_and_the_fabric_its_link_so_the_link_is_the_part(
    node: Node, records: Records
) -> None:
    node.feed(records.quiet())
    node.take(records.suspicion(20, gpu=1))
    link = Domain(kind=DomainKind.LINK, switch="0x506b4b0300aa0010", port=13, host=HOST)
    node.take(
        Suspicion(
            id=digest("fabric", "link"),
            at=at(18),
            observed_at=at(21),
            witness=Witness.FABRIC,
            says=Says.ACCUSES,
            kind="ib-errors",
            domain=link,
            status=Status.LOCALIZED,
            cause=Cause.IB_LINK,
            weight=0.8,
            reason="leaf-a port 13 4000 symbol errors within the hour.",
            host=HOST,
            hcas=("mlx5_1",),
        )
    )
    node.take(healthy(records, 40))
    node.run_on()
    isolated = [v.domain.id for v in node.latest() if v.status is Status.LOCALIZED]
    assert isolated == [link.id]


def test_an_application_fault_of_a_card_that_health_accuses_does_not_acquit_it(
    node: Node, records: Records
) -> None:
    node.feed(records.quiet())
    node.take(records.kernel(10, gpu=2, code=31))
    node.take(healthy(records, 14, gpu2={"remap_failure": True}))
    node.take(healthy(records, 20, gpu2={"remap_failure": True}))
    node.run_on()
    assert statuses(node)["2"] is Status.LOCALIZED
