-- By how much each memory-error counter of each GPU grew, and over which interval: one row a change,
-- and one a day (or less) for the time between without any. The rows of one counter follow each
-- other without a hole: (since, event_at].
-- An interval lies between two valid readings: where a count could not be read (N/A, GPU lost), the
-- next valid reading spans the gap. increment: null where nobody can know it.
-- flag: first (no reading before), reset (a volatile count began anew: another boot or driver, or it
-- fell; the increment is a lower bound), cleared_or_swapped (a count over the card's life fell),
-- replaced (a correctable row remap gave way to an uncorrectable one: its count may fall), open (since
-- the last reading the GPU was sampled, but this count was not read: nobody knows yet).
-- wall_h: hours of the interval. observed_h: of them, those with samples; a sample speaks for the time
-- since the one before, up to three usual gaps. busy_h: of those, hours with a utilisation above 5 %
-- (null where no utilisation is known): the exposure. coverage: observed_h / wall_h.
-- Add up one source of a GPU, never several: each has read the same counters.
create view facts.ecc_increments as
with
gaps as (
    select gpu, source, greatest(1, round(gap_s)) as gap_s, count(*) as often
    from facts.gpu_samples
    where gap_s is not null and ok
    group by gpu, source, greatest(1, round(gap_s))
),
usual as (
    select gpu, source, arg_max(gap_s, often * 1e6 - gap_s) as gap_s
    from gaps
    group by gpu, source
),
timed as (
    select
        samples.*,
        coalesce(boot_id, '') || '/' || coalesce(driver, '') as epoch,
        case
            when not ok or samples.gap_s is null then 0
            when samples.gap_s <= 3 * usual.gap_s then samples.gap_s
            else usual.gap_s
        end as seen_s
    from facts.gpu_samples as samples
    left join usual on usual.gpu = samples.gpu and usual.source = samples.source
),
clocked as (
    select
        gpu, source, event_at, host, pci, uuid, serial, boot_id, driver, epoch,
        ecc_volatile_corrected, ecc_volatile_uncorrected, ecc_aggregate_corrected,
        ecc_aggregate_uncorrected, sram_aggregate_parity, sram_aggregate_secded,
        remapped_correctable, remapped_uncorrectable, retired_pages_sbe, retired_pages_dbe,
        sum(seen_s) over history as observed_s,
        sum(case when utilization_pct > 5 then seen_s else 0 end) over history as busy_s,
        count(utilization_pct) over history as utilizations,
        count(*) over history as samples
    from timed
    window history as (
        partition by gpu, source order by event_at, host rows unbounded preceding
    )
),
readings as (
    unpivot clocked on
        ecc_volatile_corrected, ecc_volatile_uncorrected, ecc_aggregate_corrected,
        ecc_aggregate_uncorrected, sram_aggregate_parity, sram_aggregate_secded,
        remapped_correctable, remapped_uncorrectable, retired_pages_sbe, retired_pages_dbe
    into name counter value value
),
-- Behind the last reading of a counter the GPU may have been sampled on: lost, or not telling.
ends as (
    select
        gpu, source, max(event_at) as event_at, arg_max(host, event_at) as host,
        arg_max(pci, event_at) as pci, arg_max(uuid, event_at) as uuid,
        arg_max(serial, event_at) as serial, arg_max(boot_id, event_at) as boot_id,
        arg_max(driver, event_at) as driver, max(observed_s) as observed_s,
        max(busy_s) as busy_s, max(utilizations) as utilizations, max(samples) as samples
    from clocked
    group by gpu, source
),
last_read as (
    select gpu, source, counter, max(event_at) as event_at
    from readings
    group by gpu, source, counter
),
told as (
    select
        gpu, source, counter, event_at, host, pci, uuid, serial, boot_id, driver, epoch, value,
        observed_s, busy_s, utilizations, samples
    from readings
    union all
    select
        ends.gpu, ends.source, last_read.counter, ends.event_at, ends.host, ends.pci, ends.uuid,
        ends.serial, ends.boot_id, ends.driver, null, null, ends.observed_s, ends.busy_s,
        ends.utilizations, ends.samples
    from ends
    inner join last_read
        on last_read.gpu = ends.gpu and last_read.source = ends.source
        and last_read.event_at < ends.event_at
),
paired as (
    select
        gpu, source, counter, event_at, host, pci, uuid, serial, boot_id, driver, value,
        lag(value) over history as previous,
        lag(event_at) over history as since,
        lag(epoch) over history <> epoch as other_epoch,
        observed_s - lag(observed_s) over history as observed_s,
        busy_s - lag(busy_s) over history as busy_s,
        utilizations - lag(utilizations) over history as utilizations,
        samples - lag(samples) over history as samples
    from told
    window history as (partition by gpu, source, counter order by event_at, host)
),
judged as (
    select
        paired.*,
        case
            when value is null then 'open'
            when previous is null then 'first'
            when counter like '%volatile%' and (other_epoch or value < previous) then 'reset'
            when value < previous and counter = 'remapped_correctable' then 'replaced'
            when value < previous then 'cleared_or_swapped'
        end as flag
    from paired
),
counted as (
    select
        judged.*,
        case
            when flag in ('first', 'cleared_or_swapped', 'open') then null
            when flag = 'reset' then value
            when flag = 'replaced' then 0
            else value - previous
        end as increment
    from judged
),
-- What changed nothing is one row a day, between the rows that did.
grouped as (
    select
        counted.*,
        flag is not null or increment > 0 as stands_alone,
        count(*) filter (where flag is not null or increment > 0) over (
            partition by gpu, source, counter order by event_at, host rows unbounded preceding
        ) as changes
    from counted
),
intervals as (
    select
        gpu, source, counter,
        any_value(flag) as flag,
        min(since) as since,
        max(event_at) as event_at,
        arg_max(host, event_at) as host,
        arg_max(pci, event_at) as pci,
        any_value(uuid) as uuid,
        any_value(serial) as serial,
        arg_max(boot_id, event_at) as boot_id,
        arg_max(driver, event_at) as driver,
        arg_min(previous, event_at) as previous,
        arg_max(value, event_at) as value,
        any_value(increment) as increment,
        sum(observed_s) / 3600 as observed_h,
        case when sum(utilizations) > 0 then sum(busy_s) / 3600 end as busy_h,
        sum(samples) as samples
    from grouped
    group by
        gpu, source, counter, changes, stands_alone,
        case when stands_alone then null else date_trunc('day', event_at) end
)
select
    gpu,
    source,
    counter,
    since,
    event_at,
    increment,
    flag,
    previous,
    value,
    epoch(event_at - since) / 3600 as wall_h,
    observed_h,
    busy_h,
    case
        when event_at > since
            then least(1, observed_h * 3600 / epoch(event_at - since))
    end as coverage,
    samples,
    host,
    pci,
    uuid,
    serial,
    boot_id,
    driver
from intervals;
