-- What each revision of a verdict rests on, one row a record, in the order the records were taken.
create view facts.verdict_evidence as
with
revisions as (
    select
        id, incident, revision, evidence,
        row_number() over (partition by id order by kafka_offset) as sending
    from staging.verdicts
),
numbered as (
    select
        id,
        incident,
        revision,
        unnest(evidence) as ref,
        generate_subscripts(evidence, 1) as position
    from revisions
    where sending = 1
)
select
    incident,
    id as verdict,
    revision,
    position,
    ref.id as evidence,
    ref.source as source,
    ref.at as event_at,
    ref.host as host,
    ref.file as file,
    ref.line as line,
    ref.text as text
from numbered;
