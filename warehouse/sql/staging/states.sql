-- Desired state of domains with their holds, every change.
-- As stored: a record that was sent twice is here twice, with the same id.
create view staging.states as
select * exclude (undecodable, undecodable_value)
from read_parquet(
    getvariable('files_states'),
    schema = getvariable('schema_states'),
    hive_partitioning = true,
    hive_types = {'day': date}
)
where starts_with(schema, 'state/')
    and (getvariable('known_at') is null or appended_at <= getvariable('known_at'));
