"""Settings of the Slurm adapter: where Slurm's programs are, and what becomes of running jobs."""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["SlurmConfig"]


@dataclass(frozen=True, slots=True)
class SlurmConfig:
    """One Slurm cluster.

    ``programs`` is the folder of scontrol, squeue and scancel (None: on the PATH), ``conf`` the
    slurm.conf (None: Slurm's own default), ``timeout_s`` one call's. ``node_name`` makes a node's
    name of a host's: ``{host}``, or ``{short}`` for the part before the first dot.
    ``rack_feature`` names the node feature that a rack's nodes have: ``{rack}``.

    ``rest_url`` is slurmrestd's with the version of its interface; nodes are then read and drained
    over it (jobs are not). ``rest_token_file`` holds a JWT, ``rest_user`` whose it is,
    ``rest_cafile`` the CA of an https one.

    At level `drain` running jobs get ``checkpoint_signal`` (empty: none; a batch script that does
    not trap it dies of it) and are requeued after ``drain_patience_s``; at `evict` they are
    requeued at once, and where they cannot be, cancelled if ``cancel_at_evict``. With
    ``hasten_requeued`` they begin again as soon as they have ended, not ``cred_expire`` (120 s)
    later. A job whose
    comment has the word ``leave_jobs_with`` is left to its own supervisor.
    """

    programs: Path | None = None
    conf: Path | None = None
    timeout_s: float = 20.0
    node_name: str = "{host}"
    rack_feature: str = "{rack}"
    rest_url: str = ""
    rest_token_file: Path | None = None
    rest_user: str = ""
    rest_cafile: Path | None = None
    checkpoint_signal: str = ""
    drain_patience_s: float = 300.0
    cancel_at_evict: bool = True
    hasten_requeued: bool = True
    leave_jobs_with: str = "ringfence:elastic"

    def __post_init__(self) -> None:
        if self.timeout_s <= 0 or self.drain_patience_s < 0:
            raise ValueError("timeout_s must be more than 0 seconds, drain_patience_s not less")
        if self.rest_url and not self.rest_url.startswith(("http://", "https://")):
            raise ValueError(f"rest_url {self.rest_url!r} is not http://HOST:PORT/slurm/v0.0.42")
        for name in ("node_name", "rack_feature"):
            try:
                getattr(self, name).format(host="h", short="h", rack="r")
            except (KeyError, IndexError, ValueError):
                raise ValueError(
                    f"{name} {getattr(self, name)!r} may name {{host}}, {{short}} or {{rack}} only"
                ) from None
