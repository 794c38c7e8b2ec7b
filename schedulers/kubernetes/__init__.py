"""Kubernetes: cordons, taints and drains nodes, taints single GPUs, and tells what stands out."""
