"""The GPUs of a node: NVML, dcgm-exporter, recordings; ticks in frames."""

from collectors.gpu.collector import NvmlCollector, RecordingCollector

__all__ = ["NvmlCollector", "RecordingCollector"]
