-- Incidents, one row each: the latest revision of its verdict. confidence: 0 to 1.
create view facts.verdicts as
with revisions as (
    select
        id, incident, revision, event_at, decided_at, status, cause, domain, confidence, reason, recovery,
        hard, testimony, evidence, missing, victims, victim_of, explained_by, late, job, host, rack,
        leaf, pool, nvlink_domain,
        row_number() over (
            partition by incident order by revision desc, decided_at desc, kafka_offset desc
        ) as newest
    from staging.verdicts
)
select
    incident,
    id,
    revision,
    event_at,
    decided_at,
    status,
    cause,
    domain.kind as domain_kind,
    coalesce(domain.host, host) as host,
    domain.pci as pci,
    domain.uuid as uuid,
    domain.index as index,
    domain.rank as rank,
    confidence,
    reason,
    recovery,
    hard,
    list_transform(
        list_filter(testimony, lambda one: one.says = 'accuses'), lambda one: one.witness
    ) as accusers,
    len(evidence) as evidence_count,
    missing,
    len(victims) as victim_count,
    victim_of,
    explained_by,
    late,
    job,
    rack,
    leaf,
    pool,
    nvlink_domain
from revisions
where newest = 1;
