"""Whole nodes of a real Kubernetes 1.37: isolated, drained, evicted, released, and left alone."""

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from evidence.decisions import AckStatus, Action, Command, Domain, DomainKind, Level
from schedulers.kubernetes.adapter import KubernetesAdapter

Adapters = Callable[..., KubernetesAdapter]
Commands = Callable[..., Command]


def at(host: str, **fields: Any) -> dict[str, Any]:
    """A command's domain: the node of a host."""
    domain = Domain(kind=DomainKind.NODE, host=host)
    return {"domain": domain, "domain_id": domain.id, "level": Level.CORDON} | fields


def test_a_cordon_keeps_new_work_away_and_leaves_the_running(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    pod = cluster.pod(host, "job")
    outcome = adapter().apply(command(**at(host)))
    assert outcome.status is AckStatus.DONE
    assert outcome.detail == f"node {host}: cordoned and tainted"
    assert cluster.cordoned(host)
    assert cluster.taints(host) == ["NoSchedule"]
    assert cluster.condition(host) == "True"
    assert cluster.phase(pod) == "Running"
    events = cluster.call("GET", "/api/v1/namespaces/default/events")["items"]
    ours = [one for one in events if one["source"]["component"] == "ringfence"]
    told = [one for one in ours if one["involvedObject"]["name"] == host]
    assert [(one["type"], one["reason"]) for one in told] == [("Warning", "RingfenceIsolated")]


def test_what_is_carried_out_twice_stands_once_and_writes_nothing_the_second_time(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    isolate = command(**at(host))
    adapter().apply(isolate)
    cluster.until(lambda: cluster.taints(host, "node.kubernetes.io/unschedulable"))
    before = cluster.get(host)["metadata"]["resourceVersion"]
    again = adapter().apply(isolate)
    assert again.status is AckStatus.DONE
    assert cluster.get(host)["metadata"]["resourceVersion"] == before
    release = command(id="c2", action=Action.RELEASE, **at(host))
    first, second = adapter().apply(release), adapter().apply(release)
    assert (first.status, second.status) == (AckStatus.DONE, AckStatus.DONE)
    assert not cluster.cordoned(host)
    assert cluster.taints(host) == []
    assert cluster.condition(host) == "False"
    annotations = cluster.get(host)["metadata"].get("annotations", {})
    assert [name for name in annotations if name.startswith("ringfence/")] == []


def test_a_node_that_somebody_else_cordoned_stays_cordoned_after_our_release(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    cluster.patch(host, {"spec": {"unschedulable": True}})
    outcome = adapter().apply(command(**at(host)))
    assert "somebody else had cordoned it" in outcome.detail
    assert cluster.taints(host) == ["NoSchedule"]
    outcome = adapter().apply(command(id="c2", action=Action.RELEASE, **at(host)))
    assert outcome.status is AckStatus.DONE
    assert "the cordon is somebody else's and stays" in outcome.detail
    assert cluster.cordoned(host)
    assert cluster.taints(host) == []


def test_a_release_touches_nothing_where_nothing_is_ours(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    cluster.patch(host, {"spec": {"unschedulable": True}})
    outcome = adapter().apply(command(action=Action.RELEASE, **at(host)))
    assert outcome.status is AckStatus.DONE
    assert outcome.detail == f"node {host}: nothing of ours stood for node:{host}"
    assert cluster.cordoned(host)


def test_a_node_is_out_for_as_long_as_one_of_two_domains_needs_it(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    first, second = (
        Domain(kind=DomainKind.GPU, host=host, pci=f"0000:{bus}:00", uuid=f"GPU-{bus}")
        for bus in ("1b", "3c")
    )
    one = adapter(gpu_as="node")
    for name, domain in (("c1", first), ("c2", second)):
        one.apply(command(id=name, domain=domain, domain_id=domain.id, level=Level.CORDON))
    back = command(id="c3", action=Action.RELEASE, domain=first, domain_id=first.id)
    assert f"it stays out for {second.id}" in one.apply(back).detail
    assert cluster.cordoned(host)
    back = command(id="c4", action=Action.RELEASE, domain=second, domain_id=second.id)
    assert "uncordoned" in one.apply(back).detail
    assert not cluster.cordoned(host)


def test_other_writers_taints_survive_ours(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    theirs = {"key": "example.com/slow-disk", "value": "yes", "effect": "NoSchedule"}
    cluster.patch(host, {"spec": {"taints": [theirs]}})
    adapter().apply(command(**at(host)))
    adapter().apply(command(id="c2", action=Action.RELEASE, **at(host)))
    assert cluster.taints(host, theirs["key"]) == ["NoSchedule"]


def test_a_conflict_with_another_writer_loses_neither_change(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    added: list[str] = []
    done = threading.Event()

    def write() -> None:
        while not done.is_set() and len(added) < 60:
            key = f"example.com/n{len(added)}"
            node = cluster.get(host)
            taints = [*(node["spec"].get("taints") or []), {"key": key, "effect": "NoSchedule"}]
            lock = {"resourceVersion": node["metadata"]["resourceVersion"]}
            with contextlib.suppress(OSError):  # a conflict: read and try again
                cluster.patch(host, {"metadata": lock, "spec": {"taints": taints}})
                added.append(key)

    writer = threading.Thread(target=write)
    writer.start()
    statuses = []
    for number in range(12):
        isolate = command(id=f"i{number}", **at(host))
        release = command(id=f"r{number}", action=Action.RELEASE, **at(host))
        statuses += [adapter().apply(isolate).status, adapter().apply(release).status]
    done.set()
    writer.join()
    assert set(statuses) == {AckStatus.DONE}
    assert len(added) > 3
    assert [key for key in added if not cluster.taints(host, key)] == []
    assert not cluster.cordoned(host)


def test_a_drain_moves_pods_but_no_daemon_and_no_mirror_pod(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "dcgm", "uid": "d1"}
    owner["controller"] = True  # type: ignore[assignment]
    daemon = cluster.pod(host, "dcgm", 0, ownerReferences=[owner])
    mirror = cluster.pod(host, "static", 0, annotations={"kubernetes.io/config.mirror": "x"})
    jobs = [cluster.pod(host, name) for name in ("j0", "j1")]
    outcome = adapter().apply(command(**at(host, level=Level.DRAIN)))
    assert outcome.status is AckStatus.DONE
    assert outcome.detail == f"node {host}: cordoned and tainted; 2 pods left"
    assert [cluster.phase(job) for job in jobs] == [None, None]
    assert (cluster.phase(daemon), cluster.phase(mirror)) == ("Running", "Running")


def test_a_drain_that_a_budget_blocks_says_who_stays_and_by_which_budget(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    pod = cluster.pod(host, "job")
    budget = cluster.budget(1)
    drain = command(**at(host, level=Level.DRAIN))
    outcome = adapter(drain_patience_s=1.0).apply(drain)
    assert outcome.status is AckStatus.FAILED
    assert outcome.retry
    assert f"0 pods left, still there: default/{pod}" in outcome.detail
    assert budget in outcome.detail
    assert cluster.cordoned(host)
    assert cluster.phase(pod) == "Running"
    threading.Timer(1.0, cluster.lift_budget, [budget]).start()
    outcome = adapter().apply(drain)
    assert outcome.status is AckStatus.DONE
    assert outcome.detail.endswith("1 pod left")


def test_an_eviction_past_its_patience_does_what_the_setting_says(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    pod = cluster.pod(host, "job")
    cluster.budget(1)
    evict = command(**at(host, level=Level.EVICT))
    assert adapter().apply(evict).status is AckStatus.FAILED
    assert cluster.phase(pod) == "Running"
    outcome = adapter(past_budget="delete").apply(evict)
    assert outcome.status is AckStatus.FAILED
    assert "cannot delete resource" in outcome.detail  # rbac.yaml leaves that verb out
    outcome = adapter(past_budget="taint").apply(evict)
    assert outcome.status is AckStatus.DONE
    assert "then NoExecute" in outcome.detail
    assert cluster.phase(pod) is None
    assert cluster.taints(host) == ["NoSchedule", "NoExecute"]
    adapter().apply(command(id="c2", action=Action.RELEASE, **at(host)))
    assert cluster.taints(host) == []


def test_a_pod_that_ends_slowly_is_told_and_not_waited_for_for_ever(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    pod = cluster.pod(host, "job", labels={"stuck": "yes"})
    outcome = adapter(drain_patience_s=1.0).apply(command(**at(host, level=Level.DRAIN)))
    assert outcome.status is AckStatus.DONE
    assert f"ending within their grace: default/{pod}" in outcome.detail
    cluster.call("DELETE", f"/api/v1/namespaces/default/pods/{pod}", {"gracePeriodSeconds": 0})


def test_a_stop_cuts_a_drain_short_and_says_so(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    cluster.pod(host, "job")
    cluster.budget(1)
    one = adapter(drain_patience_s=60.0)
    threading.Timer(0.5, one.stop.set).start()
    outcome = one.apply(command(**at(host, level=Level.DRAIN)))
    assert outcome.status is AckStatus.FAILED
    assert outcome.detail.endswith("stopped in the middle")


def test_a_node_uncordoned_by_hand_is_not_cordoned_again_by_the_same_command(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    isolate = command(**at(host))
    adapter().apply(isolate)
    cluster.patch(host, {"spec": {"unschedulable": None}})
    outcome = adapter().apply(isolate)
    assert outcome.status is AckStatus.FAILED
    assert not outcome.retry
    assert "taken back by hand" in outcome.detail
    assert not cluster.cordoned(host)
    assert adapter().apply(command(id="c2", **at(host))).status is AckStatus.DONE
    assert cluster.cordoned(host)


def test_a_host_is_found_by_its_label_where_nodes_are_called_otherwise(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    node = cluster.node(**{"example.com/host": "rack4-slot7"})
    one = adapter(node_label="example.com/host")
    assert one.apply(command(**at("rack4-slot7"))).status is AckStatus.DONE
    assert cluster.cordoned(node)
    outcome = one.apply(command(**at("rack9-slot9")))
    assert outcome.status is AckStatus.FAILED
    assert not outcome.retry
    assert "no node has the label example.com/host=rack9-slot9" in outcome.detail


def test_a_node_whose_label_was_taken_off_is_released_all_the_same(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    node = cluster.node(**{"example.com/host": "rack4-slot8"})
    one = adapter(node_label="example.com/host")
    one.apply(command(**at("rack4-slot8")))
    cluster.patch(node, {"metadata": {"labels": {"example.com/host": None}}})
    outcome = one.apply(command(id="c2", action=Action.RELEASE, **at("rack4-slot8")))
    assert outcome.status is AckStatus.DONE
    assert not cluster.cordoned(node)
    assert cluster.taints(node) == []


def test_a_release_of_a_node_that_left_the_cluster_is_done(
    adapter: Adapters, command: Commands
) -> None:
    outcome = adapter().apply(command(action=Action.RELEASE, **at("hpc-gone")))
    assert outcome.status is AckStatus.DONE
    assert adapter().apply(command(**at("hpc-gone"))).status is AckStatus.FAILED


def test_a_switch_is_nothing_that_kubernetes_can_isolate(
    adapter: Adapters, command: Commands
) -> None:
    domain = Domain(kind=DomainKind.SWITCH, switch="0x248a0703001122")
    outcome = adapter().apply(command(domain=domain, domain_id=domain.id))
    assert (outcome.status, outcome.retry) == (AckStatus.FAILED, False)
    assert outcome.detail == f"Kubernetes has nodes and GPUs, {domain.id} is neither"


def test_what_a_crash_left_out_is_made_up_for_by_the_second_try(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    isolate = command(**at(host))
    adapter().apply(isolate)
    gone = {"$patch": "delete", "type": "RingfenceIsolated"}
    cluster.call("PATCH", f"/api/v1/nodes/{host}/status", {"status": {"conditions": [gone]}})
    assert cluster.condition(host) is None
    adapter().apply(isolate)
    assert cluster.condition(host) == "True"
