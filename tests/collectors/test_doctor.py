"""The doctor of a new node: which collectors work, and what each of the others lacks."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collectors.agent import AgentConfig, once
from collectors.doctor import Finding, Need, ask_kafka, held_capabilities
from evidence.records import KernelRecord
from evidence.transport import Kafka
from ringfence.cluster import ensure_topics

NOWHERE = Kafka(bootstrap="127.0.0.1:1")
LINE = (
    "Aug  7 11:12:13 gb-r4-n2 kernel: [ 512.1] NVRM: Xid (PCI:0000:1a:00): 79, pid=77, "
    "GPU has fallen off the bus.\n"
)


def examined(**settings: Any) -> dict[str, Finding]:
    given = {"kernel_source": "none", "gpu_source": "none", "host": "gb-r4-n2"} | settings
    _, findings = once(AgentConfig(kafka=NOWHERE, **given))
    return {one.name: one for one in findings}


def test_a_source_that_works_shows_a_sample_and_what_it_took(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.write_text(LINE)
    found = examined(kernel_files=(log,))["kernel-files"]
    assert (found.state, found.reason, found.records, found.good) == ("ok", None, 1, True)
    assert found.needs == (Need(f"read access to {log}", has=True),)
    assert found.took_ms > 0
    assert found.sample is not None
    assert msgspec.json.decode(found.sample, type=KernelRecord).code == 79


def test_a_configured_file_that_is_not_there_is_missing(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    found = examined(kernel_files=(log,))["kernel-files"]
    assert (found.state, found.good, found.records) == ("unavailable", False, 0)
    assert str(log) in (found.reason or "")
    assert found.needs == (Need(f"read access to {log}", has=False),)


def test_a_node_without_a_job_lacks_nothing(tmp_path: Path) -> None:
    found = examined(nccl_paths=(str(tmp_path / "{job}-{rank}.log"),))["nccl"]
    assert (found.state, found.required, found.good) == ("unavailable", False, True)
    assert "no file fits" in (found.reason or "")


def test_dumps_of_the_flight_recorder_are_shown(tmp_path: Path) -> None:
    pattern = str(tmp_path / "nccl_trace_rank_*")
    (tmp_path / "nccl_trace_rank_3").write_bytes(b"no dump of any kind")
    found = examined(nccl_flight_recorder=(pattern,))["flight-recorder"]
    assert (found.state, found.records, found.required) == ("ok", 1, False)
    assert found.needs == (Need(f"read access to {pattern}", has=True),)


def test_who_must_answer_is_named_where_nobody_does() -> None:
    found = examined(
        gpu_source="dcgm", dcgm_url="http://127.0.0.1:1/metrics", nccl_ras="127.0.0.1:2"
    )
    assert (found["gpu"].state, found["gpu"].good) == ("unavailable", False)
    assert found["gpu"].needs == (Need("a dcgm-exporter at http://127.0.0.1:1/metrics", has=False),)
    assert (found["nccl-ras"].state, found["nccl-ras"].good) == ("unavailable", True)
    assert found["nccl-ras"].needs == (
        Need("a job on this node with NCCL 2.28.7 or newer, its RAS at 127.0.0.1:2", has=False),
    )


@pytest.fixture
def nobody() -> Iterator[Path]:
    """A folder that everybody may enter, looked at by a user who may do nothing else."""
    if os.geteuid() != 0:
        pytest.skip("only root may become another user")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "j1-3.log").write_text("x\n")
        (folder / "j1-3.log").chmod(0o600)
        os.seteuid(65534)
        try:
            yield folder
        finally:
            os.seteuid(0)


def test_a_log_that_may_not_be_read_is_named(nobody: Path) -> None:
    found = examined(nccl_paths=(str(nobody / "{job}-{rank}.log"),))["nccl"]
    assert found.needs == (Need(f"read access to {nobody}/j1-3.log", has=False),)


def test_gpus_that_answer_are_well_and_one_that_does_not_is_named(node: Any) -> None:
    found = examined(gpu_source="nvml")["gpu"]
    assert (found.state, found.records) == ("ok", 1)
    assert [need.what for need in found.needs[:1]] == ["read and write access to /dev/nvidiactl"]
    node.change({"gpu.1.all": "!15"})
    found = examined(gpu_source="nvml")["gpu"]
    assert (found.state, found.good) == ("error", False)
    assert (found.reason or "").startswith("1 of 2 GPUs: GPU 1")


def test_a_broker_that_does_not_answer_is_an_error_of_its_own() -> None:
    found = ask_kafka(NOWHERE)
    assert (found.name, found.state, found.good) == ("kafka", "error", False)
    assert (found.reason or "").startswith("127.0.0.1:1 does not answer: ")


@pytest.mark.integration
def test_a_broker_is_well_when_it_has_the_topics(kafka: Kafka) -> None:
    lacking = ask_kafka(kafka)
    assert lacking.state == "error"
    assert f"has no topic {kafka.topic('fabric')}, " in (lacking.reason or "")
    ensure_topics(kafka)
    assert ask_kafka(kafka) == Finding("kafka", "ok")


def test_capabilities_are_those_in_force(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000400000004\n")
    assert held_capabilities(status) == {"CAP_SYSLOG", "CAP_DAC_READ_SEARCH"}
    assert held_capabilities(tmp_path / "none") == frozenset()
