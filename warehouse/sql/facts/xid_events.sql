-- Xid events of the kernel log, each record once. pci is the GPU's address; gpu is what its history
-- follows: the UUID that the line tells, else the card that stood there then, else the place.
-- count: equal lines in a storm. process of an Xid 119 is whoever called, not the culprit.
create view facts.xid_events as
with
events as (
    select
        id, coalesce(event_at, observed_at) as event_at, host, code, pci, count, last_at, pid,
        process, message, mig.gi as gi, mig.ci as ci, caused_by, link, reset, drain_reset,
        recovery_action, uuid, serial, boot_id, file, line, raw, observed_at, appended_at
    from staging.kernel
    where kind = 'xid'
    qualify row_number() over (
        partition by id, coalesce(event_at, observed_at), host order by kafka_offset
    ) = 1
),
places as (
    select host, pci, gpu, uuid, serial, valid_from
    from facts.inventory_at
)
select
    events.id,
    events.event_at,
    events.host,
    events.code,
    events.pci,
    coalesce(
        events.uuid, places.gpu, events.serial, events.host || '/' || events.pci
    ) as gpu,
    events.count,
    events.last_at,
    events.pid,
    events.process,
    events.message,
    events.gi,
    events.ci,
    events.caused_by,
    events.link,
    events.reset,
    events.drain_reset,
    events.recovery_action,
    coalesce(events.uuid, places.uuid) as uuid,
    coalesce(
        events.serial,
        case when coalesce(events.uuid = places.uuid, true) then places.serial end
    ) as serial,
    events.boot_id,
    events.file,
    events.line,
    events.raw,
    events.observed_at,
    events.appended_at
from events
asof left join places
    on places.host = events.host and places.pci = events.pci
    and places.valid_from <= events.event_at;
