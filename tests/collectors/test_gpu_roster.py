"""Who is who among the cards, when some of them fall silent."""

from collectors.gpu.roster import Roster
from evidence.records import GpuSnapshot, GpuStatus


def card(name: str, index: int, **differing: object) -> GpuSnapshot:
    return GpuSnapshot(
        index=index,
        uuid=f"GPU-{name}",
        serial=f"S-{name}",
        pci=f"0000:{ord(name):02x}:00",
        name="NVIDIA B200",
        **differing,  # type: ignore[arg-type]
    )


def silent(index: int, status: GpuStatus = GpuStatus.TIMEOUT) -> GpuSnapshot:
    return GpuSnapshot(index=index, status=status)


def test_a_silent_card_has_the_name_of_its_index() -> None:
    roster = Roster()
    roster.call([card("a", 0), card("b", 1)])
    assert roster.call([card("a", 0), silent(1)]) == (
        card("a", 0),
        card("b", 1, status=GpuStatus.TIMEOUT),
    )


def test_a_card_never_seen_stays_without_a_name() -> None:
    roster = Roster()
    assert roster.call([card("a", 0), silent(1)]) == (card("a", 0), silent(1))


def test_indexes_that_moved_down_do_not_rename_cards() -> None:
    roster = Roster()
    roster.call([card("a", 0), card("b", 1), card("c", 2), card("d", 3)])
    gone = card("b", 1, status=GpuStatus.LOST)
    moved = (card("a", 0), card("c", 1), card("d", 2), gone)
    assert roster.call([card("a", 0), card("c", 1), card("d", 2)]) == moved
    # Index 1 is of card c now, although card b was last counted there too.
    assert roster.call([card("a", 0), silent(1), card("d", 2)]) == (
        card("a", 0),
        card("c", 1, status=GpuStatus.TIMEOUT),
        card("d", 2),
        gone,
    )


def test_a_silent_index_is_not_named_after_a_card_that_answers_elsewhere() -> None:
    roster = Roster()
    roster.call([card("a", 0), card("b", 1), card("c", 2)])
    called = roster.call([card("b", 0), silent(1)])
    assert called[:2] == (card("b", 0), silent(1))
    assert called[2:] == (
        card("a", 0, status=GpuStatus.LOST),
        card("c", 2, status=GpuStatus.LOST),
    )


def test_a_card_put_into_anothers_slot_replaces_it() -> None:
    roster = Roster()
    roster.call([card("a", 0)])
    new = GpuSnapshot(index=0, uuid="GPU-new", pci="0000:61:00")
    assert roster.call([new]) == (new,)
    assert roster.call([silent(0)])[0].uuid == "GPU-new"


def test_a_card_moved_to_another_slot_is_one_card() -> None:
    roster = Roster()
    roster.call([card("a", 0)])
    moved = GpuSnapshot(index=0, uuid="GPU-a", pci="0000:99:00", serial="S-a", name="NVIDIA B200")
    assert roster.call([moved]) == (moved,)
    assert roster.call([moved]) == (moved,)


def test_a_value_not_read_this_time_is_known_from_before() -> None:
    roster = Roster()
    roster.call([card("a", 0)])
    assert roster.call([GpuSnapshot(index=0, uuid="GPU-a", pci="0000:61:00")]) == (card("a", 0),)
    assert roster.call([GpuSnapshot(index=0, uuid="GPU-a")]) == (card("a", 0),)
