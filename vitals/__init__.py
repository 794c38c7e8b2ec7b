"""What a part says of itself while it runs: figures for Prometheus, and whether it is well."""
