"""Servers whose resource.k8s.io has other versions: asked for, not guessed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from evidence.decisions import AckStatus, Action, Command, Domain, DomainKind, Level
from schedulers.kubernetes.adapter import KubernetesAdapter
from schedulers.kubernetes.api import Api
from schedulers.kubernetes.config import KubernetesConfig
from schedulers.kubernetes.devices import Devices
from schedulers.kubernetes.marks import mark
from schedulers.kubernetes.slices import Device, devices_of

Commands = Callable[..., Command]
FIRST = "GPU-5d7e9f10-2b3c-4d5e-8f60-718293a4b5c6"
HOST = "hpc-n17"


def card(**fields: Any) -> dict[str, Any]:
    domain = Domain(kind=DomainKind.GPU, host=HOST, pci="0000:1a:00", uuid=FIRST)
    return {"domain": domain, "domain_id": domain.id, "level": Level.CORDON} | fields


def as_admin(plane: Any) -> KubernetesAdapter:
    plane.call("POST", "/api/v1/nodes", {"metadata": {"name": HOST}})
    return KubernetesAdapter(KubernetesConfig(kubeconfig=Path(plane.folder) / "admin.kubeconfig"))


def test_a_rule_is_written_in_the_version_that_the_server_has(
    other_server: Callable[[str], Any], command: Commands
) -> None:
    plane = other_server("resource.k8s.io/v1=false,resource.k8s.io/v1beta2=true")
    group = "/apis/resource.k8s.io/v1beta2"
    devices = [{"name": "gpu-5", "attributes": {"uuid": {"string": FIRST}}}]
    pool = {"name": HOST, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": HOST, "pool": pool, "devices": devices}
    plane.call("POST", f"{group}/resourceslices", {"metadata": {"name": "s"}, "spec": spec})
    adapter = as_admin(plane)
    outcome = adapter.apply(command(**card()))
    assert outcome.detail == f"device {HOST}/gpu-5: tainted by DeviceTaintRule"
    (rule,) = plane.call("GET", f"{group}/devicetaintrules")["items"]
    assert rule["spec"]["deviceSelector"]["device"] == "gpu-5"
    adapter.apply(command(id="c2", action=Action.RELEASE, **card()))
    assert plane.call("GET", f"{group}/devicetaintrules")["items"] == []


def test_a_cluster_without_device_taints_isolates_the_node_and_says_why(
    other_server: Callable[[str], Any], command: Commands
) -> None:
    plane = other_server("resource.k8s.io/v1=false")
    adapter = as_admin(plane)
    outcome = adapter.apply(command(**card()))
    assert outcome.status is AckStatus.DONE
    assert "this cluster has no DeviceTaintRule: cordoned and tainted" in outcome.detail
    assert [one.command for one in adapter.observe().standing] == ["c1"]


@pytest.mark.parametrize(
    ("server", "version"), [("1.34", "v1alpha3"), ("1.36", "v1beta2"), ("1.37", "v1")]
)
def test_the_rule_fits_the_published_schema_of_each_server_unseen(
    server: str, version: str, command: Commands
) -> None:
    api = Api(client=None, timeout_s=1.0)  # type: ignore[arg-type] (nothing is called)
    devices = Devices(api, KubernetesConfig())
    devices._served, devices._asked = {"devicetaintrules": f"resource.k8s.io/{version}"}, 1e18
    isolate = command(**card())
    device = Device("gpu.nvidia.com", HOST, "gpu-5", 1, node=HOST, uuid=FIRST)
    body = devices._body("ringfence-x", mark(isolate, isolate.issued_at), device)
    kubernetes_validate.validate(body, server, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(body | {"specs": {}}, server, strict=True)


def test_devices_of_old_slices_and_replaced_generations_are_told_apart() -> None:
    def one(name: str, generation: int, uuid: str) -> dict[str, Any]:
        pool = {"name": HOST, "generation": generation}
        device = {"name": "gpu-0", "basic": {"attributes": {"uuid": {"string": uuid}}}}
        spec = {"driver": "gpu.nvidia.com", "nodeName": HOST, "pool": pool, "devices": [device]}
        return {"metadata": {"name": name}, "spec": spec}

    other = one("c", 9, "GPU-other")
    other["spec"]["driver"] = "nic.example.com"
    found = devices_of([one("a", 1, "GPU-old"), one("b", 2, FIRST), other], KubernetesConfig())
    assert [(device.name, device.uuid) for device in found] == [("gpu-0", FIRST)]
