"""A real Kubernetes 1.37 control plane, hollow nodes, the adapter as its own service account."""

import contextlib
import importlib.util
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from schedulers.kubernetes.adapter import KubernetesAdapter
from schedulers.kubernetes.config import KubernetesConfig

ROOT = Path(__file__).parents[3]
RULES = "/apis/resource.k8s.io/v1/devicetaintrules"
_CORE = ("Namespace", "ServiceAccount", "ConfigMap", "PersistentVolumeClaim")
_GROUPS = {
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
}


def _local_plane() -> ModuleType:
    path = ROOT / "deploy/kubernetes/local_plane.py"
    if path.stem not in sys.modules:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    return sys.modules[path.stem]


def _built() -> tuple[ModuleType, Path]:
    module = _local_plane()
    try:
        return module, module.program()
    except module.PlaneUnavailable as missing:
        if os.environ.get("RINGFENCE_REQUIRE_PARTS"):
            raise
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """etcd, API server, controllers and scheduler, with hollow kubelets; started once."""
    module, built = _built()
    folder = tmp_path_factory.mktemp("kubernetes")
    with (
        module.ControlPlane(built, folder, parts=("controllers", "scheduler")) as plane,
        module.Kubelets(plane),
    ):
        _apply(plane, ROOT / "deploy/kubernetes/rbac.yaml")
        yield plane


@pytest.fixture
def other_server(tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """``other_server(runtime_config)``: an API server of one's own that serves other versions."""
    module, built = _built()
    with contextlib.ExitStack() as stack:

        def start(runtime_config: str) -> Any:
            plane = module.ControlPlane(built, tmp_path, parts=(), runtime_config=runtime_config)
            return stack.enter_context(plane)

        yield start


def _where(thing: dict[str, Any]) -> str:
    kind, space = thing["kind"], thing["metadata"].get("namespace")
    if kind in _GROUPS:
        return _GROUPS[kind]
    root = "/api/v1" if kind in _CORE else "/apis/rbac.authorization.k8s.io/v1"
    inside = f"/namespaces/{space}" if space else ""
    return f"{root}{inside}/{kind.lower()}s"


def _apply(plane: Any, file: Path) -> None:
    for thing in yaml.safe_load_all(file.read_text()):
        plane.call("POST", _where(thing), thing)


@pytest.fixture(scope="session")
def adapter_login(control_plane: Any) -> Path:
    """A kubeconfig of the service account that rbac.yaml binds, and of nothing more."""
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    where = "/api/v1/namespaces/ringfence/serviceaccounts/ringfence-scheduler/token"
    token = control_plane.call("POST", where, request)["status"]["token"]
    path: Path = control_plane.kubeconfig("ringfence", token)
    return path


@pytest.fixture
def adapter(adapter_login: Path) -> Callable[..., KubernetesAdapter]:
    """``adapter(**settings)``: as the least privileged account, with little patience."""

    def build(**fields: Any) -> KubernetesAdapter:
        plain: dict[str, Any] = {"kubeconfig": adapter_login}
        plain |= {"drain_patience_s": 6.0, "evict_patience_s": 1.0}
        return KubernetesAdapter(KubernetesConfig(**plain | fields))

    return build


_numbers = itertools.count(1)


class Cluster:
    """What a test does to the cluster as its administrator, under names of its own."""

    def __init__(self, plane: Any) -> None:
        self.plane = plane
        self.call = plane.call
        self._mine = f"t{next(_numbers)}"

    def node(self, name: str = "a", **labels: str) -> str:
        host = f"hpc-{self._mine}{name}"
        labels = {"kubernetes.io/hostname": host} | labels
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": host, "labels": labels}}
        self.call("POST", "/api/v1/nodes", body)
        sizes = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "hollow"}
        ready |= {"lastHeartbeatTime": now, "lastTransitionTime": now}
        status = {"capacity": sizes, "allocatable": sizes, "conditions": [ready]}
        self.call("PATCH", f"/api/v1/nodes/{host}/status", {"status": status})
        self.until(lambda: not self.taints(host, "node.kubernetes.io/not-ready"))
        return host

    def get(self, host: str) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", f"/api/v1/nodes/{host}")
        return found

    def patch(self, host: str, body: dict[str, Any]) -> None:
        self.call("PATCH", f"/api/v1/nodes/{host}", body)

    def taints(self, host: str, key: str = "ringfence/isolated") -> list[str]:
        every = self.get(host)["spec"].get("taints") or []
        return [one["effect"] for one in every if one["key"] == key]

    def cordoned(self, host: str) -> bool:
        return bool(self.get(host)["spec"].get("unschedulable"))

    def condition(self, host: str) -> str | None:
        every = self.get(host)["status"].get("conditions") or []
        return next((one["status"] for one in every if one["type"] == "RingfenceIsolated"), None)

    def pod(self, host: str, name: str, gpus: int = 4, **metadata: Any) -> str:
        name = f"{self._mine}-{name}"
        claims = metadata.pop("claims", None)
        labels = {"test": self._mine} | metadata.pop("labels", {})
        container = {"name": "train", "image": "pytorch:2.9"}
        container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
        spec = {"nodeName": host, "containers": [container], "terminationGracePeriodSeconds": 1}
        if claims:
            named = [{"name": f"c{n}", "resourceClaimName": one} for n, one in enumerate(claims)]
            spec["resourceClaims"] = named
        body = {"metadata": {"name": name, "labels": labels} | metadata, "spec": spec}
        self.call("POST", "/api/v1/namespaces/default/pods", body)
        self.until(lambda: self.phase(name) == "Running")
        return name

    def phase(self, name: str) -> str | None:
        found = self.call("GET", f"/api/v1/namespaces/default/pods/{name}")
        phase: str | None = found.get("status", {}).get("phase")
        return phase

    def budget(self, at_least: int) -> str:
        """A PodDisruptionBudget over this test's pods, once its controller has counted them."""
        where = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
        spec = {"minAvailable": at_least, "selector": {"matchLabels": {"test": self._mine}}}
        name = f"{self._mine}-budget"
        self.call("POST", where, {"metadata": {"name": name}, "spec": spec})
        self.until(lambda: self.call("GET", f"{where}/{name}")["status"].get("currentHealthy"))
        return name

    def lift_budget(self, name: str) -> None:
        self.call("DELETE", f"/apis/policy/v1/namespaces/default/poddisruptionbudgets/{name}")

    def slice(self, host: str, cards: dict[str, str], generation: int = 1) -> None:
        """What the node's DRA driver publishes: device name to UUID."""
        name = f"{host}-gpu"
        group = "/apis/resource.k8s.io/v1/resourceslices"
        devices = [
            {
                "name": device,
                "attributes": {
                    "uuid": {"string": uuid},
                    "resource.kubernetes.io/pciBusID": {"string": f"0000:{n + 26:02x}:00.0"},
                },
            }
            for n, (device, uuid) in enumerate(sorted(cards.items()))
        ]
        pool = {"name": host, "generation": generation, "resourceSliceCount": 1}
        spec = {"driver": "gpu.nvidia.com", "nodeName": host, "pool": pool, "devices": devices}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name},
            "spec": spec,
        }
        self.call("DELETE", f"{group}/{name}")
        self.call("POST", group, body)

    def claim(self, name: str, host: str, device: str) -> str:
        """A claim that the scheduler gave a device to."""
        name = f"{self._mine}-{name}"
        where = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
        exactly = {"deviceClassName": "gpu.nvidia.com", "count": 1}
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
        meta = {"name": name, "finalizers": ["resource.kubernetes.io/delete-protection"]}
        self.call("POST", where, {"metadata": meta, "spec": spec})
        result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": host, "device": device}
        status = {"allocation": {"devices": {"results": [result]}}}
        self.call("PATCH", f"{where}/{name}/status", {"status": status})
        return name

    def reserve(self, claim: str, pod: str) -> None:
        where = f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{claim}/status"
        uid = self.call("GET", f"/api/v1/namespaces/default/pods/{pod}")["metadata"]["uid"]
        user = {"resource": "pods", "name": pod, "uid": uid}
        self.call("PATCH", where, {"status": {"reservedFor": [user]}})

    def rules(self, host: str) -> list[tuple[str, str]]:
        """Device and effect of the rules about a node."""
        every = self.call("GET", RULES)["items"]
        specs = [one["spec"] for one in every if one["spec"]["deviceSelector"]["pool"] == host]
        return sorted((one["deviceSelector"]["device"], one["taint"]["effect"]) for one in specs)

    def until(self, true: Callable[[], Any], within_s: float = 15.0) -> None:
        deadline = time.monotonic() + within_s
        while not true():
            assert time.monotonic() < deadline, "it did not come to that"
            time.sleep(0.05)


@pytest.fixture
def cluster(control_plane: Any) -> Cluster:
    return Cluster(control_plane)
