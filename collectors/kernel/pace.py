"""Paces what the kernel's collectors do besides reading, so that an idle node costs nothing."""

__all__ = ["HELD_S", "IDLE_S"]

#: Until the rest of an event that was cut in two by our reading is looked for.
HELD_S = 0.02
#: Until the next look without anything to read: the count of noise may be due.
IDLE_S = 60.0
