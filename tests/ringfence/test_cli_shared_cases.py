"""Public lines, logs and runs with their right answers, through the command line, where at hand."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from evidence.identity import normalise_pci

SHARED = Path(os.environ.get("RINGFENCE_SHARED", Path(__file__).parents[3] / "shared"))
KMSG = SHARED / "data" / "kmsg"
KERNEL_LINES = SHARED / "cases" / "kernel-lines.tsv"
NCCL = sorted(path.parent for path in (SHARED / "cases" / "nccl").glob("*/meta.json"))

if not (KMSG.is_dir() and KERNEL_LINES.is_file() and NCCL):
    pytest.skip(
        f"no shared cases in {SHARED} (RINGFENCE_SHARED names another folder)",
        allow_module_level=True,
    )

_KINDS = {"xid": "xid", "sxid": "sxid", "nvrm_other": "nvrm"}
#: The thread tells more than the excerpt: the rank that printed it was not the one meant, or
#: only other ranks' lines are in it.
RANK_NOT_IN_THE_LOG = {
    "032_autocast-381_rank0-extra-barrier",
    "058_marin-8934_nvlink-contained",
    "072_gpustack-6019_should-dump",
}


def judged(ringfence: Any, path: Path) -> dict[str, Any]:
    result = ringfence("triage", str(path), "--json")
    assert result.stderr == ""
    found: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == (1 if found["verdicts"] else 0)
    return found


def test_kind_code_and_address_are_right_on_every_line_of_one_file(
    ringfence: Any, tmp_path: Path
) -> None:
    """All lines in one call: a record of several lines counts for its first."""
    rows = [row.split("\t") for row in KERNEL_LINES.read_text().splitlines()[1:] if row]
    file = tmp_path / "lines.log"
    file.write_text("".join(f"{row[0]}\n" for row in rows))
    result = ringfence("parse", "kernel", str(file))
    assert (result.exit_code, result.stderr) == (0, "")
    by_line = {one["line"]: one for one in map(json.loads, result.stdout.splitlines())}
    wrong = []
    for number, (line, kind, code, pci, *_) in enumerate(rows, start=1):
        found = by_line.get(number, {})
        said = (found.get("kind"), found.get("code"), found.get("pci"))
        right = (
            _KINDS.get(kind) or (said[0] if said[0] not in ("xid", "sxid") else None),
            int(code) if code else None,
            normalise_pci(pci)[0] if pci else None,
        )
        if said != right:
            wrong.append((line, said, right))
    assert wrong == []
    assert len(rows) >= 143


def test_the_memory_fault_names_its_gpu_and_commands_one_drain(ringfence: Any) -> None:
    found = judged(ringfence, KMSG / "h100_dbe_48_63_94_chain.log")
    (verdict,) = found["verdicts"]
    assert (verdict["status"], verdict["cause"]) == ("localized", "gpu-memory")
    assert (verdict["domain"]["kind"], verdict["domain"]["pci"]) == ("gpu", "0000:19:00")
    (command,) = found["commands"]
    assert (command["action"], command["level"]) == ("isolate", "drain")
    assert command["domain"]["pci"] == "0000:19:00"
    assert (command["dry_run"], command["held"]) == (True, None)


def test_the_burst_of_an_applications_faults_is_software(ringfence: Any) -> None:
    found = judged(ringfence, KMSG / "xid13_43_burst_629_lines.log")
    assert {one["status"] for one in found["verdicts"]} == {"software"}
    assert found["commands"] == []


@pytest.mark.parametrize("case", NCCL, ids=lambda case: case.name)
def test_a_job_log_names_the_culprit_where_it_tells_and_isolates_nothing(
    ringfence: Any, case: Path
) -> None:
    expected = json.loads((case / "meta.json").read_text())["expected"]
    found = judged(ringfence, case / "log.txt")
    assert found["commands"] == []
    assert not [one for one in found["verdicts"] if one["status"] == "localized"]
    domains = [one["domain"] for one in found["verdicts"]]
    culprit = expected["culprit"]
    if culprit is None:
        # A whole job is no part: nobody is named.
        assert [one for one in domains if one["kind"] != "job" or one["rank"] is not None] == []
    elif "rank" in culprit and case.name not in RANK_NOT_IN_THE_LOG:
        assert {one["rank"] for one in domains} == {culprit["rank"]}
    else:
        # Nobody else than the culprit is named as a rank of the job.
        assert {one["rank"] for one in domains} <= {culprit.get("rank"), None}
