"""The registers of an Xid 74."""

import pytest

from rules import xid74
from rules.xid74 import Weight


@pytest.mark.parametrize(
    ("registers", "weight"),
    [
        ((0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0), Weight.REPEATED),
        ((0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0), Weight.PHYSICAL),
        ((0x200000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0), Weight.PHYSICAL),
        ((0x30, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0), Weight.OWN),
        ((0x0, 0x0, 0x0, 0x0, 0x240000, 0x0, 0x0), Weight.OWN),
        ((0x2, 0x0, 0x0, 0x30000, 0x0, 0x0, 0x0), Weight.SECONDARY),
        ((0x800001, 0x0, 0x0, 0x0, 0x100000, 0x0, 0x0), Weight.IGNORED),
        ((0x1, 0x0, 0x1, 0x10000, 0x0, 0x0, 0x0), Weight.OWN),
    ],
)
def test_the_weightiest_bit_tells(registers: tuple[int, ...], weight: Weight) -> None:
    found = xid74.decode(registers)
    assert found is not None
    assert found.weight is weight


def test_every_known_bit_is_told_in_words() -> None:
    found = xid74.decode((0x100, 0x0, 0x2, 0x0, 0x0, 0x0, 0x0))
    assert found is not None
    assert found.words == (
        "R1 bit 8: connection of the link, R3 bit 1: ECC or parity error in the link's logic"
    )


@pytest.mark.parametrize("registers", [(), (0, 0, 0, 0, 0, 0, 0), (0, 0x10000, 0, 0, 0, 0xFF, 0x1)])
def test_registers_of_no_known_meaning_say_nothing(registers: tuple[int, ...]) -> None:
    assert xid74.decode(registers) is None
