"""The logs of a training job: NCCL, PyTorch, torchrun; flight-recorder dumps, the RAS service."""

from collectors.nccl.collector import NcclCollector, parse_stream

__all__ = ["NcclCollector", "parse_stream"]
