"""The words every part of Ringfence speaks: records, topics, identity and the wire format.

Nothing here imports another part of Ringfence, reads a clock or touches a network.
"""
