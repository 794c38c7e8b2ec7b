"""A record travels whatever its text is made of."""

import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct

from collectors.agent import AgentConfig, once
from collectors.shipping.packing import encodable, pack
from collectors.shipping.shipper import Shipper
from evidence.records import KernelKind, KernelRecord, NcclRecord
from evidence.transport import Kafka
from evidence.wire import decode, encode
from ringfence.cluster import ensure_topics

AT = datetime(2026, 5, 6, 7, 8, 9, tzinfo=UTC)
TIMEOUT = (
    "[rank4]:[E506 07:08:09.1 ProcessGroupNCCL.cpp:632] [Rank 4] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, "
    "Timeout(ms)=600000) ran for 600021 milliseconds before timing out.\n"
)


def line(number: int, text: str) -> KernelRecord:
    return KernelRecord(
        id=f"p{number}", host="nv-e4", observed_at=AT, raw=text, kind=KernelKind.XID, at=AT
    )


def test_a_byte_that_is_no_utf8_is_spelled_and_nothing_else_changes() -> None:
    record = line(1, "rank\udcff.log \ud800 \u00fc")
    assert decode("kernel", pack(record)).raw == "rank\\xff.log \\ud800 \u00fc"
    assert encodable(record).at == AT


def test_what_can_be_encoded_is_the_record_itself() -> None:
    record = line(1, "Xid")
    assert encodable(record) is record
    assert pack(record) == encode(record)


class Odd(Struct):
    """A record with a value that JSON has no word for."""

    host: str
    value: object


def test_a_record_that_has_no_json_is_given_up_and_the_others_travel(kafka: Kafka) -> None:
    ensure_topics(kafka)
    told: list[bool] = []
    shipper = Shipper(kafka, host="nv-e4")
    shipper.send("kernel", "nv-e4", line(1, "before"))
    shipper.send("kernel", "nv-e4", Odd("nv-e4", object()), told.append)
    shipper.send("kernel", "nv-\udcff", line(2, "after"))
    assert shipper.flush(30)
    assert told == [False]
    # The two, and the fact of the third.
    assert (dict(shipper.delivered), dict(shipper.refused)) == ({"kernel": 3}, {"kernel": 1})
    shipper.close()


def test_a_log_whose_name_is_no_utf8_is_read_and_its_job_is_named(tmp_path: Path) -> None:
    folder = Path(msgspec.json.decode(msgspec.json.encode(str(tmp_path)))) / "job-\udcfe"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system takes names of UTF-8 only")
    (folder / "rank4.log").write_text(TIMEOUT)
    config = AgentConfig(
        kafka=Kafka(bootstrap="127.0.0.1:1"),
        host="nv-e4",
        kernel_source="none",
        gpu_source="none",
        fabric_sysfs=False,
        nccl_paths=(f"{tmp_path}/{{job}}/rank{{rank}}.log",),
    )
    began = time.monotonic()
    records, findings = once(config)
    found = [record for record in records if isinstance(record, NcclRecord)]
    assert [(one.job, one.rank) for one in found] == [("job-\\xfe", 4)]
    assert all(one.good for one in findings)
    assert time.monotonic() - began < 60
