-- What training logs say of collectives, each record once; lines of kind other are left out.
-- rank is global; seq counts within its own communicator or process group and compares with no other.
-- timeout_ms, elapsed_ms: milliseconds. A timeout names a victim, never the culprit.
create view facts.collective_events as
select
    id, coalesce(event_at, observed_at) as event_at, job, attempt, host, kind, phase, rank,
    local_rank, pid, comm, comm_rank, comm_size, process_group, group_desc, seq, op, pci, peer, hca,
    port, status, ranks, hosts, timeout_ms, elapsed_ms, last_enqueued, last_started, last_completed,
    exit_code, count, message, file, line, raw, observed_at, appended_at
from staging.nccl
where kind <> 'other'
qualify row_number() over (
    partition by id, coalesce(event_at, observed_at), job order by kafka_offset
) = 1;
