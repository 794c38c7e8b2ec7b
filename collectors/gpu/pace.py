"""Decides how often a GPU is asked: one whose calls grow slow is left alone for longer and longer.

A card in trouble can answer each call only after seconds (NVIDIA/DCGM issue 313: more than 45 s
under load), and every question adds to what its driver has to do.
"""

from dataclasses import dataclass

__all__ = ["Pace"]

#: The most ticks left out in a row: a card is then asked once in ten.
_MOST_LEFT_OUT = 9


@dataclass(slots=True)
class Pace:
    """One GPU's pace; ticks are counted from 0.

    A reading of ``slow_s`` or more makes the next ones rarer: 0, 1, 3, 7 and then 9 ticks are left
    out in between; one quick reading ends that.
    """

    slow_s: float
    took_s: float = 0.0
    _slow_in_a_row: int = 0
    _next: int = 0

    def took(self, seconds: float, tick: int) -> None:
        """Note what a reading cost; ``tick`` is the first one that comes after it."""
        self.took_s = seconds
        self._slow_in_a_row = self._slow_in_a_row + 1 if seconds >= self.slow_s else 0
        if self._slow_in_a_row:
            left_out = min(2 ** min(self._slow_in_a_row - 1, 8) - 1, _MOST_LEFT_OUT)
            self._next = tick + left_out

    def rests_for(self, tick: int) -> int:
        """How many ticks from this one on the GPU is not asked; 0 when it is."""
        return max(0, self._next - tick) if self._slow_in_a_row else 0
