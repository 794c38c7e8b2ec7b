from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from collectors import kernel, nccl
from evidence.records import KernelKind, NcclKind
from ringfence.incident import Incident

NOW = datetime(2026, 7, 8, 9, 10, 11, tzinfo=UTC)


def written(incident: Incident) -> dict[Path, bytes]:
    files: dict[Path, str] = {}
    for write in incident.script():
        files[write.path] = files.get(write.path, "") + write.text
    return {path: text.encode() for path, text in files.items()}


def test_two_runs_share_no_host_card_or_job(tmp_path: Path) -> None:
    one, other = Incident(tmp_path, NOW, seed=1), Incident(tmp_path, NOW, seed=2)
    assert {node.host for node in one.nodes}.isdisjoint(node.host for node in other.nodes)
    assert one.culprit.uuid != other.culprit.uuid
    assert one.job != other.job


def test_the_fault_is_48_63_and_nine_94_within_168_ms(tmp_path: Path) -> None:
    incident = Incident(tmp_path, NOW, seed=3)
    log = written(incident)[incident.kernel_log(incident.victim_node)]
    records = [
        record
        for record in kernel.parse_stream(
            log.splitlines(keepends=True), host="h", now=NOW, coalesce=False
        )
        if record.kind is KernelKind.XID and record.pci == incident.culprit.pci
    ]
    assert Counter(record.code for record in records) == {48: 1, 63: 1, 94: 9}
    times = [record.at for record in records if record.at is not None]
    assert (max(times) - min(times)).total_seconds() == 0.168


def test_every_rank_but_the_dead_one_times_out_ten_minutes_later(tmp_path: Path) -> None:
    incident = Incident(tmp_path, NOW, seed=4)
    timed_out, joined = set(), {}
    for path, text in written(incident).items():
        if incident.job not in str(path):
            continue
        for record in nccl.parse_stream(
            text.splitlines(keepends=True), job=incident.job, host=None, now=NOW
        ):
            if record.kind is NcclKind.COMM_INIT:
                joined[record.comm_rank] = (record.host, record.pci)
            elif record.kind is NcclKind.TIMEOUT:
                timed_out.add(record.rank)
                assert record.at is not None
                assert (record.at - incident.began).total_seconds() > 600
    assert set(joined) - timed_out == {incident.culprit_rank}
    assert len(joined) == 32
    assert joined[incident.culprit_rank] == (incident.victim_node.host, incident.culprit.pci)


def test_the_scenes_never_share_a_card(tmp_path: Path) -> None:
    for seed in range(200):
        incident = Incident(tmp_path, NOW, seed=seed)
        quitter = incident.other[incident.quitter_rank // 8].gpus[incident.quitter_rank % 8]
        assert incident.reset_gpu is not quitter
