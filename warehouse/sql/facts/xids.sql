-- Xid events of the kernel log, each record once. pci is the GPU's address; count is the number of
-- equal lines in a storm. process of an Xid 119 is whoever called, not the culprit.
create view facts.xids as
select
    id, event_at, host, code, pci, count, last_at, pid, process, message,
    mig.gi as gi, mig.ci as ci, caused_by, link, reset, drain_reset, recovery_action, uuid,
    boot_id, raw, observed_at, appended_at
from staging.kernel
where kind = 'xid'
qualify row_number() over (partition by id order by kafka_offset) = 1;
