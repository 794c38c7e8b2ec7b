"""The InfiniBand fabric: sweeps in process, sysfs of the node, texts of the tools, optics."""
