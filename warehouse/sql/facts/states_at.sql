-- What each domain was to be, and when: one row a state and period. As of a time t:
-- `valid_from <= t and (valid_to is null or t < valid_to)`; valid_to is null for the present state.
-- isolated: it has at least one hold. cause, level and by_whom are those of its first hold.
create view facts.states_at as
with
told as (
    select
        id, domain_id, domain, event_at, generation, isolated, level, holds, note,
        lead(event_at) over (partition by domain_id order by event_at, generation, id) as next_at
    from staging.states
    qualify row_number() over (partition by domain_id, event_at, id order by kafka_offset) = 1
)
select
    domain_id,
    domain.kind as domain_kind,
    domain.host as host,
    domain.pci as pci,
    domain.uuid as uuid,
    domain.rack as rack,
    isolated,
    level,
    holds[1].cause as cause,
    holds[1].by as by_whom,
    holds,
    note,
    generation,
    event_at as valid_from,
    next_at as valid_to
from told;
