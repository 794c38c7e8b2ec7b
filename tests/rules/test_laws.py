"""Laws over all rules: what every row, threshold and hard fact must have."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import rules
from evidence.decisions import Cause, Recovery
from evidence.records import KernelKind
from rules import catalog, host, kernel_facts, policy
from rules.catalog import Role
from rules.tables import Rules

FOLDER = Path(rules.__file__).parent

#: Sources a row may stand on, as the catalogs abbreviate them: NVIDIA's Xid catalog, the open
#: kernel modules' headers, the older Xid guide, the Fabric Manager guide, NVSentinel's table, a
#: public measurement of a fleet, a test-suite of a vendor's agent.
SOURCES = frozenset({"CAT", "HDR", "LEGACY", "FM", "NVS", "DELTA", "DDOG"})
#: Everything that could make a decision depend on more than what arrives.
IMPURE = frozenset({"time", "random", "os", "socket", "threading", "asyncio", "subprocess"})


@pytest.fixture(scope="module")
def known() -> catalog.Catalog:
    return catalog.load()


def test_every_row_has_a_source_a_date_and_a_title(known: catalog.Catalog) -> None:
    for row in (*known.xids.values(), *known.sxids.values(), *known.nvlink5):
        assert set(row.source.split("+")) <= SOURCES, row
        assert re.fullmatch(r"20\d\d-\d\d(-\d\d)?", row.date), row
    for named in (*known.xids.values(), *known.sxids.values()):
        assert named.title, named


def test_weight_and_rank_agree_with_the_role(known: catalog.Catalog) -> None:
    silent = (Role.INFO, Role.APPLICATION, Role.CONSEQUENCE, Role.RECOVERY)
    for row in known.xids.values():
        assert 0 <= row.weight <= 1, row
        assert (row.weight == 0) == (row.role in silent), row
        if row.role in (Role.LOST, Role.HARDWARE):
            assert row.rank > known.xids[94].rank, row
            assert row.cause is not Cause.UNKNOWN, row
            assert row.recovery is not Recovery.NONE, row
        if row.role in silent:
            assert row.rank <= 30, row


def test_a_code_that_meant_another_names_one_that_is_known(known: catalog.Catalog) -> None:
    for row in known.xids.values():
        for first, last, other in row.meant:
            assert first < last
            assert other in known.xids


def test_every_threshold_has_a_reason_a_source_and_a_reader(rules: Rules) -> None:
    text = "".join(path.read_text() for path in FOLDER.glob("*.py") if path.stem != "thresholds")
    for name, ground in rules.thresholds.grounds.items():
        assert len(ground.reason) > 20, name
        assert len(ground.source) > 9, name
        assert f".{name}" in text, f"nothing reads {name}"


@pytest.mark.parametrize("code", range(1, 178))
def test_every_xid_is_judged_or_silent_but_never_localized_unless_hard(
    code: int, node: Any, records: Any
) -> None:
    node.take(records.kernel(1, code=code))
    node.run_on()
    role = node.rules.xids[code].role
    hard = {f"xid-{code}"} | ({"remap-failure"} if code == 64 else set())
    statuses = {str(verdict.status) for verdict in node.verdicts}
    if hard & node.rules.policy.hard_facts:
        assert statuses == {"localized"}
    elif role in (Role.INFO, Role.RECOVERY):
        assert statuses == set()
    elif role in (Role.APPLICATION, Role.CONSEQUENCE):
        assert statuses <= {"software"}
    elif role is Role.DRIVER:
        assert statuses == {"insufficient"}
    else:
        assert statuses == {"suspected"}


def test_every_hard_fact_of_the_policy_is_one_that_the_stage_can_find() -> None:
    made = FOLDER.joinpath("kernel_facts.py").read_text() + FOLDER.joinpath("health.py").read_text()
    made += FOLDER.joinpath("health_flags.py").read_text()
    for name in policy.KNOWN_FACTS:
        assert f'"{name}"' in made, name


def test_every_kind_of_kernel_record_is_read_or_left_on_purpose() -> None:
    left = {
        KernelKind.MLX5,
        KernelKind.EFA,
        KernelKind.PEERMEM,
        KernelKind.HUNG_TASK,
        KernelKind.OVERRUN,
        KernelKind.UNREADABLE,
        KernelKind.OTHER,
    }
    assert set(kernel_facts._READERS) | left == set(KernelKind)
    assert not set(kernel_facts._READERS) & left


def test_the_steps_import_nothing_that_knows_the_time_or_the_world() -> None:
    seen = set()
    waiting = [Path(host.__file__)]
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        for line in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(line, ast.Import):
                names = [alias.name for alias in line.names]
            elif isinstance(line, ast.ImportFrom):
                names = [line.module or ""]
            for name in names:
                assert name.split(".")[0] not in IMPURE, f"{path.name} imports {name}"
                if name.startswith("rules."):
                    waiting.append(FOLDER / f"{name.split('.')[1]}.py")
        assert ".now(" not in path.read_text(), path.name
    assert len(seen) > 10
