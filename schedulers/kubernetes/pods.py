"""Makes pods leave by the eviction API, which asks their PodDisruptionBudgets, within a limit."""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from schedulers.kubernetes.api import (
    Api,
    ApiError,
    BusyError,
    ConflictError,
    ForbiddenError,
    MissingError,
    UnreachableError,
    path,
)

__all__ = ["Cleared", "Pod", "clear", "delete", "on_node"]

Json = dict[str, Any]
_FINISHED = ("Succeeded", "Failed")
_MIRROR = "kubernetes.io/config.mirror"
_SHORTEST_S, _LONGEST_S = 0.2, 3.0  # between two looks
_NAMED = 5  # pods in an ack


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that is to leave; ``ending``: it is being deleted and has its grace left."""

    namespace: str
    name: str
    uid: str
    ending: bool = False

    @property
    def words(self) -> str:
        """Its name for people."""
        return f"{self.namespace}/{self.name}"


@dataclass(slots=True)
class Cleared:
    """What came of it: how many left, who is ending, who is held and by what."""

    gone: int = 0
    ending: tuple[Pod, ...] = ()
    held: dict[Pod, str] = field(default_factory=dict)
    stopped: bool = False

    @property
    def words(self) -> str:
        """One clause for the ack."""
        said = [f"{self.gone} pod{'' if self.gone == 1 else 's'} left"]
        if self.ending:
            said.append(f"ending within their grace: {_listed(pod.words for pod in self.ending)}")
        if self.held:
            said.append(
                "still there: " + _listed(f"{pod.words} ({why})" for pod, why in self.held.items())
            )
        if self.stopped:
            said.append("stopped in the middle")
        return ", ".join(said)


def on_node(api: Api, node: str) -> list[Pod]:
    """The pods that a drain of a node moves: running ones, no DaemonSet's, no mirror pods."""
    found = api.pages(path("pods"), fieldSelector=f"spec.nodeName={node}")
    pods = {pod.uid: pod for pod in (_pod(one) for one in found if _moves(one))}
    # Our own goes last: it would take us along.
    ours = os.environ.get("HOSTNAME")
    return sorted(pods.values(), key=lambda pod: (pod.name == ours, pod.words))


def clear(api: Api, look: Callable[[], list[Pod]], until: float, stop: Event) -> Cleared:
    """Evict what ``look`` finds until it finds nothing, ``until`` is past or ``stop`` is set.

    ``until`` is a monotonic time; each pod is asked for at least once, however late it is.
    A pod that a budget protects, or that has not yet gone, is looked at again and again. Raises
    ForbiddenError and UnreachableError: without them nothing can be told.
    """
    seen: set[str] = set()
    pause = _SHORTEST_S
    while True:
        pods = look()
        seen |= {pod.uid for pod in pods}
        held = {
            pod: why for pod in pods if not pod.ending and (why := _evict(api, pod)) is not None
        }
        left = [pod for pod in pods if pod not in held]
        if not pods or stop.is_set() or time.monotonic() >= until:
            ending = tuple(pod for pod in left)
            return Cleared(len(seen) - len(pods), ending, held, bool(pods) and stop.is_set())
        stop.wait(max(0.0, min(pause, until - time.monotonic())))
        pause = min(pause * 1.5, _LONGEST_S)


def delete(api: Api, pods: Iterable[Pod]) -> None:
    """Delete pods past their budgets, each with its own grace."""
    for pod in pods:
        body = {"preconditions": {"uid": pod.uid}}
        try:
            api.delete(path("pods", pod.name, namespace=pod.namespace), body)
        except ConflictError:
            continue  # another pod of that name: the one meant is gone


def _evict(api: Api, pod: Pod) -> str | None:
    """Why a pod may not leave now; None where it may."""
    try:
        api.evict(pod.namespace, pod.name, pod.uid)
    except BusyError as error:
        return "; ".join(error.causes) or str(error)
    except (MissingError, ConflictError):
        return None
    except (ForbiddenError, UnreachableError) as error:
        if isinstance(error, UnreachableError) and error.status:
            return str(error)  # such as: covered by two budgets
        raise
    except ApiError as error:
        return str(error)
    return None


def _moves(pod: Json) -> bool:
    metadata = pod.get("metadata", {})
    if pod.get("status", {}).get("phase") in _FINISHED or _MIRROR in metadata.get(
        "annotations", {}
    ):
        return False
    owners = metadata.get("ownerReferences") or ()
    return not any(one.get("kind") == "DaemonSet" and one.get("controller") for one in owners)


def _pod(pod: Json) -> Pod:
    metadata = pod["metadata"]
    return Pod(
        metadata["namespace"],
        metadata["name"],
        metadata["uid"],
        ending=bool(metadata.get("deletionTimestamp")),
    )


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
    return ", ".join(every[:_NAMED]) + more
