"""Slurm: drains nodes and takes back only its own drains, by scontrol, squeue and scancel."""

from schedulers.slurm.adapter import SlurmAdapter, adapter
from schedulers.slurm.config import SlurmConfig

__all__ = ["SlurmAdapter", "SlurmConfig", "adapter"]
