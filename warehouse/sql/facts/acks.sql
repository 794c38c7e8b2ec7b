-- Answers of schedulers to commands, each once. took_ms: milliseconds. status: done, failed,
-- expired, skipped or refused.
create view facts.acks as
select
    id, command, domain_id, event_at, scheduler, status, detail, exit_code, attempt, took_ms,
    appended_at
from staging.acks
qualify row_number() over (partition by id, event_at order by kafka_offset) = 1;
