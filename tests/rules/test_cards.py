"""A card is swapped in its slot: what stood against the old one never speaks of the new one."""

from typing import Any

from msgspec.structs import replace

from evidence.records import GpuIdentity, KernelKind
from rules.cards import is_other_card, put_cards
from rules.host_state import GpuName, HostState

SLOT = "0000:52:00"
NEW = "GPU-77b1c9d0-0000-4000-8000-000000000077"
CARD = {
    "uuid": NEW,
    "serial": "1655999",
    "ecc_volatile_uncorrected": 0,
    "ecc_aggregate_uncorrected": 90_000,
}
SICK = {"ecc_volatile_uncorrected": 150, "ecc_aggregate_uncorrected": 153}


def _fails(node: Any, records: Any) -> None:
    node.feed(records.quiet())
    node.feed(records.chain(10, 2))
    node.take(records.frame((11, {2: SICK})))
    node.run_on()
    assert node.told() == ["localized gpu-memory gpu2"]


def test_what_a_new_card_counted_elsewhere_is_not_growth(node: Any, records: Any) -> None:
    _fails(node, records)
    told = len(node.verdicts)
    node.take(records.frame((600, {2: CARD})))
    node.take(records.frame((660, {2: CARD})))
    node.run_on()
    assert len(node.verdicts) == told
    assert node.state.health[SLOT].growth == 0


def test_an_error_of_the_new_card_is_an_incident_of_its_own(node: Any, records: Any) -> None:
    _fails(node, records)
    node.take(records.frame((200, {2: CARD})))
    node.take(records.frame((210, {2: CARD | {"ecc_volatile_uncorrected": 1}})))
    node.run_on()
    old, new = node.latest()
    assert (old.domain.uuid, new.domain.uuid) == (
        "GPU-5e0d9c1a-0000-4000-8000-000000000002",
        NEW,
    )
    assert (new.status.value, new.domain.serial) == ("suspected", "1655999")


def test_an_inventory_with_the_new_card_says_nothing_about_the_old_incident(
    node: Any, records: Any
) -> None:
    _fails(node, records)
    told = len(node.verdicts)
    known = records.inventory(0).gpus
    gpus = (*known[:2], GpuIdentity(index=2, pci=SLOT, uuid=NEW), *known[3:])
    node.take(records.inventory(600, gpus=gpus))
    node.run_on()
    assert len(node.verdicts) == told
    assert SLOT not in {incident.subject for incident in node.state.incidents}


def test_a_late_inventory_of_the_same_card_loses_nothing(node: Any, records: Any) -> None:
    _fails(node, records)
    node.take(records.inventory(600, driver="580.95.05"))
    assert SLOT in {incident.subject for incident in node.state.incidents}
    assert node.state.health[SLOT].growth == 150


def test_a_banner_of_an_old_log_does_not_rename_a_card_that_nvml_named(
    node: Any, records: Any
) -> None:
    node.feed(records.quiet())
    banner = records.kernel(
        3, 2, kind=KernelKind.NVRM, code=None, uuid="GPU-of-last-year", message="GPU at PCI"
    )
    node.take(replace(banner, serial="1"))
    assert node.state.names[SLOT].uuid == "GPU-5e0d9c1a-0000-4000-8000-000000000002"


def test_without_an_inventory_the_last_banner_names_the_card(node: Any, records: Any) -> None:
    for second, uuid in ((1, "GPU-a"), (9, "GPU-b")):
        banner = {"kind": KernelKind.NVRM, "code": None, "uuid": uuid, "message": "GPU at PCI"}
        node.take(records.kernel(second, 2, **banner))
        node.take(records.kernel(second + 1, 2, code=79))
    assert [v.domain.uuid for v in node.latest()] == ["GPU-a", "GPU-b"]


def test_a_card_nobody_named_is_no_other_card() -> None:
    assert not is_other_card(None, "GPU-a")
    assert not is_other_card("GPU-a", None)
    assert not is_other_card("GPU-a", "GPU-a")
    assert is_other_card("GPU-a", "GPU-b")


def test_names_are_completed_and_an_equal_one_is_no_news() -> None:
    state = put_cards(HostState(), {SLOT: GpuName(uuid="GPU-a", index=2)})
    assert put_cards(state, {SLOT: GpuName(serial="7")}).names[SLOT] == GpuName(
        uuid="GPU-a", serial="7", index=2
    )
    assert put_cards(state, {SLOT: GpuName(uuid="GPU-a")}) is state
    assert put_cards(state, {SLOT: GpuName(uuid="GPU-b")}).names[SLOT] == GpuName(uuid="GPU-b")
