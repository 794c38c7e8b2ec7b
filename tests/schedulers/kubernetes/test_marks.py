"""What is written on a node, without a server: back and forth leaves what was there before."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from evidence.decisions import Action, Cause, Command, Domain, DomainKind, Level
from schedulers.kubernetes.config import KubernetesConfig
from schedulers.kubernetes.marks import isolated, marks_of, released, same_part, undone, value

NOW = datetime(2026, 11, 9, 4, 3, 2, tzinfo=UTC)
SETTINGS = KubernetesConfig()
Json = dict[str, Any]
CARDS = [
    Domain(kind=DomainKind.GPU, host="hpc-n7", pci=f"0000:{bus}:00", uuid=f"GPU-{bus}")
    for bus in ("1a", "3d", "9b")
]


def isolate(domain: Domain, name: str = "c") -> Command:
    return Command(
        id=f"{name}-{domain.id}",
        action=Action.ISOLATE,
        domain=domain,
        domain_id=domain.id,
        level=Level.CORDON,
        cause=Cause.GPU_MEMORY,
        reason="row remap failed",
        incident="i",
        generation=1,
        issued_at=NOW,
    )


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386, as the server does it."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, change in patch.items():
        if change is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), change)
    return result


def node(taints: list[Json], *, cordoned: bool) -> Json:
    spec: Json = {"taints": taints} if taints else {}
    if cordoned:
        spec["unschedulable"] = True
    return {"metadata": {"name": "hpc-n7", "resourceVersion": "7", "annotations": {}}, "spec": spec}


foreign = st.lists(
    st.builds(
        lambda key, effect: {"key": f"example.com/{key}", "effect": effect},
        st.sampled_from("abcd"),
        st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"]),
    ),
    max_size=3,
)


@given(
    taints=foreign,
    cordoned=st.booleans(),
    order=st.permutations(CARDS),
    back=st.permutations(CARDS),
)
def test_releases_in_any_order_leave_the_node_as_it_was(
    taints: list[Json], cordoned: bool, order: list[Domain], back: list[Domain]
) -> None:
    before = node(taints, cordoned=cordoned)
    now = before
    for domain in order:
        now = merged(now, isolated(now, isolate(domain), NOW, SETTINGS).body)
        assert not undone(now, SETTINGS)
    assert set(marks_of(now, SETTINGS)) == {one.id for one in CARDS}
    for domain in back:
        assert now["spec"]["unschedulable"] is True
        now = merged(now, released(now, domain, SETTINGS).body)
    assert now == before


@given(taints=foreign, steps=st.lists(st.tuples(st.booleans(), st.sampled_from(CARDS))))
def test_others_taints_survive_whatever_we_do(
    taints: list[Json], steps: list[tuple[bool, Domain]]
) -> None:
    now = node(taints, cordoned=False)
    for number, (out, domain) in enumerate(steps):
        change = (
            isolated(now, isolate(domain, str(number)), NOW, SETTINGS)
            if out
            else released(now, domain, SETTINGS)
        )
        if change.body is not None:
            now = merged(now, change.body)
        ours = ("ringfence/isolated",)
        assert [one for one in now["spec"].get("taints", []) if one["key"] not in ours] == taints


def test_an_annotation_that_somebody_broke_does_not_keep_a_release_from_lifting_our_taint() -> None:
    now = merged(node([], cordoned=False), isolated(node([], cordoned=False), *_one()).body)
    now["metadata"]["annotations"]["ringfence/marks"] = "{broken"
    assert marks_of(now, SETTINGS) == {}
    after = merged(now, released(now, CARDS[0], SETTINGS).body)
    assert after["spec"] == {}


def _one() -> tuple[Command, datetime, KubernetesConfig]:
    return isolate(CARDS[0]), NOW, SETTINGS


def test_after_a_release_by_hand_a_new_command_does_not_bring_the_old_one_back() -> None:
    now = merged(node([], cordoned=False), isolated(node([], cordoned=False), *_one()).body)
    now["spec"].pop("unschedulable")
    assert undone(now, SETTINGS)
    now = merged(now, isolated(now, isolate(CARDS[1]), NOW, SETTINGS).body)
    assert set(marks_of(now, SETTINGS)) == {CARDS[1].id}


def test_a_release_of_one_part_puts_nothing_on_again_that_a_person_took_off_for_all() -> None:
    now = merged(node([], cordoned=False), isolated(node([], cordoned=False), *_one()).body)
    now = merged(now, isolated(now, isolate(CARDS[1]), NOW, SETTINGS).body)
    now["spec"] = {}
    after = merged(now, released(now, CARDS[0], SETTINGS).body)
    assert after["spec"] == {}
    assert set(marks_of(after, SETTINGS)) == {CARDS[1].id}
    assert undone(after, SETTINGS)


def test_a_part_is_known_by_uuid_or_place_but_not_by_the_place_of_another_card() -> None:
    card = CARDS[0]
    unnamed = Domain(kind=DomainKind.GPU, host="hpc-n7", pci=card.pci)
    by_uuid = Domain(kind=DomainKind.GPU, host="hpc-n7", uuid=card.uuid)
    other = Domain(kind=DomainKind.GPU, host="hpc-n8", uuid=card.uuid)
    assert same_part(card, unnamed)
    assert same_part(card, by_uuid)
    assert not same_part(card, other)
    assert not same_part(card, CARDS[1])


def test_a_command_id_that_is_no_label_becomes_one() -> None:
    check: Callable[[str], bool] = lambda text: len(text) < 64 and text.isalnum()  # noqa: E731
    assert value("0f3c9a51d2e84b7790aa1c3e") == "0f3c9a51d2e84b7790aa1c3e"
    assert check(value("by hand: please/now"))
    assert check(value("x" * 64))
