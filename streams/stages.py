"""The stages of this build: which topics each step of the rules reads."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from evidence.decisions import DesiredState
from rules import fabric, host, isolation, job
from rules.desired import rebuild
from rules.tables import Rules
from streams.config import StreamsError
from streams.stage import Stage

__all__ = ["STAGES", "bind", "restored"]


def _host(rules: Rules) -> Stage[Any]:
    topics = ("kernel", "gpu", "suspicions", "context", "inventory")
    return Stage("host", topics, host.HostState, partial(_step, host.step, rules), host.due)


def _job(rules: Rules) -> Stage[Any]:
    return Stage("job", ("nccl",), job.JobState, partial(_job_step, rules), job.due)


def _job_step(rules: Rules, state: Any, arrived: Any) -> Any:  # noqa: ANN401 (as `_step`)
    """A job that is over leaves no key behind: there are new ones every day."""
    after, said = job.step(state, arrived, rules)
    if after is not state and after == job.JobState():
        return None, said
    return after, said


def _fabric(rules: Rules) -> Stage[Any]:
    return Stage(
        "fabric", ("fabric",), fabric.FabricState, partial(_step, fabric.step, rules), fabric.due
    )


def _isolation(rules: Rules) -> Stage[Any]:
    """A worker gives it a ``begin`` of what is isolated already; without one it holds commands."""
    topics = ("verdicts", "requests", "isolation.acks")
    step = partial(_step, isolation.step, rules)
    return Stage("isolation", topics, isolation.IsolationState, step, isolation.due)


def restored(stage: Stage[Any], states: Iterable[DesiredState]) -> Stage[Any]:
    """The isolation stage as it begins when its table is empty: from the published states."""
    kept = rebuild(states)
    return replace(stage, begin=lambda: kept)


STAGES: Mapping[str, Callable[[Rules], Stage[Any]]] = {
    "host": _host,
    "job": _job,
    "fabric": _fabric,
    "isolation": _isolation,
}


def bind(names: Iterable[str], rules: Rules) -> list[Stage[Any]]:
    """The named stages with their rules; raises StreamsError for a name that is no stage."""
    unknown = [name for name in names if name not in STAGES]
    if unknown:
        raise StreamsError(f"There is no stage {unknown[0]!r}; stages are {', '.join(STAGES)}.")
    return [STAGES[name](rules) for name in names]


def _step(step: Callable[..., Any], rules: Rules, state: Any, arrived: Any) -> Any:  # noqa: ANN401
    return step(state, arrived, rules)
