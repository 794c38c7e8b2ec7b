"""The Xid and SXid catalogs: what they hold, and what a damaged one says."""

from pathlib import Path

import pytest

from evidence.decisions import Cause, DomainKind, Recovery
from rules import catalog
from rules.catalog import Role


@pytest.fixture(scope="module")
def known() -> catalog.Catalog:
    return catalog.load()


def test_every_published_code_is_there(known: catalog.Catalog) -> None:
    assert sorted(known.xids) == list(range(1, 178))
    assert len(known.sxids) == 400
    assert all(10_000 <= code < 40_000 for code in known.sxids)


@pytest.mark.parametrize(
    ("code", "role", "cause", "recovery"),
    [
        (79, Role.LOST, Cause.GPU_LOST, Recovery.REBOOT_NODE),
        (48, Role.HARDWARE, Cause.GPU_MEMORY, Recovery.RESET_GPU),
        (63, Role.WARNING, Cause.GPU_MEMORY, Recovery.DRAIN_RESET),
        (94, Role.CONTAINED, Cause.GPU_MEMORY, Recovery.RESTART_APP),
        (119, Role.HARDWARE, Cause.GPU_FIRMWARE, Recovery.RESET_GPU),
        (74, Role.LINK, Cause.NVLINK, Recovery.CHECK_LINK),
        (13, Role.APPLICATION, Cause.SOFTWARE, Recovery.RESTART_APP),
        (45, Role.CONSEQUENCE, Cause.SOFTWARE, Recovery.NONE),
        (154, Role.RECOVERY, Cause.UNKNOWN, Recovery.NONE),
        (56, Role.DRIVER, Cause.UNKNOWN, Recovery.DIAGNOSE),
    ],
)
def test_a_well_known_code_means_what_it_means(
    known: catalog.Catalog, code: int, role: Role, cause: Cause, recovery: Recovery
) -> None:
    row = known.xids[code]
    assert (row.role, row.cause, row.recovery) == (role, cause, recovery)


def test_root_causes_are_ordered_as_they_explain_each_other(known: catalog.Catalog) -> None:
    order = [79, 48, 64, 62, 74, 119, 94, 13, 45, 154]
    ranks = [known.xids[code].rank for code in order]
    assert ranks == sorted(ranks, reverse=True)
    assert len(set(ranks)) == len(ranks)


def test_a_code_that_meant_something_else_in_an_old_driver(known: catalog.Catalog) -> None:
    assert known.xid(144, "550.90.07") is known.xids[151]
    assert known.xid(144, "550.163.01") is known.xids[151]
    assert known.xid(144, "570.124.06") is known.xids[144]
    assert known.xid(139, "535.104.05") is known.xids[141]
    assert known.xid(144) is known.xids[144]
    assert known.xid(144, "a branch of our own") is known.xids[144]
    assert known.xid(888) is None


def test_an_nvswitch_code_whose_word_is_decided_at_run_time(known: catalog.Catalog) -> None:
    assert known.sxids[20034].domain is DomainKind.NVLINK
    assert known.sxids[10003].domain is DomainKind.NODE
    assert (known.sxids[30002].contain, known.sxids[20034].contain) == (True, False)
    assert known.sxids[10001].domain is None
    assert sum(row.contain for row in known.sxids.values()) > 50


@pytest.mark.parametrize(
    ("column", "value", "sentence"),
    [
        ("role", "bystander", "xid.tsv, line 3: 'bystander' is not a valid Role"),
        ("cause", "gremlins", "xid.tsv, line 3: 'gremlins' is not a valid Cause"),
        ("code", "1", "xid.tsv, line 3: code 1 stands twice"),
        ("source", "", "xid.tsv, line 3: a row has a source and a date"),
    ],
)
def test_a_damaged_row_is_named_with_its_line(
    tmp_path: Path, column: str, value: str, sentence: str
) -> None:
    lines = (catalog.DATA / "xid.tsv").read_text().splitlines()
    cells = lines[2].split("\t")
    cells[lines[0].split("\t").index(column)] = value
    lines[2] = "\t".join(cells)
    (tmp_path / "xid.tsv").write_text("\n".join(lines) + "\n")
    for name in ("sxid.tsv", "nvlink5.tsv"):
        (tmp_path / name).write_text((catalog.DATA / name).read_text())
    with pytest.raises(catalog.CatalogError) as caught:
        catalog.load(tmp_path)
    assert str(caught.value) == sentence
