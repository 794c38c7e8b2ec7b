-- Statements of one source about one part; weight 0 to 1.
-- As stored: a record that was sent twice is here twice, with the same id.
create view staging.suspicions as
select * exclude (undecodable, undecodable_value)
from read_parquet(
    getvariable('files_suspicions'),
    schema = getvariable('schema_suspicions'),
    hive_partitioning = true,
    hive_types = {'day': date}
)
where starts_with(schema, 'suspicion/')
    and (getvariable('known_at') is null or appended_at <= getvariable('known_at'));
