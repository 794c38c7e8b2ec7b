"""Reads old logs and exports into records for the history; `warehouse.backfill` stores them."""
