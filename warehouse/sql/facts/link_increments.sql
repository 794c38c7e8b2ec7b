-- By how much each error counter of each port grew, and over which interval: one row a change, and
-- one a day (or less) for the time between without any: (since, event_at]. A port is (guid, port).
-- Counters of traffic and port_xmit_wait are left out: they grow in every sweep.
-- increment: null where nobody can know it. flag: first (no reading before), saturated (the counter
-- stands at its maximum), reset (it was cleared, or its device started again; the increment is a lower
-- bound), wrapped (a driver's own 32-bit counter began anew at its end; the mandatory ones never do).
-- wall_h: hours of the interval. observed_h: of them, those in which its device was swept: a sweep speaks
-- for the time since the one before, up to three usual gaps. coverage: observed_h / wall_h.
-- Add up one source of a port, never several.
create view facts.link_increments as
with
ports as (
    select
        subnet, guid, source, coalesce(event_at, observed_at) as event_at, sweep, name, kind, host,
        device, missing, port, state, counters, saturated, reset, peer_guid, peer_port, peer_name
    from staging.fabric
    qualify row_number() over (
        partition by subnet, guid, source, coalesce(event_at, observed_at), id, port
        order by kafka_offset
    ) = 1
),
sweeps as (
    select
        subnet, guid, source, event_at, bool_or(missing) as missing,
        epoch(
            event_at
            - lag(event_at) over (partition by subnet, guid, source order by event_at)
        ) as gap_s
    from ports
    group by subnet, guid, source, event_at
),
gaps as (
    select subnet, guid, source, greatest(1, round(gap_s)) as gap_s, count(*) as often
    from sweeps
    where gap_s is not null
    group by subnet, guid, source, greatest(1, round(gap_s))
),
usual as (
    select subnet, guid, source, arg_max(gap_s, often * 1e6 - gap_s) as gap_s
    from gaps
    group by subnet, guid, source
),
clocked as (
    select
        sweeps.subnet, sweeps.guid, sweeps.source, sweeps.event_at,
        sum(
            case
                when sweeps.missing or sweeps.gap_s is null then 0
                when sweeps.gap_s <= 3 * usual.gap_s then sweeps.gap_s
                else usual.gap_s
            end
        ) over history as observed_s,
        count(*) over history as sweeps
    from sweeps
    left join usual
        on usual.subnet = sweeps.subnet and usual.guid = sweeps.guid
        and usual.source = sweeps.source
    window history as (
        partition by sweeps.subnet, sweeps.guid, sweeps.source
        order by sweeps.event_at rows unbounded preceding
    )
),
named as (
    select
        subnet, guid, source, event_at, name, kind, host, device, port, state, saturated, reset,
        peer_guid, peer_port, peer_name, unnest(map_entries(counters)) as entry
    from ports
    where port is not null
),
readings as (
    select
        named.subnet, named.guid, named.source, named.event_at, name, kind, host, device, port,
        state, reset, peer_guid, peer_port, peer_name,
        entry.key as counter,
        entry.value::hugeint as value,
        list_contains(saturated, entry.key) as at_most,
        clocked.observed_s,
        clocked.sweeps
    from named
    inner join clocked
        on clocked.subnet = named.subnet and clocked.guid = named.guid
        and clocked.source = named.source and clocked.event_at = named.event_at
    where not regexp_matches(entry.key, '_(data|packets|wait)$')
),
paired as (
    select
        readings.*,
        lag(value) over history as previous,
        lag(coalesce(at_most, false)) over history as previous_at_most,
        lag(event_at) over history as since,
        observed_s - lag(observed_s) over history as seen_s,
        sweeps - lag(sweeps) over history as swept
    from readings
    window history as (partition by subnet, guid, port, source, counter order by event_at)
),
fallen as (
    select
        paired.*,
        value < previous and previous between 3221225472 and 4294967295 and value < 1073741824
            -- Of the mandatory counters none is wider than this and wraps.
            and not regexp_matches(counter, '^(port_|symbol_|link_|local_|excessive_|vl15_|qp1_)')
            as at_end
    from paired
),
judged as (
    select
        fallen.*,
        case
            when previous is null then 'first'
            when at_most then 'saturated'
            when at_end and not bool_or(value < previous and not at_end) over same_sweep
                then 'wrapped'
            when value < previous then 'reset'
            -- Something else of the port fell: this one was cleared, too, and has passed its old value.
            when reset and bool_or(value < previous and not at_end) over same_sweep then 'reset'
        end as flag
    from fallen
    window same_sweep as (partition by subnet, guid, port, source, event_at)
),
counted as (
    select
        judged.*,
        case
            when flag in ('first', 'saturated') then null
            when flag = 'wrapped' then value + 4294967296 - previous
            when value < previous then value
            else value - previous
        end as increment
    from judged
),
grouped as (
    select
        counted.*,
        flag is not null or increment > 0 as stands_alone,
        count(*) filter (where flag is not null or increment > 0) over (
            partition by subnet, guid, port, source, counter
            order by event_at rows unbounded preceding
        ) as changes
    from counted
),
intervals as (
    select
        subnet, guid, port, source, counter,
        any_value(flag) as flag,
        min(since) as since,
        max(event_at) as event_at,
        arg_max(name, event_at) as name,
        any_value(kind) as kind,
        arg_max(host, event_at) as host,
        arg_max(device, event_at) as device,
        arg_max(state, event_at) as state,
        arg_max(peer_guid, event_at) as peer_guid,
        arg_max(peer_port, event_at) as peer_port,
        arg_max(peer_name, event_at) as peer_name,
        arg_min(previous, event_at)::ubigint as previous,
        arg_max(value, event_at)::ubigint as value,
        any_value(increment)::ubigint as increment,
        sum(seen_s) / 3600 as observed_h,
        sum(swept) as sweeps
    from grouped
    group by
        subnet, guid, port, source, counter, changes, stands_alone,
        case when stands_alone then null else date_trunc('day', event_at) end
)
select
    subnet,
    guid,
    port,
    counter,
    source,
    since,
    event_at,
    increment,
    flag,
    previous,
    value,
    epoch(event_at - since) / 3600 as wall_h,
    observed_h,
    case
        when event_at > since
            then least(1, observed_h * 3600 / epoch(event_at - since))
    end as coverage,
    sweeps,
    name,
    kind,
    host,
    device,
    state,
    peer_guid,
    peer_port,
    peer_name
from intervals;
