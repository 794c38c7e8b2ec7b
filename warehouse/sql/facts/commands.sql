-- Commands, one row an id as it was sent last, with the latest answer of a scheduler.
-- confidence: 0 to 1. sent: how often it was sent (a command is sent again until its ack is read).
-- ack: done, failed, expired, skipped, or null while no scheduler has answered.
create view facts.commands as
with
sendings as (
    select
        id, action, domain_id, domain, level, cause, reason, incident, generation, issued_at,
        verdict, confidence, recovery, act_by, dry_run, held, by_whom, pool, evidence, appended_at,
        count(*) over (partition by id) as sent,
        row_number() over (partition by id order by appended_at desc, kafka_offset desc) as newest
    from staging.commands
),
answers as (
    select
        command, status, scheduler, event_at, detail, exit_code,
        row_number() over (partition by command order by event_at desc, appended_at desc) as newest
    from staging.acks
)
select
    sendings.id,
    sendings.action,
    sendings.level,
    sendings.domain_id,
    sendings.domain.kind as domain_kind,
    sendings.domain.host as host,
    sendings.domain.pci as pci,
    sendings.domain.uuid as uuid,
    sendings.cause,
    sendings.confidence,
    sendings.recovery,
    sendings.reason,
    sendings.dry_run,
    sendings.held,
    sendings.issued_at,
    sendings.act_by,
    sendings.by_whom,
    sendings.pool,
    sendings.incident,
    sendings.verdict,
    sendings.generation,
    sendings.evidence,
    sendings.sent,
    answers.status as ack,
    answers.scheduler as ack_scheduler,
    answers.event_at as acked_at,
    answers.detail as ack_detail,
    answers.exit_code as ack_exit_code
from sendings
left join answers on answers.command = sendings.id and answers.newest = 1
where sendings.newest = 1;
