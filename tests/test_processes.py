"""How tests are dealt out to several processes: what tests/conftest.py names is there."""

import re
from pathlib import Path

import pytest

from tests import conftest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("beginning", conftest._TOGETHER)
def test_what_must_stay_together_is_there(beginning: str) -> None:
    assert list(ROOT.glob(f"{beginning}*")), beginning


@pytest.mark.parametrize("beginning", conftest._APART)
def test_a_file_that_is_dealt_out_test_by_test_starts_nothing_for_all_of_it(
    beginning: str,
) -> None:
    text = (ROOT / beginning.removesuffix("::")).read_text()
    assert re.findall(r'scope="(?:module|class|package)"|\bmodule_kafka\b', text) == []


def test_a_files_tests_are_one_piece_of_work_but_for_those_that_take_long() -> None:
    scope = conftest.Scheduling._split_scope
    dealt = [
        scope(None, one)  # type: ignore[arg-type]
        for one in (
            "tests/rules/test_laws.py::test_a[x::y]",
            "tests/schedulers/slurm/test_rest.py::test_b",
            "tests/schedulers/slurm/test_slurm.py::test_c",
            "tests/integration/test_up.py::test_d",
        )
    ]
    assert dealt == [
        "tests/rules/test_laws.py",
        "slurm",
        "slurm",
        "tests/integration/test_up.py::test_d",
    ]
