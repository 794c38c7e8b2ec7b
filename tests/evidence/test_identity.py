import pytest
from hypothesis import given
from hypothesis import strategies as st

from evidence.identity import bus_id_to_pci, digest, normalise_pci


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0000:3b:00", ("0000:3b:00", None)),
        ("PCI:0000:3B:00", ("0000:3b:00", None)),
        ("00000000:3B:00.0", ("0000:3b:00", 0)),
        ("0008:01:00.1", ("0008:01:00", 1)),
        ("10000:e1:00.0", ("10000:e1:00", 0)),
        (" 0000:10:1c\n", ("0000:10:1c", None)),
    ],
)
def test_every_spelling_of_an_address_becomes_one(
    text: str, expected: tuple[str, int | None]
) -> None:
    assert normalise_pci(text) == expected


@pytest.mark.parametrize("text", ["", "3b:00", "0000:3b", "0000:3b:00.8", "0000:3g:00", "GPU-1"])
def test_what_is_no_address_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ValueError, match="not a PCI address"):
        normalise_pci(text)


@pytest.mark.parametrize(
    ("bus_id", "pci"),
    [("5d000", "0000:5d:00"), ("b000", "0000:0b:00"), ("1007f000", "0100:7f:00")],
)
def test_a_nccl_bus_id_becomes_the_kernels_address(bus_id: str, pci: str) -> None:
    assert bus_id_to_pci(bus_id) == pci


@given(st.integers(0, 0xFFFFF), st.integers(0, 0xFF), st.integers(0, 0x1F), st.integers(0, 7))
def test_bus_id_and_address_agree_for_every_device(
    domain: int, bus: int, device: int, function: int
) -> None:
    printed = f"{domain << 20 | bus << 12 | device << 4 | function:x}"
    written = f"{domain:08x}:{bus:02X}:{device:02x}.{function}"
    assert normalise_pci(written) == (bus_id_to_pci(printed), function)


PARTS = st.lists(st.text(alphabet=st.characters(exclude_characters="\0")), min_size=1)


@given(PARTS, PARTS)
def test_ids_are_equal_only_for_equal_parts(one: list[str], other: list[str]) -> None:
    assert (digest(*one) == digest(*other)) == (one == other)
    assert len(digest(*one)) == 24
