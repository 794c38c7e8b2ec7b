"""``parse gpu`` and ``parse fabric``: the outputs of tools as NDJSON."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

ERRORS = b"""\
Errors for 0x98039b0300a1c0e0 "MF0;leaf-09:MQM9700/U1"
   GUID 0x98039b0300a1c0e0 port 17: [SymbolErrorCounter == 65535] [LinkDownedCounter == 9]

## Summary: 12 nodes checked, 1 bad nodes found
"""
HEALTHY = b"""
## Summary: 12 nodes checked, 0 bad nodes found
##          44 ports checked, 0 ports have errors beyond threshold
"""
GPUS = b"""\
index, uuid, pci.bus_id, temperature.gpu, ecc.errors.uncorrected.volatile.total
0, GPU-6f1e2d3c-0000-4444-8888-1234567890ab, 00000000:4F:00.0, 41, [N/A]
"""


def records(result: Result) -> list[dict[str, Any]]:
    assert result.stderr == ""
    assert result.exit_code == 0
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("way", ["stdin", "file", "gzip"])
def test_parse_fabric_prints_a_record_a_node_with_every_field(
    ringfence: Any, tmp_path: Path, way: str
) -> None:
    file = tmp_path / "q.txt"
    file.write_bytes(gzip.compress(ERRORS) if way == "gzip" else ERRORS)
    given = ("parse", "fabric", "--subnet", "ib7")
    result = ringfence(*given, stdin=ERRORS) if way == "stdin" else ringfence(*given, str(file))
    (record,) = records(result)
    told = {name: record[name] for name in ("schema", "subnet", "guid", "kind", "host", "source")}
    assert told == {
        "schema": "fabric/1", "subnet": "ib7", "guid": "0x98039b0300a1c0e0", "kind": "switch",
        "host": None, "source": "ibqueryerrors",
    }  # fmt: skip
    assert record["ports"] == [
        {
            "port": 17,
            "counters": {"symbol_error": 65535, "link_downed": 9},
            "saturated": ["symbol_error"],
        }
    ]


def test_parse_fabric_of_a_fabric_without_errors_prints_nothing_and_is_0(ringfence: Any) -> None:
    assert records(ringfence("parse", "fabric", stdin=HEALTHY)) == []


def test_parse_gpu_prints_what_nvidia_smi_told_and_null_for_what_it_did_not(ringfence: Any) -> None:
    (record,) = records(ringfence("parse", "gpu", "--host", "trn-31", stdin=GPUS))
    (gpu,) = record["ticks"][0]["gpus"]
    assert (record["host"], gpu["pci"], gpu["temperature_c"]) == ("trn-31", "0000:4f:00", 41)
    assert gpu["unread"]


@pytest.mark.parametrize(
    ("kind", "tool"), [("gpu", "nvidia-smi"), ("fabric", "a fabric tool")], ids=["gpu", "fabric"]
)
@pytest.mark.parametrize("text", [b"", b"\x00\xff\x00 nothing of this\n" * 9, b"hello\n"])
def test_another_file_is_refused_in_one_sentence(
    ringfence: Any, kind: str, tool: str, text: bytes
) -> None:
    result = ringfence("parse", kind, stdin=text)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.strip() == f"Error: <stdin>: holds nothing that {tool} prints"


def test_a_damaged_archive_gives_what_came_before_and_says_that_it_broke_off(
    ringfence: Any, tmp_path: Path
) -> None:
    file = tmp_path / "q.txt.gz"
    noise = "".join(f"{n * 7919:x}\n" for n in range(30_000)).encode()
    file.write_bytes(gzip.compress(ERRORS + noise)[:-40_000])
    result = ringfence("parse", "fabric", str(file))
    assert result.exit_code == 2
    assert [json.loads(line)["guid"] for line in result.stdout.splitlines()] == [
        "0x98039b0300a1c0e0"
    ]
    assert "broke off" in result.stderr
