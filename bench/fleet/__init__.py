"""A simulated fleet: what its nodes write when something breaks, and the truth about it.

It knows nothing of the rules: a scenario file holds what is written and what is true, and both are
fixed before anything is judged.
"""
