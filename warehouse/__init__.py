"""Kafka to Parquet, exactly once, and DuckDB views over it."""
