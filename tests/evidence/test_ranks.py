"""Sets of ranks written as ranges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evidence.ranks import from_ranges, to_ranges


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], ""),
        ([5], "5"),
        ([0, 1], "0-1"),
        (range(16384), "0-16383"),
        ([3, 7, 11, 15], "3-15/4"),
        ([0, 8], "0,8"),
        ([2, 0, 1, 1], "0-2"),
        ([0, 1, 2, 8, 16, 24, 31], "0-2,8-24/8,31"),
    ],
)
def test_ranks_are_written_as_ranges(ranks: list[int], text: str) -> None:
    assert to_ranges(ranks) == text
    assert from_ranges(text) == tuple(sorted(set(ranks)))


@given(st.sets(st.integers(0, 70_000), max_size=300))
def test_what_is_written_is_read_back(ranks: set[int]) -> None:
    assert from_ranges(to_ranges(ranks)) == tuple(sorted(ranks))


@pytest.mark.parametrize("text", ["a", "1-", "3-1", "0-9/0", "1,,2", "-1", "0-999999999", "1 - 2"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no range of ranks"):
        from_ranges(text)
