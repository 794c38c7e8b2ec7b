-- What happened, from all sources, one row an event: order it by `event_at` and filter by host or time.
-- A GPU that is not ok stands here once a status and boot, not once a sample. Left out: ticks, GPUs
-- that are ok, kernel lines of kind other and peermem's (every teardown prints them), and NCCL lines that only say who is who.
create view facts.timeline as
with
events as (
    select
        coalesce(event_at, observed_at) as event_at, host, pci, 'kernel' as source,
        case when code is null then kind else kind || ' ' || code end as what, raw as text, id
    from staging.kernel
    where kind not in ('other', 'peermem')
    union all
    select
        min(event_at) as event_at, any_value(host) as host, any_value(pci) as pci, 'gpu' as source,
        status as what,
        'GPU ' || any_value(index) || coalesce(' (NVML error ' || any_value(error) || ')', '')
            as text,
        arg_min(id, event_at) as id
    from staging.gpu
    where status <> 'ok'
    group by gpu, boot_id, status
    union all
    select
        coalesce(event_at, observed_at) as event_at, host, pci, 'nccl' as source, kind as what, raw as text, id
    from staging.nccl
    where kind not in ('other', 'rank-map', 'comm-init', 'comm-destroy', 'finished')
    union all
    select event_at, host, pci, 'context' as source, kind as what, coalesce(reason, '') as text, id
    from staging.context
    union all
    select
        event_at, coalesce(host, domain.host) as host, domain.pci as pci, 'suspicion' as source,
        says || ' ' || cause as what, reason as text, id
    from staging.suspicions
    union all
    select
        decided_at as event_at, coalesce(host, domain.host) as host, domain.pci as pci,
        'verdict' as source, status || ' ' || cause as what, reason as text, id
    from staging.verdicts
    union all
    select
        issued_at as event_at, domain.host as host, domain.pci as pci, 'command' as source,
        action || ' ' || level as what, domain_id || ': ' || reason as text, id
    from staging.commands
    union all
    select
        acks.event_at, sent.host, sent.pci, 'ack' as source, acks.status as what,
        acks.scheduler || ' on ' || acks.domain_id || ': ' || acks.detail as text, acks.id
    from staging.acks as acks
    left join (
        select id, any_value(domain.host) as host, any_value(domain.pci) as pci
        from staging.commands
        group by id
    ) as sent on sent.id = acks.command
)
select event_at, source, host, pci, what, text, id
from events
qualify row_number() over (partition by source, id, pci order by event_at) = 1;
