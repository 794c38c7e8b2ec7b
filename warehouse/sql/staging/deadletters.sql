-- Messages that a stage could not decode or step, byte for byte.
-- As stored: a record that was sent twice is here twice, with the same id.
create view staging.deadletters as
select * exclude (undecodable, undecodable_value)
from read_parquet(
    getvariable('files_deadletters'),
    schema = getvariable('schema_deadletters'),
    hive_partitioning = true,
    hive_types = {'day': date}
)
where starts_with(schema, 'deadletter/')
    and (getvariable('known_at') is null or appended_at <= getvariable('known_at'));
