from evidence.decisions import Cause, Command, DesiredState, Domain, DomainKind, Level, Status
from rules.policy import IsolateAs, Mode, Pool

from .isolation_stage import Stage, card, node, roomy, rules, verdict


def test_shadow_marks_commands_and_publishes_no_desired_state() -> None:
    stage = Stage(rules(mode=Mode.SHADOW))
    (command,) = stage.take(verdict())
    assert isinstance(command, Command)
    assert (command.dry_run, command.level) == (True, Level.DRAIN)


def test_shadow_also_shows_what_the_budget_would_hold() -> None:
    stage = Stage(rules(mode=Mode.SHADOW))
    stage.take(verdict())
    (command,) = stage.commands(verdict(card("gpu18"), "inc-2"))
    assert command.dry_run
    assert command.held is not None


def test_after_shadow_ends_a_new_incident_of_the_same_part_is_acted_upon() -> None:
    stage = Stage(rules(mode=Mode.SHADOW))
    stage.take(verdict())
    stage.rules = rules()
    (command,) = stage.commands(verdict(incident="inc-2"), 600)
    assert not command.dry_run


def test_cordon_mode_never_goes_beyond_cordon() -> None:
    (command,) = Stage(rules(mode=Mode.CORDON)).commands(verdict())
    assert (command.level, command.dry_run) == (Level.CORDON, False)


def test_an_inference_pool_evicts_at_once_and_a_training_pool_drains() -> None:
    stage = Stage(roomy())
    (serving,) = stage.commands(verdict(pool="inference"))
    (training,) = stage.commands(verdict(card("gpu18"), "inc-2", pool="training"))
    assert (serving.level, training.level) == (Level.EVICT, Level.DRAIN)


def test_a_pool_has_its_own_mode_and_upper_limit() -> None:
    pools = {
        "default": Pool(),
        "pilot": Pool(mode=Mode.ENFORCE, at_most=Level.CORDON),
    }
    stage = Stage(rules(mode=Mode.SHADOW, pools=pools))
    (pilot,) = stage.commands(verdict(pool="pilot"))
    (other,) = stage.commands(verdict(card("gpu18"), "inc-2"))
    assert (pilot.dry_run, pilot.level) == (False, Level.CORDON)
    assert other.dry_run


def test_a_cloud_pool_isolates_the_node_for_its_card_once() -> None:
    pools = {"default": Pool(), "cloud": Pool(isolate_as=IsolateAs.NODE)}
    stage = Stage(roomy(pools=pools))
    (command,) = stage.commands(verdict(pool="cloud"))
    assert command.domain == node()
    (state,) = stage.take(verdict(card(pci="0000:5d:00"), "inc-2", pool="cloud"), 1)
    assert isinstance(state, DesiredState)


def test_what_is_slow_and_not_broken_is_never_worth_more_than_a_cordon() -> None:
    slow = verdict(cause=Cause.GPU_DEGRADED, pool="inference")
    assert Stage(roomy()).commands(slow)[0].level is Level.CORDON


def test_a_cordon_stays_one_in_a_pool_that_evicts() -> None:
    link = Domain(kind=DomainKind.LINK, switch="0x7fe1", port=9)
    told = verdict(link, cause=Cause.IB_LINK, pool="inference")
    assert Stage(roomy()).commands(told)[0].level is Level.CORDON


def test_where_a_site_acts_on_suspicions_they_are_worth_a_cordon() -> None:
    both = frozenset({Status.LOCALIZED, Status.SUSPECTED})
    told = verdict(cause=Cause.GPU_LOST, status=Status.SUSPECTED, pool="inference")
    assert Stage(roomy(act_on=both)).commands(told)[0].level is Level.CORDON


def test_by_default_only_the_inference_pool_evicts() -> None:
    for pool in (None, "training", "anything"):
        told = verdict(cause=Cause.GPU_LOST, pool=pool)
        assert Stage(roomy()).commands(told)[0].level is Level.DRAIN
