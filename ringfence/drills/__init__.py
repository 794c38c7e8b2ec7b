"""Fault drills: a fault made on purpose in a pool that allows it, timed, undone and recorded."""
