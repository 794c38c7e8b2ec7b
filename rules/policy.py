"""What Ringfence may do, and when: policy.toml, checked and typed.

Every entry stands with its reason and its source; a file of an operator's own overrides entries
one by one, and each override gives its reason too.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from evidence.decisions import Cause, Level, Status
from rules.entries import Entry, EntryError, Reader, read
from rules.rulebook import Maturity, Rule, find_rule, is_rule

__all__ = [
    "GoverningRules",
    "Mode",
    "Note",
    "Policy",
    "PolicyError",
    "Pool",
    "RecoveryPolicy",
    "Releases",
    "WideningPolicy",
    "load",
]

SHIPPED = Path(__file__).with_name("policy.toml")

#: Facts that the host stage knows by these names; Xids may be added as ``xid-<code>``.
KNOWN_FACTS = frozenset({"gpu-lost", "remap-failure", "driver-reset-required", "sram-threshold"})

_XID_FACT = re.compile(r"xid-[1-9][0-9]{0,2}\Z")  # xid-79


#: A policy file that cannot be used; the message names file, line and key in one sentence.
PolicyError = EntryError


class Mode(StrEnum):
    """How far isolation goes: only say it, only stop new work, or what the cause is worth."""

    SHADOW = "shadow"
    CORDON = "cordon"
    ENFORCE = "enforce"


class Releases(StrEnum):
    """What follows when a part that is out was repaired: nothing, a proposal, or its release."""

    NEVER = "never"
    PROPOSE = "propose"
    AUTOMATIC = "automatic"


class IsolateAs(StrEnum):
    """Whether a card is taken out alone or with its node."""

    PART = "part"
    NODE = "node"


class CardCosts(StrEnum):
    """What one isolated card costs of the budget: its node, or its share of it."""

    NODE = "node"
    CARD = "card"


@dataclass(frozen=True, slots=True)
class Note:
    """Why an entry has its value, and where that comes from."""

    why: str
    source: str


@dataclass(frozen=True, slots=True)
class Pool:
    """What differs for the nodes of one pool; ``mode`` None is the cluster's."""

    mode: Mode | None = None
    at_least: Level = Level.CORDON
    at_most: Level = Level.DRAIN
    isolate_as: IsolateAs = IsolateAs.PART


@dataclass(frozen=True, slots=True)
class JobPolicy:
    """How the job stage listens; times in seconds."""

    settle_across_hosts_s: float
    settle_limit_s: float
    forget_after_s: float
    missing_ranks_named: int


@dataclass(frozen=True, slots=True)
class WideningPolicy:
    """How many nodes of one rack, failing within so many seconds, are the rack.

    Likewise how many hosts, falling silent within ``silent_wait_s``, are our own pipeline, and how
    many nodes, failing alike within ``common_within_s``, have a common cause.
    """

    rack_nodes: int
    rack_within_s: float
    silent_hosts: int
    silent_wait_s: float
    common_nodes: int
    common_within_s: float


@dataclass(frozen=True, slots=True)
class RecoveryPolicy:
    """What a repaired part needs to return: how, and after how many seconds without evidence."""

    release: Releases = Releases.PROPOSE
    clean_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may leave service in one sliding window of ``window_s`` seconds.

    ``node_percent`` is of ``fleet_nodes`` (0: unknown); the larger of it and the absolute counts.
    """

    window_s: float
    node_absolute: float
    node_percent: float
    link_absolute: float
    switch_absolute: float
    rack_absolute: float
    card_costs: CardCosts
    fleet_nodes: int
    gpus_per_node: int

    @property
    def card(self) -> float:
        """What one card costs, in nodes."""
        return 1.0 if self.card_costs is CardCosts.NODE else 1.0 / self.gpus_per_node

    @property
    def nodes(self) -> float:
        """Nodes that may leave service in one window."""
        return max(self.node_absolute, self.node_percent / 100 * self.fleet_nodes)


@dataclass(frozen=True, slots=True)
class Policy:
    """All of policy.toml; ``notes`` holds the reason and source of each entry by its dotted key.

    Vary one in code with ``dataclasses.replace``.
    """

    hard_facts: frozenset[str]
    job: JobPolicy
    widening: WideningPolicy
    mode: Mode
    act_on: frozenset[Status]
    automatic_release: bool
    cool_down_s: float
    act_by_s: float
    settle_s: float
    fresh_s: float
    stands_for_s: float
    resend_s: float
    resend_limit_s: float
    failed_retries: int
    retry_failed_s: float
    levels: Mapping[Cause, Level | None]
    budget: Budget
    pools: Mapping[str, Pool]
    recovery: RecoveryPolicy = RecoveryPolicy()
    rules: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    notes: Mapping[str, Note] = field(default_factory=dict, repr=False)

    @property
    def releases(self) -> Releases:
        """What follows a repair; ``isolation.automatic_release`` says it in its older way."""
        return Releases.AUTOMATIC if self.automatic_release else self.recovery.release

    def pool(self, name: str | None) -> Pool:
        """The rules of a pool; those of ``default`` where it is not named."""
        return self.pools.get(name or "default", self.pools["default"])

    def rule(self, name: str | None) -> Rule:
        """How far a rule may act: by its own entries, else its family's, else the default's."""
        return find_rule(self.rules, name)


class GoverningRules(Protocol):
    """Anything that carries a policy: the steps ask for no more."""

    @property
    def policy(self) -> Policy:
        """The policy in force."""


# --- Reading ------------------------------------------------------------------------------------


def _number(value: Any) -> float:  # noqa: ANN401 (TOML values)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:  # noqa: PLR2004
        raise ValueError("a number that is not negative")
    return float(value)


def _count(value: Any) -> int:  # noqa: ANN401
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("a whole number that is not negative")
    return value


def _positive(value: Any) -> float:  # noqa: ANN401
    if not (number := _number(value)):
        raise ValueError("a number above zero")
    return number


def _cards(value: Any) -> int:  # noqa: ANN401
    if not (count := _count(value)):
        raise ValueError("a whole number above zero")
    return count


def _flag(value: Any) -> bool:  # noqa: ANN401
    if not isinstance(value, bool):
        raise ValueError("true or false")  # noqa: TRY004 (one kind of error for all)
    return value


def _one_of(words: type[StrEnum]) -> Reader:
    def read(value: Any) -> StrEnum:  # noqa: ANN401
        try:
            return words(value)
        except ValueError:
            raise ValueError("one of " + ", ".join(words)) from None

    return read


def _level_or_none(value: Any) -> Level | None:  # noqa: ANN401
    if value == "none":
        return None
    try:
        return Level(value)
    except ValueError:
        raise ValueError("one of none, " + ", ".join(Level)) from None


def _statuses(value: Any) -> frozenset[Status]:  # noqa: ANN401
    allowed = (Status.LOCALIZED, Status.SUSPECTED)
    if not isinstance(value, list) or not set(map(str, value)) <= set(allowed):
        raise ValueError("a list of localized and suspected")
    return frozenset(map(Status, value))


_POOL_KEYS: Mapping[str, Reader] = {
    "mode": _one_of(Mode),
    "at_least": _one_of(Level),
    "at_most": _one_of(Level),
    "isolate_as": _one_of(IsolateAs),
}

_RULE_KEYS: Mapping[str, Reader] = {"maturity": _one_of(Maturity), "enabled": _flag}

_KEYS: Mapping[str, Reader] = {
    "job.settle_across_hosts_s": _positive,
    "job.settle_limit_s": _positive,
    "job.forget_after_s": _positive,
    "job.missing_ranks_named": _count,
    "widening.rack_nodes": _cards,
    "widening.rack_within_s": _positive,
    "widening.silent_hosts": _cards,
    "widening.silent_wait_s": _positive,
    "widening.common_nodes": _cards,
    "widening.common_within_s": _positive,
    "recovery.release": _one_of(Releases),
    "recovery.clean_s": _number,
    "isolation.mode": _one_of(Mode),
    "isolation.act_on": _statuses,
    "isolation.automatic_release": _flag,
    "isolation.cool_down_s": _number,
    "isolation.act_by_s": _positive,
    "isolation.settle_s": _number,
    "isolation.fresh_s": _positive,
    "isolation.stands_for_s": _positive,
    "isolation.resend_s": _positive,
    "isolation.resend_limit_s": _positive,
    "isolation.failed_retries": _count,
    "isolation.retry_failed_s": _positive,
    "budget.window_s": _positive,
    "budget.node_absolute": _number,
    "budget.node_percent": _number,
    "budget.link_absolute": _number,
    "budget.switch_absolute": _number,
    "budget.rack_absolute": _number,
    "budget.card_costs": _one_of(CardCosts),
    "fleet.nodes": _count,
    "fleet.gpus_per_node": _cards,
    **{f"levels.{cause}": _level_or_none for cause in Cause},
}


def _reader(key: str) -> Reader | None:
    section, _, rest = key.partition(".")
    name, _, setting = rest.rpartition(".")
    match section:
        case "hard_facts":
            return _flag if rest in KNOWN_FACTS or _XID_FACT.match(rest) else None
        case "pools":
            return _POOL_KEYS.get(setting) if name else None
        case "rules":
            return _RULE_KEYS.get(setting) if is_rule(name) else None
    return _KEYS.get(key)


def load(path: Path | None = None) -> Policy:
    """Read the shipped policy, overridden entry by entry by the file at ``path``.

    Raises PolicyError, one sentence with file, line and key, for anything that is not a policy.
    """
    entries = _read(SHIPPED)
    if path is not None:
        entries |= _read(path)
    policy = _policy(entries)
    for name, pool in policy.pools.items():
        if list(Level).index(pool.at_least) > list(Level).index(pool.at_most):
            crossed = (entries.get(f"pools.{name}.{own}") for own in ("at_most", "at_least"))
            where = next(entry.where for entry in crossed if entry is not None)
            raise PolicyError(
                f"{where}: pools.{name}: at_least {pool.at_least} is above at_most {pool.at_most}"
            )
    return policy


def _read(path: Path) -> dict[str, Entry]:
    return read(path, _reader, ("why", "key in a policy"))


def _policy(entries: Mapping[str, Entry]) -> Policy:
    def section(name: str) -> dict[str, Any]:
        start = name + "."
        return {k[len(start) :]: e.value for k, e in entries.items() if k.startswith(start)}

    fleet = section("fleet")
    return Policy(
        hard_facts=frozenset(fact for fact, holds in section("hard_facts").items() if holds),
        job=JobPolicy(**section("job")),
        widening=WideningPolicy(**section("widening")),
        recovery=RecoveryPolicy(**section("recovery")),
        **section("isolation"),
        levels=MappingProxyType({Cause.known(k): v for k, v in section("levels").items()}),
        budget=Budget(
            **section("budget"), fleet_nodes=fleet["nodes"], gpus_per_node=fleet["gpus_per_node"]
        ),
        pools=MappingProxyType(_pools(section("pools"))),
        rules=MappingProxyType(_by_name(section("rules"))),
        notes=MappingProxyType({k: Note(e.why, e.source) for k, e in entries.items()}),
    )


def _by_name(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings of named things: ``name.setting`` to {name: {setting: value}}."""
    named: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        name, _, setting = key.rpartition(".")
        named.setdefault(name, {})[setting] = value
    return named


def _pools(values: Mapping[str, Any]) -> dict[str, Pool]:
    by_pool = _by_name(values)
    default = by_pool.get("default", {})
    return {name: Pool(**(default | own)) for name, own in by_pool.items()}
