-- What happened, from all sources, one row an event: order it by event_at, filter by host and time.
-- Of GPUs and ports only what changed is here, not the samples. Left out: ticks, kernel lines of kind
-- other and peermem's (every teardown prints them), NCCL lines that only say who is who.
-- source: kernel, gpu, nvml, nccl, fabric, context, suspicion, verdict, command, ack, request, state.
-- nvml: what NVML tells by itself between samples, and that it does not answer at all.
-- job is the job that a line, a plan or a verdict names. A switch port has the host at its other end.
create view facts.timeline as
with
events as (
    select
        coalesce(event_at, observed_at) as event_at, 'kernel' as source, host, pci,
        case when code is null then kind else kind || ' ' || code end as what, raw as text,
        null as job, id
    from staging.kernel
    where kind not in ('other', 'peermem')
    union all
    select
        event_at, 'gpu' as source, host, pci,
        case when what = 'status' then became else replace(what, '_', ' ') end as what,
        'GPU ' || index || ': ' || replace(what, '_', ' ') || ' '
            || coalesce(was || ' -> ', '') || became
            || case
                when what = 'status' then coalesce(' (NVML error ' || error || ')', '')
                else ''
            end as text,
        null as job, id || '/' || what as id
    from facts.gpu_changes
    union all
    select
        event_at, 'nvml' as source, host, null as pci, 'silent' as what,
        'NVML does not answer' || coalesce(' (error ' || nvml_error || ')', '')
            || coalesce(': ' || nvml_error_text, '') as text,
        null as job, id
    from staging.gpu
    where index is null and nvml_error is not null
    qualify coalesce(
        event_at - lag(event_at) over (partition by host, source order by event_at)
            > interval 5 minutes,
        true
    )
    union all
    select
        told.at as event_at, 'nvml' as source, host, told.pci as pci, told.kind as what,
        'NVML event ' || told.kind || coalesce(' ' || told.data, '')
            || coalesce(' of GPU ' || told.index, '') as text,
        null as job, id || '/' || told.kind || '/' || told.at as id
    from (
        select id, host, unnest(nvml_events) as told
        from staging.gpu
        where nvml_events is not null
    ) as frames
    union all
    select
        coalesce(event_at, observed_at) as event_at, 'nccl' as source, host, pci, kind as what,
        raw as text, job, id
    from staging.nccl
    where kind not in ('other', 'rank-map', 'comm-init', 'comm-destroy', 'finished', 'setup')
    union all
    select
        event_at, 'fabric' as source, coalesce(host, split_part(peer_name, ' ', 1)) as host,
        null as pci, counter as what,
        coalesce(name, device, guid) || ' port ' || port || ': ' || counter
            || coalesce(' +' || increment, '') || coalesce(' (' || flag || ')', '') as text,
        null as job, guid || '/' || port || '/' || counter || '/' || epoch_ms(event_at) as id
    from facts.link_increments
    where increment > 0 or flag in ('saturated', 'reset', 'wrapped')
    union all
    select
        event_at, 'fabric' as source, host, null as pci, 'port ' || lower(became) as what,
        name || ' port ' || port || ': ' || coalesce(was || ' -> ', '') || became as text,
        null as job, guid || '/' || port || '/state/' || epoch_ms(event_at) as id
    from (
        select
            coalesce(event_at, observed_at) as event_at, guid, port, source,
            coalesce(host, split_part(peer_name, ' ', 1)) as host,
            coalesce(name, device, guid) as name, state as became,
            lag(state) over (
                partition by subnet, guid, port, source
                order by coalesce(event_at, observed_at), kafka_offset
            ) as was
        from staging.fabric
        where port is not null and state is not null
    ) as ports
    where was <> became
    union all
    select
        case when ended then coalesce(until, observed_at) else event_at end as event_at,
        'context' as source, host, pci,
        case when ended then kind || ' ended' else kind end as what,
        concat_ws(', ', reason, 'job ' || job, 'owner ' || owner, 'by ' || by_whom) as text, job,
        id
    from staging.context
    union all
    select
        event_at, 'suspicion' as source, coalesce(host, domain.host) as host, domain.pci as pci,
        says || ' ' || cause as what, reason as text, job, id
    from staging.suspicions
    union all
    select
        decided_at as event_at, 'verdict' as source, coalesce(domain.host, host) as host,
        domain.pci as pci, status || ' ' || cause as what, reason as text, job, id
    from staging.verdicts
    union all
    select
        issued_at as event_at, 'command' as source, domain.host as host, domain.pci as pci,
        concat_ws(' ', action, level, case when dry_run then '(dry run)' end,
                  '(held: ' || held || ')') as what,
        domain_id || ': ' || reason as text, domain.job as job, id
    from staging.commands
    union all
    select
        acks.event_at, 'ack' as source, sent.host, sent.pci, acks.status as what,
        acks.scheduler || ' on ' || acks.domain_id || ': ' || acks.detail as text, null as job,
        acks.id
    from staging.acks as acks
    left join (
        select id, any_value(domain.host) as host, any_value(domain.pci) as pci
        from staging.commands
        group by id
    ) as sent on sent.id = acks.command
    union all
    select
        event_at, 'request' as source, domain.host as host, domain.pci as pci, action as what,
        by_whom || coalesce(': ' || reason, '') as text, domain.job as job, id
    from staging.requests
    union all
    select
        event_at, 'state' as source, domain.host as host, domain.pci as pci,
        case when isolated then 'out of service' else 'in service' end as what,
        domain_id || coalesce(': ' || note, '')
            || case when isolated then ', holds: ' || len(holds) else '' end as text,
        domain.job as job, id
    from staging.states
)
select event_at, source, host, pci, what, text, job, id
from events
qualify row_number() over (
    partition by source, id, pci, host, event_at, what order by text
) = 1;
