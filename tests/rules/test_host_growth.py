"""The daily analysis of growing memory errors: suspected, for itself, and nobody's witness."""

from typing import Any

import pytest

from evidence.decisions import Cause, Domain, DomainKind, Says, Status, Witness
from tests.rules.conftest import uuid

DAY = 86_400.0


def growth(records: Any, seconds: float, gpu: int | None = 4, **fields: Any) -> Any:
    said = {
        "witness": Witness.HEALTH,
        "kind": "ecc-growth",
        "status": Status.SUSPECTED,
        "cause": Cause.GPU_MEMORY,
        "weight": 0.4,
        "job": None,
        "reason": "corrected errors of its memory doubled within eight weeks (q = 0.004)",
    }
    return records.suspicion(seconds, gpu, **(said | fields))


def test_growth_alone_is_suspected_once_and_isolates_nothing(node: Any, records: Any) -> None:
    node.feed(records.quiet())
    for day in range(5):
        node.take(growth(records, 100 + day * DAY))
        node.take(records.frame((103 + day * DAY, {})))
        node.run_on()
    (verdict,) = [one for one in node.verdicts if one.rule == "ecc-trend"]
    assert (verdict.status, verdict.cause, verdict.domain.uuid) == (
        "suspected",
        "gpu-memory",
        uuid(4),
    )
    assert "doubled within eight weeks" in verdict.reason
    assert verdict.missing
    assert not any(one.status == "localized" for one in node.verdicts)


def test_a_card_without_growth_is_not_named(node: Any, records: Any) -> None:
    node.feed(records.quiet())
    node.run_on()
    assert node.verdicts == []


def test_the_card_is_found_by_its_uuid(node: Any, records: Any) -> None:
    node.feed(records.quiet())
    domain = Domain(kind=DomainKind.GPU, uuid=uuid(6))
    node.take(growth(records, 100, domain=domain))
    node.run_on()
    assert node.told() == ["suspected gpu-memory gpu6"]


@pytest.mark.parametrize("code", [63, 94, 48])
@pytest.mark.parametrize("first", ["growth", "line"])
def test_growth_adds_nothing_to_what_the_kernel_says_of_the_same_errors(
    code: int, first: str, new_node: Any, records: Any
) -> None:
    def told(*, with_growth: bool) -> list[Any]:
        node, build = new_node(), type(records)()
        node.feed(build.quiet())
        said = [build.kernel(100, 4, code=code)]
        if with_growth:
            said.insert(0 if first == "growth" else 1, growth(build, 100, weight=0.9))
        node.feed(said)
        node.run_on()
        return [
            (one.status, one.cause, one.confidence)
            for one in node.latest()
            if one.rule != "ecc-trend"
        ]

    assert told(with_growth=True) == told(with_growth=False)


def test_growth_an_early_warning_and_a_missing_rank_are_not_three_witnesses(
    node: Any, records: Any
) -> None:
    node.feed(records.quiet())
    node.take(growth(records, 100, weight=0.9))
    node.take(records.kernel(101, 4, code=63))
    node.take(records.suspicion(110, 4, stalled_s=102))
    node.run_on()
    assert not any(one.status == "localized" for one in node.verdicts)


def test_growth_that_ended_is_taken_back_and_leaves_a_lost_card_lost(
    node: Any, records: Any
) -> None:
    node.feed(records.quiet())
    node.take(growth(records, 100))
    node.run_on()
    node.take(records.kernel(200, 4, code=79))
    node.take(growth(records, 300, status=Status.RECOVERED, says=Says.CLEARS))
    node.run_on()
    assert node.told() == ["localized gpu-lost gpu4", "recovered gpu-memory gpu4"]


def test_growth_leaves_with_its_card(node: Any, records: Any) -> None:
    node.feed(records.quiet())
    node.take(growth(records, 100))
    node.run_on()
    other = {4: {"uuid": "GPU-77777777-0000-4000-8000-000000000004"}}
    node.take(records.frame((200, other)))
    assert not any(one.subject.startswith("growth:") for one in node.state.incidents)


def test_the_same_records_make_the_same_verdicts(new_node: Any, records: Any) -> None:
    said = [*records.quiet(), growth(records, 100), records.kernel(150, 4, code=63)]
    found = []
    for _ in range(2):
        node = new_node()
        node.feed(said)
        node.run_on()
        found.append(node.verdicts)
    assert found[0] == found[1]
