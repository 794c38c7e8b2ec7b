"""What can go wrong in this folder, drawn in one place.

``WarehouseError`` is for whoever asks; its message is one sentence. ``SinkError`` stops a sink.
"""

__all__ = ["DamagedError", "SinkError", "WarehouseError"]


class WarehouseError(Exception):
    """A question cannot be answered; the message is one sentence for the operator."""


class SinkError(WarehouseError):
    """A sink cannot store anything here; going on would only lose or double records."""


class DamagedError(SinkError):
    """A file of the warehouse cannot be read; the message names it and says why."""
