"""What nvidia-smi prints, in every shape, as the record that NVML gives."""

from collectors.nvidia_smi.outputs import parse_stream, recognise

__all__ = ["parse_stream", "recognise"]
