"""750 isolations in a row against a real Kubernetes API server, and their releases: seconds.

Runs etcd, API server and controllers here (deploy/test-apiserver.sh builds them), so the server's
work is in the figures; `python bench/isolate_kubernetes.py --commands 750 --workers 16`.
"""

import argparse
import importlib.util
import json
import os
import resource
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import machine

from evidence.decisions import AckStatus, Action, Cause, Command, Domain, DomainKind, Level
from schedulers.kubernetes.adapter import KubernetesAdapter
from schedulers.kubernetes.config import KubernetesConfig

#: What a rival took for 750 commands in a row: the figure that is to be beaten.
RIVAL_S = 303.7


def _local_plane() -> ModuleType:
    path = Path(__file__).parents[1] / "deploy/kubernetes/local_plane.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _command(host: str, action: Action) -> Command:
    domain = Domain(kind=DomainKind.NODE, host=host)
    return Command(
        id=f"{action}-{host}",
        action=action,
        domain=domain,
        domain_id=domain.id,
        level=Level.CORDON,
        cause=Cause.GPU_LOST,
        reason="GPU has fallen off the bus",
        incident=f"i-{host}",
        generation=1,
        issued_at=datetime.now(UTC),
    )


def _nodes(plane: Any, count: int) -> list[str]:  # noqa: ANN401 (loaded by path)
    hosts = [f"hpc-n{number:04d}" for number in range(count)]
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "hollow"}

    def make(host: str) -> None:
        plane.call("POST", "/api/v1/nodes", {"metadata": {"name": host}})
        plane.call("PATCH", f"/api/v1/nodes/{host}/status", {"status": {"conditions": [ready]}})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(make, hosts))
    return hosts


def _carried_out(
    adapter: KubernetesAdapter, hosts: list[str], action: Action, *, one_by_one: bool
) -> dict[str, Any]:
    commands = [_command(host, action) for host in hosts]
    began, used = time.monotonic(), time.process_time()
    if one_by_one:
        outcomes = [adapter.apply(command) for command in commands]
    else:
        outcomes = adapter.apply_all(commands)
    took = time.monotonic() - began
    done = sum(one.status is AckStatus.DONE for one in outcomes)
    return {
        "commands": len(commands),
        "done": done,
        "seconds": round(took, 2),
        "adapter_core_seconds": round(time.process_time() - used, 2),
        "times_as_fast_as_the_rival": round(RIVAL_S * len(commands) / 750 / took, 1),
    }


def _expect(plane: Any, *, cordoned: int) -> None:  # noqa: ANN401 (loaded by path)
    """Ask the server itself: an ack is only our word."""
    nodes = plane.call("GET", "/api/v1/nodes")["items"]
    found = sum(
        bool(one["spec"].get("unschedulable"))
        and any(taint["key"] == "ringfence/isolated" for taint in one["spec"].get("taints", ()))
        for one in nodes
    )
    if found != cordoned:
        raise SystemExit(f"{found} of {len(nodes)} nodes are isolated, {cordoned} should be")


def measure(count: int, workers: int) -> dict[str, Any]:
    """Isolate and release ``count`` nodes, all at once and one by one."""
    module = _local_plane()
    with (
        tempfile.TemporaryDirectory(prefix="ringfence-bench-") as folder,
        module.ControlPlane(module.program(), Path(folder)) as plane,
    ):
        hosts = _nodes(plane, count)
        login = plane.kubeconfig("admin", module.ADMIN)
        adapter = KubernetesAdapter(KubernetesConfig(kubeconfig=login, workers=workers))
        found = {}
        for name, action, cordoned in (
            ("isolate, a batch", Action.ISOLATE, count),
            ("isolate again, a batch", Action.ISOLATE, count),
            ("release, a batch", Action.RELEASE, 0),
        ):
            found[name] = _carried_out(adapter, hosts, action, one_by_one=False)
            _expect(plane, cordoned=cordoned)
        found["isolate, one by one"] = _carried_out(adapter, hosts, Action.ISOLATE, one_by_one=True)
        _expect(plane, cordoned=count)
        began = time.monotonic()
        standing = len(adapter.observe().standing)
        took = round(time.monotonic() - began, 2)
        found["one look at the cluster"] = {"standing": standing, "seconds": took}
    servers = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "rival_s": RIVAL_S,
        "workers": workers,
        "figures": found,
        "control_plane_core_seconds": round(servers.ru_utime + servers.ru_stime, 1),
    }


def main() -> None:
    """Print the figures as JSON, and the machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commands", type=int, default=750)
    parser.add_argument("--workers", type=int, default=KubernetesConfig().workers)
    given = parser.parse_args()
    where = machine.describe()
    found = measure(given.commands, given.workers)
    print(json.dumps(found | {"load_average": os.getloadavg()[0]}, indent=2))
    print(machine.sentence(where))


if __name__ == "__main__":
    main()
