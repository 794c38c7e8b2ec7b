"""What the seven registers of an Xid 74 say: whose fault, and whether it counts at once.

Of the registers, R1 and R3 to R5 carry bits of a known meaning on Hopper; the others, and bits
that nobody told the meaning of, say nothing. Source: NVIDIA Xid catalog, NVLink error workflow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

__all__ = ["LinkError", "Weight", "decode"]


class Weight(IntEnum):
    """What a bit says, least first.

    ``ignored`` nothing; ``secondary`` that something else happened, perhaps at the other end;
    ``repeated`` a fault of this GPU's end once it comes again; ``own`` an ECC or parity error in
    the link's logic on this GPU, which counts when it comes again; ``physical`` the connection
    between both ends: seating, cable, signal.
    """

    IGNORED = 0
    SECONDARY = 1
    REPEATED = 2
    OWN = 3
    PHYSICAL = 4


#: (register from 1, bits, what they say, in words)
_MEANINGS: tuple[tuple[int, tuple[int, ...], Weight, str], ...] = (
    (1, (0, 23, 30), Weight.IGNORED, "of no account"),
    (1, (1, 20), Weight.SECONDARY, "follows another error"),
    (1, (4, 5), Weight.OWN, "ECC or parity error in the link's logic"),
    (1, (8, 9, 12, 16, 17, 24, 28), Weight.PHYSICAL, "connection of the link"),
    (1, (21, 22), Weight.PHYSICAL, "marginal signal"),
    (1, (27, 29), Weight.REPEATED, "counts when it comes again"),
    (3, (0, 1, 2, 6), Weight.OWN, "ECC or parity error in the link's logic"),
    (3, (13,), Weight.REPEATED, "never expected in production"),
    (3, (16, 17, 18, 19), Weight.REPEATED, "counts when it comes again"),
    (4, (16, 17), Weight.SECONDARY, "follows another error"),
    (4, (18,), Weight.SECONDARY, "follows another error, and the fabric needs a reset"),
    (5, (18, 19, 21, 22, 24, 25, 27, 28), Weight.OWN, "ECC or parity error in the link's logic"),
    (5, (20, 23, 26, 29), Weight.IGNORED, "corrected errors reached their limit"),
)
_BITS = {
    (register, bit): (weight, words) for register, bits, weight, words in _MEANINGS for bit in bits
}


@dataclass(frozen=True, slots=True)
class LinkError:
    """The weightiest meaning of the bits that are set, and all of them in words."""

    weight: Weight
    words: str


def decode(registers: Sequence[int]) -> LinkError | None:
    """Decode the registers of one Xid 74; None where no set bit has a known meaning."""
    set_bits = [
        (register, bit, *_BITS[register, bit])
        for register, value in enumerate(registers, 1)
        for bit in range(32)
        if value >> bit & 1 and (register, bit) in _BITS
    ]
    if not set_bits:
        return None
    return LinkError(
        weight=max(weight for _, _, weight, _ in set_bits),
        words=", ".join(f"R{register} bit {bit}: {words}" for register, bit, _, words in set_bits),
    )
