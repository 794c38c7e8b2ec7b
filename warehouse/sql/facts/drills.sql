-- Fault drills, one row each: its last record. *_s: seconds from the injection until it was seen.
-- outcome: running (it was killed, or goes on), passed, missed (too late), differed, aborted.
-- is_met: the job trained again within objective_s and all was as expected; null where no training
-- was watched.
create view facts.drills as
with sendings as (
    select
        id, drill, event_at, host, pool, by_whom, mode, outcome, expected, objective_s, injected_at,
        verdict, incident, status, cause, domain_id, decided_at, detected_s, command, level,
        issued_at, commanded_s, ack, acked_at, acked_s, out_s, recovered_s, undone_s, release,
        release_asked_s, release_acked_at, released_s, in_service_s, differed,
        row_number() over (
            partition by id
            order by outcome = 'running', observed_at desc, appended_at desc, kafka_offset desc
        ) as newest
    from staging.drills
)
select
    id, drill, event_at, host, pool, by_whom, mode, outcome, expected, objective_s, injected_at,
    verdict, incident, status, cause, domain_id, decided_at, detected_s, command, level, issued_at,
    commanded_s, ack, acked_at, acked_s, out_s, recovered_s, undone_s, release, release_asked_s,
    release_acked_at, released_s, in_service_s, differed,
    case
        when outcome in ('missed', 'differed') then false
        when outcome = 'passed' and recovered_s is not null then recovered_s <= objective_s
    end as is_met
from sendings
where newest = 1;
