"""One GPU of a node, by a DeviceTaintRule on a real Kubernetes 1.37, or what stands in for it."""

from collections.abc import Callable
from typing import Any

from evidence.decisions import AckStatus, Action, Command, Domain, DomainKind, Level
from schedulers.kubernetes.adapter import KubernetesAdapter

Adapters = Callable[..., KubernetesAdapter]
Commands = Callable[..., Command]
FIRST, SECOND = (
    "GPU-6f1c2f0e-77aa-4c1e-a0b3-1f0c9a7d5e01",
    "GPU-0b9e77c4-3c55-4d2f-8f0e-5a2b6c9d4e02",
)


def card(host: str, uuid: str | None = FIRST, **fields: Any) -> dict[str, Any]:
    domain = Domain(kind=DomainKind.GPU, host=host, pci="0000:1a:00", uuid=uuid)
    return {"domain": domain, "domain_id": domain.id, "level": Level.CORDON} | fields


def test_one_card_is_tainted_and_the_node_keeps_working(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    cluster.slice(host, {"gpu-0": SECOND, "gpu-1": FIRST})
    outcome = adapter().apply(command(**card(host)))
    assert outcome.status is AckStatus.DONE
    assert outcome.detail == f"device {host}/gpu-1: tainted by DeviceTaintRule"
    assert cluster.rules(host) == [("gpu-1", "NoSchedule")]
    assert not cluster.cordoned(host)
    again = adapter().apply(command(**card(host)))
    assert again.detail == f"device {host}/gpu-1: was tainted by this command before"
    release = command(id="c2", action=Action.RELEASE, **card(host))
    outcome = adapter().apply(release)
    assert outcome.detail == f"device {host}/gpu-1: taint lifted"
    assert cluster.rules(host) == []
    assert adapter().apply(release).status is AckStatus.DONE


def test_a_card_without_a_uuid_is_found_by_its_place(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    cluster.slice(host, {"gpu-0": SECOND, "gpu-1": FIRST})
    adapter().apply(command(**card(host, uuid=None)))
    assert cluster.rules(host) == [("gpu-0", "NoSchedule")]


def test_a_card_that_was_replaced_taints_nobody_else_in_its_place(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    cluster.slice(host, {"gpu-0": SECOND})
    outcome = adapter(gpu_as="never").apply(command(**card(host)))
    assert (outcome.status, outcome.retry) == (AckStatus.FAILED, False)
    assert f"no ResourceSlice of {host} has {FIRST}" in outcome.detail
    assert cluster.rules(host) == []
    assert not cluster.cordoned(host)


def test_the_node_stands_in_where_no_driver_publishes_the_card_and_the_ack_says_so(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    outcome = adapter().apply(command(**card(host)))
    assert outcome.status is AckStatus.DONE
    assert outcome.detail == (
        f"node {host}, for gpu:{host}/0000:1a:00: no ResourceSlice of {host} has {FIRST}:"
        " cordoned and tainted"
    )
    assert cluster.cordoned(host)
    adapter().apply(command(id="c2", action=Action.RELEASE, **card(host)))
    assert not cluster.cordoned(host)


def test_a_drain_of_one_card_moves_only_the_pods_that_have_it(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    cluster.slice(host, {"gpu-0": SECOND, "gpu-1": FIRST})
    users = {}
    for device in ("gpu-0", "gpu-1"):
        claim = cluster.claim(device, host, device)
        users[device] = cluster.pod(host, f"job-{device}", 0, claims=[claim])
        cluster.reserve(claim, users[device])
    outcome = adapter().apply(command(**card(host, level=Level.DRAIN)))
    assert outcome.detail.endswith("; 1 pod left")
    assert cluster.phase(users["gpu-1"]) is None
    assert cluster.phase(users["gpu-0"]) == "Running"


def test_an_eviction_of_one_card_past_a_budget_has_the_controller_delete_its_pods(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    cluster.slice(host, {"gpu-0": SECOND, "gpu-1": FIRST})
    claim = cluster.claim("mine", host, "gpu-1")
    pod = cluster.pod(host, "job", 0, claims=[claim])
    cluster.reserve(claim, pod)
    cluster.budget(1)
    evict = command(**card(host, level=Level.EVICT))
    assert adapter().apply(evict).status is AckStatus.FAILED
    assert cluster.phase(pod) == "Running"
    outcome = adapter(past_budget="taint").apply(evict)
    assert outcome.status is AckStatus.DONE, outcome.detail
    assert cluster.rules(host) == [("gpu-1", "NoExecute")]
    assert cluster.phase(pod) is None


def test_a_rule_follows_its_card_when_the_drivers_list_changes(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    cluster.slice(host, {"gpu-0": SECOND, "gpu-1": FIRST})
    one = adapter()
    one.apply(command(**card(host)))
    cluster.slice(host, {"gpu-0": FIRST, "gpu-1": SECOND}, generation=2)
    view = one.observe()
    assert cluster.rules(host) == [("gpu-0", "NoSchedule")]
    assert [one.command for one in view.standing if one.domain.host == host] == ["c1"]


def test_a_rule_whose_card_fell_off_the_bus_taints_no_other_and_finds_it_again(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    cluster.slice(host, {"gpu-0": FIRST, "gpu-1": SECOND})
    one = adapter()
    one.apply(command(**card(host)))
    cluster.slice(host, {"gpu-0": SECOND}, generation=2)
    view = one.observe()
    assert [device for device, _ in cluster.rules(host) if device == "gpu-0"] == []
    assert [one.command for one in view.standing if one.domain.host == host] == ["c1"]
    cluster.slice(host, {"gpu-0": SECOND, "gpu-1": FIRST}, generation=3)
    one.observe()
    assert cluster.rules(host) == [("gpu-1", "NoSchedule")]
    one.apply(command(id="c2", action=Action.RELEASE, **card(host)))
    assert cluster.rules(host) == []


def test_a_device_that_its_driver_tainted_is_told_as_out_of_service(
    cluster: Any, adapter: Adapters
) -> None:
    host = cluster.node()
    cluster.slice(host, {"gpu-0": FIRST})
    where = f"/apis/resource.k8s.io/v1/resourceslices/{host}-gpu"
    body = cluster.call("GET", where)
    body["spec"]["devices"][0]["taints"] = [{"key": "gpu.nvidia.com/xid", "effect": "NoSchedule"}]
    cluster.call("PUT", where, body)
    told = [one for one in adapter().observe().standing if one.domain.host == host]
    assert [(one.domain.uuid, one.command, one.reason) for one in told] == [
        (FIRST, None, "gpu.nvidia.com/xid")
    ]
