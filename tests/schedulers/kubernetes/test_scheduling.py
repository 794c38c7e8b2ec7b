"""What the real kube-scheduler does with what we isolate: new work goes elsewhere, or waits."""

from collections.abc import Callable
from typing import Any

from evidence.decisions import Action, Command, Domain, DomainKind, Level
from schedulers.kubernetes.adapter import KubernetesAdapter

Adapters = Callable[..., KubernetesAdapter]
Commands = Callable[..., Command]
PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
FIRST, SECOND = (
    "GPU-41d0a6b2-0c3e-4f57-9b1e-6a7c8d9e0f11",
    "GPU-93b7c5e8-5d2a-4c68-8e4f-1b2c3d4e5f22",
)


def place(cluster: Any, name: str) -> str | None:
    node: str | None = cluster.call("GET", f"{PODS}/{name}")["spec"].get("nodeName")
    return node


def waits(cluster: Any, name: str) -> bool:
    """Whether the scheduler has looked at a pod and found no place."""
    conditions = cluster.call("GET", f"{PODS}/{name}")["status"].get("conditions") or []
    return any(one.get("reason") == "Unschedulable" for one in conditions)


def submit(cluster: Any, name: str, rack: str, claim: str | None = None) -> str:
    container: dict[str, Any] = {"name": "train", "image": "pytorch:2.9"}
    spec: dict[str, Any] = {"containers": [container], "nodeSelector": {"rack": rack}}
    if claim is None:
        container["resources"] = {"limits": {"nvidia.com/gpu": "8"}}
    else:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim}]
        container["resources"] = {"claims": [{"name": "gpu"}]}
    cluster.call("POST", PODS, {"metadata": {"name": name}, "spec": spec})
    return name


def test_new_work_goes_to_the_other_node_and_comes_back_after_the_release(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    bad, good = cluster.node("a", rack="r1"), cluster.node("b", rack="r1")
    domain = Domain(kind=DomainKind.NODE, host=bad)
    node = {"domain": domain, "domain_id": domain.id, "level": Level.CORDON}
    adapter().apply(command(**node))
    first, second = submit(cluster, "first", "r1"), submit(cluster, "second", "r1")
    cluster.until(lambda: sorted(bool(place(cluster, one)) for one in (first, second)) == [0, 1])
    placed = first if place(cluster, first) else second
    waiting = second if placed == first else first
    assert place(cluster, placed) == good
    cluster.until(lambda: waits(cluster, waiting))
    adapter().apply(command(id="c2", action=Action.RELEASE, **node))
    cluster.until(lambda: place(cluster, waiting) == bad)


def test_no_new_claim_gets_the_tainted_card_until_it_is_released(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node("c", rack="r2")
    cluster.slice(host, {"gpu-0": FIRST, "gpu-1": SECOND})
    selector = {"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}
    kind = {"metadata": {"name": "gpu.nvidia.com"}, "spec": {"selectors": [selector]}}
    cluster.call("POST", "/apis/resource.k8s.io/v1/deviceclasses", kind)
    domain = Domain(kind=DomainKind.GPU, host=host, pci="0000:1a:00", uuid=FIRST)
    card = {"domain": domain, "domain_id": domain.id, "level": Level.CORDON}
    adapter().apply(command(**card))
    exactly = {"deviceClassName": "gpu.nvidia.com", "count": 1}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    for name in ("one", "two"):
        cluster.call("POST", CLAIMS, {"metadata": {"name": name}, "spec": spec})
    submit(cluster, "claims-one", "r2", "one")
    cluster.until(lambda: place(cluster, "claims-one") == host)
    submit(cluster, "claims-two", "r2", "two")
    cluster.until(lambda: waits(cluster, "claims-two"))

    def given(claim: str) -> str:
        status = cluster.call("GET", f"{CLAIMS}/{claim}")["status"]
        name: str = status["allocation"]["devices"]["results"][0]["device"]
        return name

    assert given("one") == "gpu-1"
    adapter().apply(command(id="c2", action=Action.RELEASE, **card))
    cluster.until(lambda: place(cluster, "claims-two") == host)
    assert given("two") == "gpu-0"
