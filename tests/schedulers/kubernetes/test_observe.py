"""What the adapter sees: its own isolations, those taken back by hand, others', who uses GPUs."""

from collections.abc import Callable
from typing import Any

from evidence.decisions import Action, Command, Domain, DomainKind, Level
from evidence.records import ContextKind, ContextRecord
from schedulers.adapter import Standing, View
from schedulers.kubernetes.adapter import KubernetesAdapter

Adapters = Callable[..., KubernetesAdapter]
Commands = Callable[..., Command]


def at(host: str, **fields: Any) -> dict[str, Any]:
    domain = Domain(kind=DomainKind.NODE, host=host)
    return {"domain": domain, "domain_id": domain.id, "level": Level.CORDON} | fields


def standing(view: View, host: str) -> list[Standing]:
    return [one for one in view.standing if one.domain.host == host]


def context(view: View, host: str) -> list[ContextRecord]:
    return [one for one in view.context if one.host == host]


def test_our_isolation_stands_with_its_command(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    adapter().apply(command(**at(host)))
    (told,) = standing(adapter().observe(), host)
    assert (told.command, told.domain.id, told.by) == ("c1", f"node:{host}", "ringfence")
    assert told.reason == "double-bit error, row remap pending"
    assert told.since is not None
    adapter().apply(command(id="c2", action=Action.RELEASE, **at(host)))
    assert standing(adapter().observe(), host) == []


def test_an_uncordon_by_hand_ends_our_standing(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    adapter().apply(command(**at(host)))
    cluster.patch(host, {"spec": {"unschedulable": None}})
    assert standing(adapter().observe(), host) == []
    adapter().apply(command(id="c2", action=Action.RELEASE, **at(host)))
    assert cluster.taints(host) == []


def test_a_taint_removed_by_hand_ends_our_standing(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    adapter().apply(command(**at(host)))
    cluster.patch(host, {"spec": {"taints": None}})
    assert standing(adapter().observe(), host) == []


def test_somebody_elses_cordon_is_told_with_who_did_it_beside_ours(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node(**{"example.com/cordon-by": "ops-oncall"})
    cluster.patch(host, {"spec": {"unschedulable": True}})
    adapter().apply(command(**at(host)))
    view = adapter().observe()
    assert [(one.command, one.by) for one in standing(view, host)] == [
        ("c1", "ringfence"),
        (None, "ops-oncall"),
    ]
    (drain,) = context(view, host)
    assert (drain.kind, drain.by, drain.ended) == (ContextKind.DRAIN, "ops-oncall", False)


def test_the_same_drain_is_the_same_record_until_it_is_over(
    cluster: Any, adapter: Adapters
) -> None:
    host = cluster.node()
    cluster.patch(host, {"spec": {"unschedulable": True}})
    (first,) = context(adapter().observe(), host)
    (same,) = context(adapter().observe(), host)
    assert (same.id, same.at) == (first.id, first.at)
    cluster.patch(host, {"spec": {"unschedulable": None}})
    assert context(adapter().observe(), host) == []


def test_our_own_cordon_is_no_drain_by_others(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    adapter().apply(command(**at(host)))
    assert context(adapter().observe(), host) == []


def test_who_uses_gpus_is_told_with_all_hosts_of_the_job(cluster: Any, adapter: Adapters) -> None:
    hosts = [cluster.node("a"), cluster.node("b")]
    labels = {
        "jobset.sigs.k8s.io/jobset-name": "pretrain-70b",
        "jobset.sigs.k8s.io/restart-attempt": "2",
        "batch.kubernetes.io/job-name": "pretrain-70b-workers-0",
    }
    for n, host in enumerate(hosts):
        cluster.pod(host, f"w{n}", 8, labels=labels)
        cluster.pod(host, f"web{n}", 0)
    (told,) = context(adapter().observe(), hosts[0])
    assert (told.kind, told.job, told.attempt) == (ContextKind.ALLOCATION, "pretrain-70b", 2)
    assert (told.hosts, told.image, told.owner) == (tuple(hosts), "pytorch:2.9", "default")


def test_a_reboot_is_told_only_of_a_node_that_was_out_of_service(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    crashed, planned = cluster.node("a"), cluster.node("b")

    def boots(host: str, boot: str) -> None:
        named = ("architecture", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion")
        named += ("kubeletVersion", "machineID", "operatingSystem", "osImage", "systemUUID")
        info = dict.fromkeys(named, "")
        body = {"status": {"nodeInfo": info | {"bootID": boot}}}
        cluster.call("PATCH", f"/api/v1/nodes/{host}/status", body)

    for host in (crashed, planned):
        boots(host, "boot-1")
    adapter_ = adapter()
    adapter_.apply(command(**at(planned)))
    adapter_.observe()
    for host in (crashed, planned):
        boots(host, "boot-2")
    view = adapter_.observe()
    assert context(view, crashed) == []
    assert [(one.kind, one.ended) for one in context(view, planned)] == [(ContextKind.REBOOT, True)]


def test_a_node_that_left_the_cluster_was_not_taken_back_by_hand(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    one = adapter()
    one.apply(command(**at(host)))
    one.observe()
    cluster.call("DELETE", f"/api/v1/nodes/{host}")
    for _ in range(2):
        assert [told.command for told in standing(one.observe(), host)] == ["c1"]


def test_a_node_that_was_made_anew_was_not_taken_back_by_hand(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    one = adapter()
    one.apply(command(**at(host)))
    domain = Domain(kind=DomainKind.NODE, host=host)
    before = one.observe().epoch(domain)
    assert one.observe().epoch(domain) == before
    cluster.call("DELETE", f"/api/v1/nodes/{host}")
    one.observe()
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": host}}
    cluster.call("POST", "/api/v1/nodes", node)
    after = one.observe()
    assert standing(after, host) == []
    assert after.epoch(domain) not in (before, None)


def test_a_host_in_capitals_is_its_node_when_that_is_uncordoned_by_hand(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host = cluster.node()
    one = adapter()
    one.apply(command(**at(host.upper())))
    assert [told.command for told in standing(one.observe(), host.upper())] == ["c1"]
    cluster.patch(host, {"spec": {"unschedulable": None}})
    view = one.observe()
    assert standing(view, host.upper()) == []
    assert view.epoch(Domain(kind=DomainKind.NODE, host=host.upper())) is not None
