"""Takes a whole node out of service and back: one patch, then its condition and an event.

The patch carries what counts. A condition or event that fails is said in the ack and no more.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from evidence.decisions import Action, Command, Domain
from evidence.identity import digest
from schedulers.kubernetes.api import Api, ApiError, ConflictError, MissingError, path
from schedulers.kubernetes.config import KubernetesConfig
from schedulers.kubernetes.marks import (
    Change,
    Mark,
    forced,
    isolated,
    marks_of,
    released,
    same_part,
)

__all__ = ["Nodes"]

Json = dict[str, Any]
_TRIES = 10
_PAUSE_S = 0.02
_TEXT = 900  # an event's message has at most 1,024 characters


@dataclass(slots=True)
class Nodes:
    """The nodes of one cluster. Methods raise ApiError, MissingError where there is no node."""

    api: Api
    settings: KubernetesConfig
    clock: Callable[[], datetime]

    def of(self, host: str) -> Json:
        """The node of a host."""
        label = self.settings.node_label
        if not label:
            return self.api.get(path("nodes", self.host(host)))
        found = {one["metadata"]["name"]: one for one in self._labelled(f"{label}={host}")}
        if len(found) > 1:
            raise ApiError(f"{len(found)} nodes have the label {label}={host}: {sorted(found)[:3]}")
        if not found:
            raise MissingError(f"no node has the label {label}={host}")
        return next(iter(found.values()))

    def host(self, named: str) -> str:
        """A host's name as `host_of` tells it: nodes have names in lower case."""
        return named if self.settings.node_label else named.lower()

    def marked(self, domain: Domain) -> Json | None:
        """The node that carries a domain's mark, whatever it is called by now."""
        found = (
            node
            for node in self.all()
            if any(same_part(one.domain, domain) for one in marks_of(node, self.settings).values())
        )
        return next(found, None)

    def host_of(self, node: Json) -> str | None:
        """The host of a node; None where its label is missing."""
        meta = node["metadata"]
        label = self.settings.node_label
        host = meta.get("labels", {}).get(label) if label else meta["name"]
        return None if host is None else str(host)

    def all(self) -> list[Json]:
        """Every node once."""
        return list(
            {one["metadata"]["name"]: one for one in self.api.pages(path("nodes"))}.values()
        )

    def isolate(self, node: Json, command: Command) -> tuple[Json, Change]:
        """Cordon, taint and mark; then the condition and the event."""
        now = self.clock()
        node, change = self._changed(node, lambda read: isolated(read, command, now, self.settings))
        if change.by_hand:
            return node, change
        return node, self._told(node, command, change)

    def force(self, node: Json, command: Command) -> tuple[Json, Change]:
        """Add the NoExecute taint to what a command did."""
        return self._changed(node, lambda read: forced(read, command, self.settings))

    def release(self, node: Json, command: Command) -> tuple[Json, Change]:
        """Take back what the domain's mark did."""
        node, change = self._changed(
            node, lambda read: released(read, command.domain, self.settings)
        )
        if change.body is None and not self._accused(node):
            return node, change
        return node, self._told(node, command, change)

    def event(self, node: Json, command: Command, text: str) -> str | None:
        """Tell people by an event of the node, once a command; why that failed."""
        meta = node["metadata"]
        out = command.action is Action.ISOLATE
        at = self.clock().strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"ringfence.{digest('event', command.id, command.domain.id)}",
                "namespace": self.settings.event_namespace,
            },
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Node",
                "name": meta["name"],
                "uid": meta["uid"],
            },
            "type": "Warning" if out else "Normal",
            "reason": "RingfenceIsolated" if out else "RingfenceReleased",
            "message": text[:_TEXT],
            "source": {"component": "ringfence"},
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }
        try:
            self.api.create(path("events", namespace=self.settings.event_namespace), body)
        except ConflictError:
            return None
        except ApiError as error:
            return f"no event: {error}"
        return None

    def _labelled(self, selector: str) -> list[Json]:
        return list(self.api.pages(path("nodes"), labelSelector=selector))

    def _changed(self, node: Json, make: Callable[[Json], Change]) -> tuple[Json, Change]:
        """Read, modify, write; anew where somebody else wrote in between."""
        where = path("nodes", node["metadata"]["name"])
        for attempt in range(_TRIES):
            change = make(node)
            if change.body is None:
                return node, change
            try:
                return self.api.merge(where, change.body), change
            except ConflictError:
                time.sleep(_PAUSE_S * attempt)
                node = self.api.get(where)
        raise ApiError(
            f"others kept changing node {node['metadata']['name']}: {_TRIES} tries", retry=True
        )

    def _told(self, node: Json, command: Command, change: Change) -> Change:
        """The change, with what could not be told beside it."""
        text = f"{command.domain.id}: {change.words}; {command.reason} (command {command.id})"
        failed = (self._condition(node, command, change), self.event(node, command, text))
        said = "; ".join(one for one in failed if one)
        words = f"{change.words} ({said})" if said else change.words
        return Change(change.body, change.marks, words)

    def _condition(self, node: Json, command: Command, change: Change) -> str | None:
        """Have the node's condition say what the marks say; why that failed."""
        wanted = self._says(command, change)
        had = self._had(node)
        if had is None and wanted["status"] == "False":
            return None
        if had is not None and all(had.get(name) == text for name, text in wanted.items()):
            return None
        now = self.clock().strftime("%Y-%m-%dT%H:%M:%SZ")
        turned = had is None or had.get("status") != wanted["status"]
        wanted["lastHeartbeatTime"] = now
        wanted["lastTransitionTime"] = now if turned or had is None else had["lastTransitionTime"]
        where = path("nodes", node["metadata"]["name"]) + "/status"
        try:
            self.api.strategic(where, {"status": {"conditions": [wanted]}})
        except ApiError as error:
            return f"no condition: {error}"
        return None

    def _says(self, command: Command, change: Change) -> dict[str, Any]:
        if not change.marks:
            return {
                "type": self.settings.condition,
                "status": "False",
                "reason": "Released",
                "message": f"released by command {command.id}",
            }
        marks = sorted(change.marks.items())
        first = min(marks, key=lambda one: (one[1].at, one[0]))[1]
        return {
            "type": self.settings.condition,
            "status": "True",
            "reason": f"Level{first.level.capitalize()}",
            "message": "; ".join(_line(name, mark) for name, mark in marks)[:_TEXT],
        }

    def _had(self, node: Json) -> Json | None:
        conditions = node.get("status", {}).get("conditions") or ()
        found = (one for one in conditions if one.get("type") == self.settings.condition)
        return next(found, None)

    def _accused(self, node: Json) -> bool:
        had = self._had(node)
        return had is not None and had.get("status") == "True"


def _line(name: str, mark: Mark) -> str:
    return f"{name} ({mark.level}): {mark.reason} (command {mark.command})"
