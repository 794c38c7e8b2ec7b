from datetime import timedelta

from evidence.decisions import (
    Action,
    Command,
    DesiredState,
    RequestAction,
    Status,
)

from .isolation_stage import T0, Stage, card, request, roomy, verdict


def test_a_card_known_by_place_and_later_by_uuid_is_one_card() -> None:
    stage = Stage(roomy())
    stage.take(verdict())
    (state,) = stage.take(verdict(card(uuid="GPU-77", serial="165"), revision=1), 5)
    assert isinstance(state, DesiredState)
    assert state.aliases == ("serial:165", "uuid:GPU-77")
    assert stage.commands(verdict(card(pci=None, uuid="GPU-77"), "inc-2"), 6) == []
    (back,) = stage.commands(request(RequestAction.RELEASE, card(pci=None, uuid="GPU-77")), 7)
    assert back.domain_id == "gpu:gpu17/0000:4f:00"


def test_a_card_known_by_uuid_first_keeps_its_first_name() -> None:
    stage = Stage(roomy())
    (command,) = stage.commands(verdict(card(pci=None, uuid="GPU-77")))
    stage.take(verdict(card(uuid="GPU-77"), revision=1), 5)
    (back,) = stage.commands(request(RequestAction.RELEASE), 7)
    assert back.domain_id == command.domain_id == "gpu:gpu17/GPU-77"


def test_another_card_in_the_same_place_closes_the_isolation_of_the_first() -> None:
    stage = Stage(roomy())
    stage.take(verdict(card(uuid="GPU-old")))
    outputs = stage.take(
        verdict(card(uuid="GPU-new"), "inc-2", at=T0 + timedelta(days=3)), 3 * 86400
    )
    back, closed, out, state = outputs
    assert isinstance(back, Command)
    assert isinstance(out, Command)
    assert isinstance(closed, DesiredState)
    assert isinstance(state, DesiredState)
    assert (back.action, back.reason) == (Action.RELEASE, "the card GPU-old left this place")
    assert (closed.isolated, closed.generation) == (False, 1)
    assert (out.action, out.domain.uuid, out.generation) == (Action.ISOLATE, "GPU-new", 1)
    assert state.isolated


def test_a_healthy_card_in_the_same_place_closes_it_too() -> None:
    stage = Stage(roomy())
    stage.take(verdict(card(uuid="GPU-old")))
    well = verdict(card(uuid="GPU-new"), "inc-2", status=Status.RECOVERED)
    assert [out.action for out in stage.commands(well, 900)] == [Action.RELEASE]


def test_a_card_that_moved_frees_its_old_place_and_is_known_in_the_new_one() -> None:
    stage = Stage(roomy())
    stage.take(verdict(card(uuid="GPU-77")))
    there = card("gpu18", "0000:9b:00", uuid="GPU-77")
    back, out = stage.commands(verdict(there, "inc-2", at=T0 + timedelta(days=1)), 86400)
    assert back.reason == "the card moved to gpu:gpu18/0000:9b:00"
    assert (out.action, out.domain_id) == (Action.ISOLATE, "gpu:gpu18/0000:9b:00")
    assert stage.state.names["uuid:GPU-77"] == "gpu:gpu18/0000:9b:00"
