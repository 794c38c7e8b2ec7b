"""What a cluster's nodes, pods and devices say at one moment, as standings and context records.

An unplanned reboot and a node that is not ready are no context that explains a fault: they may be
what the fault did. Only a reboot of a node that was out of service is told.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from evidence.decisions import Domain, DomainKind
from evidence.identity import digest
from evidence.records import ContextKind, ContextRecord
from schedulers.adapter import Standing
from schedulers.kubernetes.config import KubernetesConfig
from schedulers.kubernetes.devices import Rule
from schedulers.kubernetes.marks import THEIRS, Mark, as_time, marks_of, undone, whose_cordon
from schedulers.kubernetes.slices import Device

__all__ = ["Memory", "allocations", "of_devices", "of_node", "of_rules"]

Json = dict[str, Any]
_BY = ("cordon-by", "cordoned-by")
_WHY = ("cordon-reason", "cordoned-reason")
_KUBERNETES = "node.kubernetes.io/"
_CORDON = "node.kubernetes.io/unschedulable"  # the shadow of spec.unschedulable, not another fact


@dataclass(slots=True)
class Memory:
    """What was seen last time: it tells who has started anew, and who is no longer there."""

    boots: dict[str, tuple[str, bool, datetime]] = field(default_factory=dict)
    ours: dict[str, list[Standing]] = field(default_factory=dict)

    def absent(
        self, nodes: Container[str], standing: Iterable[Standing], name: Callable[[str], str]
    ) -> list[Standing]:
        """What stood on nodes that are no longer in the cluster: nobody took that back by hand.

        ``name`` makes a host of a command one of ``nodes``.
        """
        now: dict[str, list[Standing]] = {}
        for one in standing:
            if one.command is not None and one.domain.host is not None:
                now.setdefault(name(one.domain.host), []).append(one)
        gone = {host: told for host, told in self.ours.items() if host not in nodes}
        kept = {host: told for host, told in gone.items() if host not in now}
        self.ours = now | kept
        return [one for host in sorted(kept) for one in kept[host]]

    def reboot(self, host: str, node: Json, at: datetime) -> ContextRecord | None:
        """A node that started anew while it was out of service, or None."""
        boot = node.get("status", {}).get("nodeInfo", {}).get("bootID")
        if not boot:
            return None
        before = self.boots.get(host)
        out = bool(node.get("spec", {}).get("unschedulable"))
        self.boots[host] = (boot, out, at)
        if before is None or before[0] == boot or not before[1]:
            return None
        return ContextRecord(
            id=digest("context", "kubernetes", "reboot", host, boot),
            host=host,
            observed_at=at,
            kind=ContextKind.REBOOT,
            at=before[2],
            until=at,
            ended=True,
            by="kubernetes",
            reason="its boot id changed while it was out of service",
        )


def of_node(
    node: Json, host: str, at: datetime, settings: KubernetesConfig
) -> tuple[list[Standing], list[ContextRecord]]:
    """Who keeps a node out of service, and since when; drains by others as context too."""
    marks = marks_of(node, settings)
    standing = [] if undone(node, settings) else [_ours(one) for one in marks.values()]
    domain = Domain(kind=DomainKind.NODE, host=host)
    told = []
    spec = node.get("spec", {})
    if spec.get("unschedulable") and (not marks or whose_cordon(node, settings) == THEIRS):
        by, since = _who(node)
        reason = _named(node, _WHY) or "cordoned"
        standing.append(Standing(domain, None, by, reason, since))
        told.append(_drain(host, at, by, reason, since))
    for taint in spec.get("taints") or ():
        key, since = str(taint["key"]), as_time(taint.get("timeAdded"))
        if key in settings.foreign_taints:
            standing.append(Standing(domain, None, key.partition("/")[0], key, since))
            told.append(_drain(host, at, key.partition("/")[0], key, since))
        elif _evicts(taint):
            told.append(_drain(host, at, "kubernetes", key, since))
    return standing, told


def of_rules(rules: Iterable[Rule]) -> list[Standing]:
    """Our device taints; a card with several devices stands once."""
    found = {(rule.mark.domain.id, rule.mark.command): _ours(rule.mark) for rule in rules}
    return [found[one] for one in sorted(found)]


def of_devices(devices: Iterable[Device], hosts: Mapping[str, str]) -> list[Standing]:
    """Devices that their own driver keeps from new work."""
    return [
        Standing(
            Domain(
                kind=DomainKind.GPU,
                host=hosts[device.node],
                pci=device.pci,
                uuid=device.parent or device.uuid,
            ),
            None,
            device.driver,
            key,
            since,
        )
        for device in devices
        if device.node is not None and device.node in hosts
        for key, since in device.taints
    ]


def allocations(
    pods: Iterable[Json], hosts: Mapping[str, str], at: datetime, settings: KubernetesConfig
) -> list[ContextRecord]:
    """Who uses GPUs: a record a job and host, with all hosts of the job."""
    jobs: dict[tuple[str, str, int], dict[str, list[Json]]] = {}
    for pod in pods:
        host = hosts.get(pod.get("spec", {}).get("nodeName", ""))
        if host is None or not _uses(pod, settings):
            continue
        meta = pod["metadata"]
        key = (meta["namespace"], _job(meta, settings), _attempt(meta, settings))
        jobs.setdefault(key, {}).setdefault(host, []).append(pod)
    return [
        _allocation(key, host, tuple(sorted(places)), here, at)
        for key, places in sorted(jobs.items())
        for host, here in sorted(places.items())
    ]


def _allocation(
    key: tuple[str, str, int], host: str, hosts: tuple[str, ...], pods: list[Json], at: datetime
) -> ContextRecord:
    owner, job, attempt = key
    began = [
        since
        for pod in pods
        if (since := as_time(pod.get("status", {}).get("startTime") or _created(pod)))
    ]
    since = min(began, default=at)
    images = sorted({str(_first(pod).get("image", "")) for pod in pods})
    return ContextRecord(
        id=digest("context", "kubernetes", "allocation", host, *key, hosts, since.isoformat()),
        host=host,
        observed_at=at,
        kind=ContextKind.ALLOCATION,
        at=since,
        job=job,
        attempt=attempt,
        hosts=hosts,
        image=images[0] or None,
        owner=owner,
        by="kubernetes",
    )


def _ours(mark: Mark) -> Standing:
    return Standing(mark.domain, mark.command, "ringfence", mark.reason, mark.at)


def _drain(host: str, at: datetime, by: str, reason: str, since: datetime | None) -> ContextRecord:
    return ContextRecord(
        id=digest("context", "kubernetes", "drain", host, by, reason, since or ""),
        host=host,
        observed_at=at,
        kind=ContextKind.DRAIN,
        at=since or at,
        by=by,
        reason=reason,
    )


def _who(node: Json) -> tuple[str, datetime | None]:
    """Who cordoned a node: as its labels say, else the program that wrote the field last."""
    since = None
    manager = ""
    for one in node["metadata"].get("managedFields") or ():
        if "f:unschedulable" in (one.get("fieldsV1") or {}).get("f:spec", {}):
            manager, since = str(one.get("manager", "")), as_time(one.get("time"))
    return _named(node, _BY) or manager or "unknown", since


def _named(node: Json, names: tuple[str, ...]) -> str | None:
    for kind in ("labels", "annotations"):
        for key, text in sorted((node["metadata"].get(kind) or {}).items()):
            if key.rpartition("/")[2] in names and text:
                return str(text)
    return None


def _evicts(taint: Json) -> bool:
    key = str(taint["key"])
    return taint.get("effect") == "NoExecute" and key.startswith(_KUBERNETES) and key != _CORDON


def _uses(pod: Json, settings: KubernetesConfig) -> bool:
    if pod.get("status", {}).get("phase") not in ("Running", "Pending", "Unknown"):
        return False
    spec = pod["spec"]
    if spec.get("resourceClaims"):
        return True
    wants = (one.get("resources", {}).get("limits") or {} for one in spec.get("containers") or ())
    return any(one.get(settings.gpu_resource) not in (None, "0", 0) for one in wants)


def _job(meta: Json, settings: KubernetesConfig) -> str:
    labels = meta.get("labels") or {}
    for name in settings.job_labels:
        if labels.get(name):
            return str(labels[name])
    for owner in meta.get("ownerReferences") or ():
        if owner.get("controller"):
            return str(owner["name"])
    return str(meta["name"])


def _attempt(meta: Json, settings: KubernetesConfig) -> int:
    labels = meta.get("labels") or {}
    for name in settings.attempt_labels:
        if str(labels.get(name, "")).isdecimal():
            return int(labels[name])
    return 0


def _first(pod: Json) -> Json:
    containers = pod["spec"].get("containers") or [{}]
    found: Json = containers[0]
    return found


def _created(pod: Json) -> object:
    return pod["metadata"].get("creationTimestamp")
