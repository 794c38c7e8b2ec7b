-- Answers of schedulers to commands. took_ms: milliseconds.
-- As stored: a record that was sent twice is here twice, with the same id.
create view staging.acks as
select * exclude (undecodable, undecodable_value)
from read_parquet(
    getvariable('files_acks'),
    schema = getvariable('schema_acks'),
    hive_partitioning = true,
    hive_types = {'day': date}
)
where starts_with(schema, 'ack/')
    and (getvariable('known_at') is null or appended_at <= getvariable('known_at'));
