# ruff: noqa: INP001 (beside the manifests, not a package)
"""A real Kubernetes control plane on loopback, for tests and benchmarks: all but the kubelets.

etcd, API server, controllers and scheduler are the project's own, built by
``deploy/test-apiserver.sh``. ``Kubelets`` runs bound pods and ends deleted ones. Not a deployment.
"""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from threading import Event, Thread
from typing import IO, Any, Self

import urllib3

from ringfence.embedded import die_with_parent, free_port

Json = dict[str, Any]
ADMIN = "admin-of-the-tests"
_BUILD = Path(__file__).parents[1] / "test-apiserver.sh"
_READY_S = 60.0
_CONTROLLERS = (
    "disruption-controller",
    "taint-eviction-controller",
    "device-taint-eviction-controller",
    "serviceaccount-controller",
    "node-lifecycle-controller",
)


class PlaneUnavailable(Exception):  # noqa: N818 (a state, as operators say it)
    """There is no control plane on this machine; the message says why."""


def program() -> Path:
    """The control plane's program; raises PlaneUnavailable where it has not been built."""
    found = subprocess.run(
        ["bash", str(_BUILD), "--find"], capture_output=True, text=True, check=False
    )
    if found.returncode != 0:
        raise PlaneUnavailable(f"No Kubernetes control plane: {found.stderr.strip()}")
    return Path(found.stdout.strip())


class ControlPlane:
    """One control plane; its API server can be killed and started again at the same port.

    ``parts`` run beside etcd and the API server; ``runtime_config`` says what that serves.
    """

    def __init__(
        self,
        built: Path,
        folder: Path,
        *,
        parts: tuple[str, ...] = ("controllers",),
        runtime_config: str = "resource.k8s.io/v1beta2=true",
    ) -> None:
        self._parts = parts
        self._runtime_config = runtime_config
        self._program = built
        self.folder = folder
        self.port = free_port(None)
        self._etcd = free_port(None)
        self._http: urllib3.PoolManager | None = None
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        """Where the API server is."""
        return f"https://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        key = self.folder / "accounts.key"
        subprocess.run(
            ["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True
        )
        (self.folder / "tokens.csv").write_text(f'{ADMIN},admin,1,"system:masters"\n')
        self.kubeconfig("admin", ADMIN)
        try:
            self._start_etcd()
            self.start_server()
            if "controllers" in self._parts:
                self._start_controllers()
            if "scheduler" in self._parts:
                self._start_scheduler()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all parts."""
        for name in ("scheduler", "controllers", "apiserver", "etcd"):
            self.kill(name)

    def kill(self, name: str) -> None:
        """End a part at once."""
        process = self._running.pop(name, None)
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait(10)

    def kubeconfig(self, name: str, token: str) -> Path:
        """A kubeconfig for a token."""
        file = self.folder / f"{name}.kubeconfig"
        cluster = {"server": self.url}
        cluster |= {"certificate-authority": str(self.folder / "pki/apiserver.crt")}
        file.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "tests", "cluster": cluster}],
                    "users": [{"name": name, "user": {"token": token}}],
                    "contexts": [{"name": name, "context": {"cluster": "tests", "user": name}}],
                    "current-context": name,
                }
            )
        )
        return file

    def start_server(self) -> None:
        """Start the API server and wait until it is ready."""
        self._start(
            "apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd}",
            "--bind-address=127.0.0.1",
            "--endpoint-reconciler-type=none",  # it would not take a loopback address
            f"--secure-port={self.port}",
            f"--cert-dir={self.folder / 'pki'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={self.folder / 'accounts.key'}",
            f"--service-account-key-file={self.folder / 'accounts.key'}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--disable-admission-plugins=ServiceAccount",
            f"--runtime-config={self._runtime_config}",
        )
        deadline = time.monotonic() + _READY_S
        while not self.ready():
            self._check("apiserver")
            if time.monotonic() > deadline:
                raise PlaneUnavailable(f"The API server is not ready; see {self.folder}")
            time.sleep(0.1)

    def call(self, method: str, where: str, body: Json | None = None) -> Json:
        """One call as the administrator; empty where there is no such thing. Raises OSError."""
        answer = self._ask(method, where, body)
        if answer.status == HTTPStatus.NOT_FOUND:
            return {}
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise OSError(f"{method} {where}: {answer.status} {answer.data!r}")
        found: Json = answer.json()
        return found

    def ready(self) -> bool:
        """Whether the API server answers."""
        try:
            return self._ask("GET", "/readyz", None).data == b"ok"
        except OSError:
            return False

    def _ask(self, method: str, where: str, body: Json | None) -> urllib3.BaseHTTPResponse:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        if where.endswith("/status") and method == "PATCH":
            kind = "application/strategic-merge-patch+json"
        if self._http is None:
            certificate = self.folder / "pki/apiserver.crt"  # the server's first start writes it
            if not certificate.exists():
                raise OSError(f"{certificate} is not there yet")
            self._http = urllib3.PoolManager(ca_certs=str(certificate), maxsize=4)
        try:
            return self._http.request(
                method,
                self.url + where,
                body=None if body is None else json.dumps(body),
                headers={"Authorization": f"Bearer {ADMIN}", "Content-Type": kind},
                timeout=10,
                retries=False,
            )
        except urllib3.exceptions.HTTPError as error:
            raise OSError(f"{method} {where}: {error}") from error

    def _start_etcd(self) -> None:
        peer = f"http://127.0.0.1:{free_port(None)}"
        client = f"http://127.0.0.1:{self._etcd}"
        self._start(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )

    def _start_controllers(self) -> None:
        self._start(
            "controllers",
            f"--kubeconfig={self.folder / 'admin.kubeconfig'}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={free_port(None)}",
            f"--cert-dir={self.folder / 'controllers'}",
            f"--service-account-private-key-file={self.folder / 'accounts.key'}",
            f"--controllers={','.join(_CONTROLLERS)}",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
        )

    def _start_scheduler(self) -> None:
        self._start(
            "scheduler",
            f"--kubeconfig={self.folder / 'admin.kubeconfig'}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={free_port(None)}",
            f"--cert-dir={self.folder / 'scheduler'}",
        )

    def _start(self, name: str, *flags: str) -> None:
        log: IO[bytes] = (self.folder / f"{name}.log").open("ab")
        with log:
            self._running[name] = subprocess.Popen(
                [str(self._program), name, *flags],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={"PATH": os.environ["PATH"], "GOMAXPROCS": "2"},
                preexec_fn=die_with_parent(),  # noqa: PLW1509 (one system call)
            )

    def _check(self, name: str) -> None:
        code = self._running[name].poll()
        if code is not None:
            last = (self.folder / f"{name}.log").read_text(errors="replace")[-600:]
            raise PlaneUnavailable(f"{name} ended with {code}: {last}")


class Kubelets:
    """Stands for the kubelets of all nodes: leases, pods that run, deletions that end."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._stop = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._stop.wait(0.15):
            with suppress(OSError):
                self._turn()

    def _turn(self) -> None:
        for pod in self._plane.call("GET", "/api/v1/pods")["items"]:
            meta, status = pod["metadata"], pod.get("status", {})
            where = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
            if not pod["spec"].get("nodeName"):
                continue
            if meta.get("deletionTimestamp"):
                if "stuck" not in meta.get("labels", {}):
                    self._plane.call("DELETE", where, {"gracePeriodSeconds": 0})
            elif status.get("phase") == "Pending":
                ready = {"type": "Ready", "status": "True"}
                started = datetime.now(UTC).isoformat()
                body = {"status": {"phase": "Running", "conditions": [ready]}}
                body["status"]["startTime"] = started
                self._plane.call("PATCH", f"{where}/status", body)
