"""Settings of the Kubernetes adapter: whom to talk to, how to name things, how long to wait."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

__all__ = ["GpuAs", "KubernetesConfig", "PastBudget"]


class GpuAs(StrEnum):
    """What is taken out for one GPU: the device, else the node; always the node; never the node."""

    AUTO = "auto"
    NODE = "node"
    NEVER = "never"


class PastBudget(StrEnum):
    """What `evict` does with pods that are still there when its patience ends.

    ``LEAVE`` says which they are. ``TAINT`` adds a NoExecute taint and ``DELETE`` deletes the pods:
    neither asks a PodDisruptionBudget; the latter needs the verb ``delete`` on pods.
    """

    LEAVE = "leave"
    TAINT = "taint"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class KubernetesConfig:
    """One cluster.

    ``kubeconfig`` None: the service account of the pod we run in, else ``KUBECONFIG`` and
    ~/.kube/config. ``node_label`` names the label whose value is the host's name; empty: the node
    is called like the host. ``prefix`` begins our taint and annotations. ``timeout_s`` is one
    call's. ``drain_patience_s`` and ``evict_patience_s`` are how long pods may hold out, by
    their PodDisruptionBudgets or their grace. ``workers`` calls run at once in a batch.
    ``gpu_resource`` is what a device plugin calls a GPU, ``gpu_drivers`` are the DRA drivers whose
    devices are GPUs. ``job_labels`` tell a pod's job, first match first. ``foreign_taints`` are
    keys by which others take a node out of service.
    """

    kubeconfig: Path | None = None
    context: str | None = None
    node_label: str = ""
    prefix: str = "ringfence"
    timeout_s: float = 10.0
    drain_patience_s: float = 120.0
    evict_patience_s: float = 15.0
    past_budget: PastBudget = PastBudget.LEAVE
    gpu_as: GpuAs = GpuAs.AUTO
    workers: int = 16
    condition: str = "RingfenceIsolated"
    event_namespace: str = "default"
    gpu_resource: str = "nvidia.com/gpu"
    gpu_drivers: tuple[str, ...] = ("gpu.nvidia.com",)
    job_labels: tuple[str, ...] = (
        "jobset.sigs.k8s.io/jobset-name",
        "training.kubeflow.org/job-name",
        "trainer.kubeflow.org/trainjob-name",
        "leaderworkerset.sigs.k8s.io/name",
        "volcano.sh/job-name",
        "ray.io/cluster",
        "batch.kubernetes.io/job-name",
        "job-name",
    )
    attempt_labels: tuple[str, ...] = ("jobset.sigs.k8s.io/restart-attempt",)
    foreign_taints: tuple[str, ...] = (
        "nvidia.com/gpu-error",
        "nvidia.com/gpu-nvlink-error",
        "nvidia.com/gpu-xid-error",
        "nvidia.com/syslog-xid-error",
        "node.kubernetes.io/out-of-service",
        "ToBeDeletedByClusterAutoscaler",
        "karpenter.sh/disrupted",
    )

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError("workers must be at least 1")
        if min(self.timeout_s, self.drain_patience_s, self.evict_patience_s) <= 0:
            raise ValueError("timeout_s and the patience must be more than 0 seconds")
        if not self.prefix or "/" in self.prefix:
            raise ValueError(
                f"prefix {self.prefix!r} is not the part before the / of a taint's key"
            )

    @property
    def taint(self) -> str:
        """Key of the taint on nodes and devices."""
        return f"{self.prefix}/isolated"

    @property
    def mark(self) -> str:
        """Annotation with who of us keeps the node out: JSON, domain id to mark."""
        return f"{self.prefix}/marks"

    @property
    def cordon(self) -> str:
        """Annotation that says whose the cordon is: ``ours`` or ``theirs``."""
        return f"{self.prefix}/cordon"
