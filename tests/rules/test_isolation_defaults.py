"""The shipped policy is the safe one: each default of a first install."""

from dataclasses import replace

from evidence.decisions import Cause, Domain, DomainKind, Level, Status
from rules.isolation import IsolationState
from rules.policy import CardCosts, IsolateAs, Mode, Releases, load

from .isolation_stage import Governed, Stage, card, node, verdict

SHIPPED = load()


def test_each_default_of_a_first_install() -> None:
    assert SHIPPED.mode is Mode.SHADOW
    assert SHIPPED.act_on == {Status.LOCALIZED}
    assert SHIPPED.releases is Releases.PROPOSE
    assert (SHIPPED.budget.window_s, SHIPPED.budget.nodes) == (3600.0, 1.0)
    assert replace(SHIPPED.budget, fleet_nodes=1250).nodes == 12.5
    assert SHIPPED.budget.card_costs is CardCosts.NODE
    assert SHIPPED.budget.rack_absolute == 0
    assert SHIPPED.pool(None).at_most is Level.DRAIN
    assert SHIPPED.pool(None).isolate_as is IsolateAs.PART
    assert {pool.mode for pool in SHIPPED.pools.values()} == {None}


def test_no_cause_evicts_and_no_doubt_acts() -> None:
    assert Level.EVICT not in SHIPPED.levels.values()
    silent = (Cause.FACILITY, Cause.SOFTWARE, Cause.UNKNOWN)
    assert {SHIPPED.levels[cause] for cause in silent} == {None}


def test_as_shipped_every_command_is_a_dry_run() -> None:
    stage = Stage(Governed(SHIPPED))
    commands = [*stage.commands(verdict()), *stage.commands(verdict(node("n2"), "i2", pool="x"))]
    assert [one.dry_run for one in commands] == [True, True]


def test_raised_to_cordon_nothing_harder_is_done() -> None:
    stage = Stage(Governed(replace(SHIPPED, mode=Mode.CORDON)))
    (command,) = stage.commands(verdict(pool="inference"))
    assert (command.dry_run, command.level) == (False, Level.CORDON)


def test_a_rack_waits_for_a_person() -> None:
    stage = Stage(Governed(replace(SHIPPED, mode=Mode.ENFORCE)))
    rack = Domain(kind=DomainKind.RACK, rack="r4")
    assert stage.commands(verdict(rack, cause=Cause.NODE))[0].held is not None


def test_without_its_state_the_stage_holds() -> None:
    stage = Stage(Governed(replace(SHIPPED, mode=Mode.ENFORCE)), IsolationState())
    assert stage.commands(verdict(card()))[0].held is not None
