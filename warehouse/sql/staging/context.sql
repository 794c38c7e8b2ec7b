-- What was planned on a host or GPU, and who uses it, from `event_at` until `until`.
-- As stored: a record that was sent twice is here twice, with the same id.
create view staging.context as
select * exclude (undecodable, undecodable_value)
from read_parquet(
    getvariable('files_context'),
    schema = getvariable('schema_context'),
    hive_partitioning = true,
    hive_types = {'day': date}
)
where starts_with(schema, 'context/')
    and (getvariable('known_at') is null or appended_at <= getvariable('known_at'));
