-- Attempts of jobs, one row each: from the scheduler's allocations where there are any, else from
-- the logs of the job. hosts: those that it ran on. ended_at is null while it is not known to have
-- ended; with source `logs` the times are those of the first and last line.
create view facts.jobs as
with
allocations as (
    select
        job, attempt, host, hosts, image, owner, event_at,
        coalesce(until, case when ended then observed_at end) as ended_at
    from staging.context
    where kind = 'allocation' and job is not null
),
allocated as (
    select
        job, attempt,
        min(event_at) as started_at,
        -- Open while one of its hosts is.
        case
            when count(distinct host) = count(distinct host) filter (where ended_at is not null)
                then max(ended_at)
        end as ended_at,
        list_sort(list_distinct(flatten(list(list_append(hosts, host))))) as hosts,
        max(image) as image,
        max(owner) as owner,
        'scheduler' as source
    from allocations
    group by job, attempt
),
logged as (
    select
        job, attempt,
        min(coalesce(event_at, observed_at)) as started_at,
        max(coalesce(event_at, observed_at)) as last_at,
        list_sort(list_distinct(list(host) filter (where host is not null))) as hosts,
        max(comm_size) as ranks
    from staging.nccl
    group by job, attempt
)
select
    coalesce(allocated.job, logged.job) as job,
    coalesce(allocated.attempt, logged.attempt) as attempt,
    coalesce(allocated.started_at, logged.started_at) as started_at,
    case when allocated.job is null then logged.last_at else allocated.ended_at end as ended_at,
    coalesce(allocated.hosts, logged.hosts) as hosts,
    logged.ranks,
    allocated.image,
    allocated.owner,
    coalesce(allocated.source, 'logs') as source
from allocated
full join logged on logged.job = allocated.job and logged.attempt = allocated.attempt;
