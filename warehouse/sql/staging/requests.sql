-- What people asked the isolation stage for.
-- As stored: a record that was sent twice is here twice, with the same id.
create view staging.requests as
select * exclude (undecodable, undecodable_value)
from read_parquet(
    getvariable('files_requests'),
    schema = getvariable('schema_requests'),
    hive_partitioning = true,
    hive_types = {'day': date}
)
where starts_with(schema, 'request/')
    and (getvariable('known_at') is null or appended_at <= getvariable('known_at'));
