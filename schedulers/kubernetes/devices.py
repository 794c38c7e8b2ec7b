"""Takes one GPU out of service by a DeviceTaintRule, where the cluster's API has that.

A rule names driver, pool and device; the device's name is only its place, so a rule remembers the
card's UUID and ``follow`` moves it when the pool's list changes.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from evidence.decisions import Domain
from evidence.identity import digest
from schedulers.kubernetes.api import Api, ApiError, ConflictError, MissingError, path
from schedulers.kubernetes.config import KubernetesConfig
from schedulers.kubernetes.marks import Mark, marks_of, same_part, value, written
from schedulers.kubernetes.pods import Pod
from schedulers.kubernetes.slices import Device, devices_of, matching

__all__ = ["Card", "Devices", "Rule"]

_LOG = logging.getLogger(__name__)
Json = dict[str, Any]
_GROUP = "resource.k8s.io"
_VERSIONS = ("v1", "v1beta2", "v1beta1", "v1alpha3")
_ASKED_AGAIN_S = 600.0
_TRIES = 6
_MANAGED = "app.kubernetes.io/managed-by"
#: No driver calls a device so: a rule whose card is gone must not taint the one in its place.
_NOWHERE = "ringfence-card-is-gone"


class Card(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which card a rule is about, and where it was when that was last looked up."""

    driver: str
    pool: str
    device: str
    generation: int
    uuid: str | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One of our rules as it stands."""

    name: str
    body: Json
    mark: Mark
    card: Card | None


@dataclass(slots=True)
class Devices:
    """The devices of one cluster. Every method raises ApiError."""

    api: Api
    settings: KubernetesConfig
    _served: dict[str, str] = field(default_factory=dict)
    _asked: float | None = None

    def served(self) -> Mapping[str, str]:
        """Which version of the API group serves which kind, newest first; asked now and then."""
        if self._asked is not None and time.monotonic() - self._asked < _ASKED_AGAIN_S:
            return self._served
        served: dict[str, str] = {}
        try:
            group = self.api.get(f"/apis/{_GROUP}")
            offered = {one["version"] for one in group["versions"]}
            for version in (one for one in _VERSIONS if one in offered):
                for kind in self.api.get(f"/apis/{_GROUP}/{version}").get("resources", ()):
                    served.setdefault(kind["name"], f"{_GROUP}/{version}")
        except MissingError:
            served = {}
        self._served, self._asked = served, time.monotonic()
        return served

    def find(self, domain: Domain, node: str) -> tuple[Device, ...] | str:
        """A domain's devices on a node; in words why there are none that can be tainted."""
        served = self.served()
        if "devicetaintrules" not in served or "resourceslices" not in served:
            return "this cluster has no DeviceTaintRule"
        found = matching(domain, self._on(node))
        if not found:
            return f"no ResourceSlice of {node} has {domain.uuid or domain.pci or domain.id}"
        return found

    def all(self) -> tuple[Device, ...]:
        """Every GPU that a DRA driver publishes."""
        if "resourceslices" not in self.served():
            return ()
        return devices_of(
            self.api.pages(path("resourceslices", group=self.served()["resourceslices"])),
            self.settings,
        )

    def rules(self) -> Iterator[Rule]:
        """All rules of ours."""
        if "devicetaintrules" not in self.served():
            return
        for body in self.api.pages(self._where(), labelSelector=f"{_MANAGED}=ringfence"):
            for mark in marks_of(body, self.settings).values():
                yield Rule(body["metadata"]["name"], body, mark, self._card(body))

    def taint(self, mark: Mark, devices: Iterable[Device]) -> bool:
        """Have one rule a device for a mark; whether that changed anything."""
        changed = False
        for device in devices:
            changed = self._one(mark, device) or changed
        return changed

    def lift(self, domain: Domain) -> list[str]:
        """Delete a domain's rules; the devices that they named."""
        lifted = []
        for rule in list(self.rules()):
            if same_part(rule.mark.domain, domain):
                self.api.delete(self._where(rule.name))
                lifted.append(_place(rule.body))
        return lifted

    def users(self, devices: Iterable[Device]) -> list[Pod]:
        """The pods that have a claim on one of the devices."""
        if "resourceclaims" not in self.served():
            return []
        wanted = {(one.driver, one.pool, one.name) for one in devices}
        owners: set[tuple[str, str]] = set()
        for claim in self.api.pages(path("resourceclaims", group=self.served()["resourceclaims"])):
            if wanted & allocated(claim):
                space = claim["metadata"]["namespace"]
                for one in claim["status"].get("reservedFor") or ():
                    if one.get("resource") == "pods":
                        owners.add((space, one["name"]))
        pods = []
        for space, name in sorted(owners):
            try:
                body = self.api.get(path("pods", name, namespace=space))
            except MissingError:
                continue
            if body.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
                meta = body["metadata"]
                ending = bool(meta.get("deletionTimestamp"))
                pods.append(Pod(space, name, meta["uid"], ending=ending))
        return pods

    def follow(self, devices: Iterable[Device]) -> list[str]:
        """Have the rules name their cards again where a pool's list has changed; in words which."""
        pools: dict[tuple[str, str], list[Device]] = {}
        for device in devices:
            pools.setdefault((device.driver, device.pool), []).append(device)
        moved = []
        for rule in list(self.rules()):
            card = rule.card
            pool = pools.get((card.driver, card.pool)) if card else None
            if card is None or not pool or pool[0].generation == card.generation:
                continue
            domain = rule.mark.domain
            if domain.uuid is None and card.uuid is not None:
                domain = msgspec.structs.replace(domain, uuid=card.uuid)
            now = matching(domain, pool)
            try:
                self.taint(rule.mark, now)
                if card.device not in (one.name for one in now):
                    self._leave(rule, card, gone=not now, generation=pool[0].generation)
            except (ConflictError, MissingError) as error:
                _LOG.info("rule %s changed meanwhile, looked at again later: %s", rule.name, error)
                continue
            places = " ".join(one.name for one in now) or "no device"
            if places != card.device:
                moved.append(f"{domain.id}: from {card.device} to {places}")
        return moved

    def _leave(self, rule: Rule, card: Card, *, gone: bool, generation: int) -> None:
        """Take a rule off where its card is no more; it is kept while the card is nowhere."""
        if not gone:
            self.api.delete(self._where(rule.name))
            return
        newer = msgspec.structs.replace(card, device=_NOWHERE, generation=generation)
        version = rule.body["metadata"]["resourceVersion"]
        about = {self._about: msgspec.json.encode(newer).decode()}
        body = {
            "metadata": {"resourceVersion": version, "annotations": about},
            "spec": {"deviceSelector": {"device": _NOWHERE}},
        }
        self.api.merge(self._where(rule.name), body)

    def _one(self, mark: Mark, device: Device) -> bool:
        place = (device.driver, device.pool, device.name)
        name = f"ringfence-{digest(mark.domain.id, *place)}"
        wanted = self._body(name, mark, device)
        for _ in range(_TRIES):
            try:
                self.api.create(self._where(), wanted)
            except ConflictError:
                pass
            else:
                return True
            try:
                there = self.api.get(self._where(name))
                if self._same(there, wanted):
                    return False
                meta = {
                    "resourceVersion": there["metadata"]["resourceVersion"],
                    "annotations": wanted["metadata"]["annotations"],
                }
                self.api.merge(self._where(name), {"metadata": meta, "spec": wanted["spec"]})
            except (ConflictError, MissingError):
                continue
            return True
        raise ApiError(f"others keep changing DeviceTaintRule {name}", retry=True)

    def _same(self, there: Json, wanted: Json) -> bool:
        """Whether a rule says what it should, the time of its mark apart."""
        had = marks_of(there, self.settings)
        new = marks_of(wanted, self.settings)
        told = {name: (one.command, one.level, one.forced) for name, one in had.items()}
        taint, ours = there["spec"]["taint"], wanted["spec"]["taint"]
        return (
            told == {name: (one.command, one.level, one.forced) for name, one in new.items()}
            and self._card(there) == self._card(wanted)
            and there["spec"].get("deviceSelector") == wanted["spec"]["deviceSelector"]
            and all(taint.get(name) == ours[name] for name in ours)
        )

    def _body(self, name: str, mark: Mark, device: Device) -> Json:
        card = Card(
            driver=device.driver,
            pool=device.pool,
            device=device.name,
            generation=device.generation,
            uuid=device.uuid,
        )
        selector = {"driver": device.driver, "pool": device.pool, "device": device.name}
        # NoExecute makes the controller delete pods, past their budgets.
        effect = "NoExecute" if mark.forced else "NoSchedule"
        return {
            "apiVersion": self.served()["devicetaintrules"],
            "kind": "DeviceTaintRule",
            "metadata": {
                "name": name,
                "labels": {_MANAGED: "ringfence"},
                "annotations": {
                    self.settings.mark: written({mark.domain.id: mark}),
                    self._about: msgspec.json.encode(card).decode(),
                },
            },
            "spec": {
                "deviceSelector": selector,
                "taint": {
                    "key": self.settings.taint,
                    "value": value(mark.command),
                    "effect": effect,
                },
            },
        }

    @property
    def _about(self) -> str:
        return f"{self.settings.prefix}/card"

    def _card(self, body: Json) -> Card | None:
        text = body["metadata"].get("annotations", {}).get(self._about)
        try:
            return None if text is None else msgspec.json.decode(text, type=Card)
        except msgspec.DecodeError:
            return None

    def _where(self, name: str = "") -> str:
        return path("devicetaintrules", name, group=self.served()["devicetaintrules"])

    def _on(self, node: str) -> tuple[Device, ...]:
        where = path("resourceslices", group=self.served()["resourceslices"])
        return devices_of(
            self.api.pages(where, fieldSelector=f"spec.nodeName={node}"), self.settings
        )


def allocated(claim: Json) -> set[tuple[str, str, str]]:
    """The devices that a claim has: driver, pool, device."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    return {(one["driver"], one["pool"], one["device"]) for one in results}


def _place(body: Json) -> str:
    selector = body["spec"].get("deviceSelector") or {}
    return f"{selector.get('pool')}/{selector.get('device')}"
