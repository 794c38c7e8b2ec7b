-- SXid events of the kernel log, each record once. pci is the NVSwitch's address; count is the
-- number of equal lines in a storm.
create view facts.sxid_events as
select
    id, coalesce(event_at, observed_at) as event_at, host, code, pci, count, last_at, pid, process,
    message, link, severity, uuid, boot_id, file, line, raw, observed_at, appended_at
from staging.kernel
where kind = 'sxid'
qualify row_number() over (
    partition by id, coalesce(event_at, observed_at), host order by kafka_offset
) = 1;
