"""The API server itself: what our account may do, a server that is away, hundreds of commands."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from evidence.decisions import AckStatus, Action, Command, Domain, DomainKind, Level
from ringfence.cli import main
from schedulers.adapter import SchedulerError
from schedulers.kubernetes.adapter import KubernetesAdapter
from schedulers.kubernetes.api import ForbiddenError, connect, path
from schedulers.kubernetes.config import KubernetesConfig

Adapters = Callable[..., KubernetesAdapter]
Commands = Callable[..., Command]


def at(host: str, **fields: Any) -> dict[str, Any]:
    domain = Domain(kind=DomainKind.NODE, host=host)
    return {"domain": domain, "domain_id": domain.id, "level": Level.CORDON} | fields


@pytest.mark.parametrize(
    "where",
    [
        "/api/v1/nodes/{host}",
        "/api/v1/namespaces/default/pods/{pod}",
        "/apis/policy/v1/namespaces/default/poddisruptionbudgets/any",
        "/apis/resource.k8s.io/v1/resourceslices/any",
    ],
)
def test_our_account_may_delete_nothing_but_its_own_kind_of_rule(
    cluster: Any, adapter_login: Path, where: str
) -> None:
    host = cluster.node()
    pod = cluster.pod(host, "job")
    api = connect(KubernetesConfig(kubeconfig=adapter_login))
    with pytest.raises(ForbiddenError, match="cannot delete resource"):
        api.delete(where.format(host=host, pod=pod))
    assert cluster.phase(pod) == "Running"


def test_our_account_may_read_no_secret(adapter_login: Path) -> None:
    api = connect(KubernetesConfig(kubeconfig=adapter_login))
    with pytest.raises(ForbiddenError, match="secrets"):
        api.get(path("secrets"))


def test_a_missing_right_is_named_and_not_tried_again(
    cluster: Any, control_plane: Any, command: Commands
) -> None:
    host = cluster.node()
    space = "/api/v1/namespaces/default/serviceaccounts"
    control_plane.call("POST", space, {"metadata": {"name": "nobody"}})
    token = control_plane.call("POST", f"{space}/nobody/token", {"spec": {}})["status"]["token"]
    login = control_plane.kubeconfig("nobody", token)
    outcome = KubernetesAdapter(KubernetesConfig(kubeconfig=login)).apply(command(**at(host)))
    assert (outcome.status, outcome.retry) == (AckStatus.FAILED, False)
    assert 'cannot get resource "nodes"' in outcome.detail
    assert "rbac.yaml" in outcome.detail


def test_a_login_that_is_not_accepted_is_told_in_one_sentence(
    control_plane: Any, cluster: Any, command: Commands
) -> None:
    login = control_plane.kubeconfig("stranger", "no-such-token")
    outcome = KubernetesAdapter(KubernetesConfig(kubeconfig=login)).apply(
        command(**at(cluster.node()))
    )
    assert outcome.detail == "the API server does not accept our login (401)"


def test_a_server_that_is_away_is_a_failed_try_and_what_stood_stands_when_it_is_back(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    host, other = cluster.node("a"), cluster.node("b")
    one = adapter(timeout_s=2.0)
    one.apply(command(**at(host)))
    cluster.plane.kill("apiserver")
    try:
        began = time.monotonic()
        outcome = one.apply(command(id="c2", **at(other)))
        assert time.monotonic() - began < 10
        assert (outcome.status, outcome.retry) == (AckStatus.FAILED, True)
        assert outcome.detail.startswith(f"the API server at {cluster.plane.url} does not answer")
        with pytest.raises(SchedulerError, match="does not answer"):
            one.observe()
    finally:
        cluster.plane.start_server()
    assert one.apply(command(id="c2", **at(other))).status is AckStatus.DONE
    standing = {one.command for one in one.observe().standing if one.domain.host in (host, other)}
    assert standing == {"c1", "c2"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "There is no kubeconfig at"),
        ("", "No login to a Kubernetes cluster"),
        ("clusters: [", "cannot be read"),
        ("apiVersion: v1\nclusters: []\ncontexts: []\ncurrent-context: x\n", "No login"),
    ],
)
def test_a_kubeconfig_that_tells_nothing_is_one_sentence(
    tmp_path: Path, text: str | None, words: str
) -> None:
    file = tmp_path / "kubeconfig"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SchedulerError, match=words):
        KubernetesAdapter(KubernetesConfig(kubeconfig=file))


def test_many_commands_at_once_have_one_outcome_each_in_their_order(
    cluster: Any, adapter: Adapters, command: Commands
) -> None:
    hosts = [cluster.node(f"n{number}") for number in range(12)]
    isolate = [command(id=f"i-{host}", **at(host)) for host in hosts]
    release = [command(id=f"r-{host}", action=Action.RELEASE, **at(host)) for host in hosts[:6]]
    missing = command(id="m", **at("hpc-nowhere"))
    outcomes = adapter().apply_all([*isolate, missing, *release])
    assert [one.status for one in outcomes] == [
        *[AckStatus.DONE] * 12,
        AckStatus.FAILED,
        *[AckStatus.DONE] * 6,
    ]
    assert [cluster.cordoned(host) for host in hosts] == [False] * 6 + [True] * 6


def test_the_command_says_in_one_sentence_that_there_is_no_cluster(tmp_path: Path) -> None:
    given = {
        "RINGFENCE_KUBERNETES_KUBECONFIG": str(tmp_path / "none"),
        "RINGFENCE_DATA": str(tmp_path),
    }
    result = CliRunner().invoke(main, ["scheduler", "kubernetes"], env=given)
    assert result.exit_code == 2
    assert result.stderr == f"Error: There is no kubeconfig at {tmp_path / 'none'}.\n"
