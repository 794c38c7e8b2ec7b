"""How far this node's clock is ahead of Kafka's, from the times at which records were appended."""

__all__ = ["ClockSkew"]

#: Two windows are kept: the one that grows and the one before it.
_WINDOW_S = 60.0
#: A wider answer than this tells nothing: the records waited somewhere, or the clock stepped.
_WIDEST_MS = 500.0


class ClockSkew:
    """Bounds on the skew: a record is appended after it was sent and before it is acknowledged.

    So sent - appended is at most the skew, and acknowledged - appended is at least that; the best
    of both over a minute or two cancels what the way takes. Tells nothing where a topic keeps the
    producer's time (message.timestamp.type=CreateTime).
    """

    def __init__(self) -> None:
        self._now = (float("-inf"), float("inf"))
        self._before = self._now
        self._ends_at = 0.0

    def add(self, sent_ms: int, appended_ms: int, acknowledged_ms: int, now: float) -> None:
        """Add one acknowledged record: node's, broker's, node's Unix time; ``now``: monotonic.

        An append time equal to the sent one is the producer's own, given back.
        """
        if appended_ms < 0 or appended_ms == sent_ms:
            return
        if now >= self._ends_at:
            fresh = (float("-inf"), float("inf"))
            self._before = self._now if now < self._ends_at + _WINDOW_S else fresh
            self._now = fresh
            self._ends_at = now + _WINDOW_S
        low, high = self._now
        self._now = (max(low, sent_ms - appended_ms), min(high, acknowledged_ms - appended_ms))

    @property
    def seconds(self) -> float | None:
        """The middle of the bounds, positive when the node is ahead; None while they are far."""
        low = max(self._now[0], self._before[0])
        high = min(self._now[1], self._before[1])
        if not 0 <= high - low <= _WIDEST_MS:
            low, high = self._now  # the clock was set: what was before does not count
        if not 0 <= high - low <= _WIDEST_MS:
            return None
        return (low + high) / 2000
