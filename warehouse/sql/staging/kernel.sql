-- Kernel-log events (Xid, SXid, NVRM, AER, mlx5, OOM ...), one row an event; a storm is one row with a count.
-- As stored: a record that was sent twice is here twice, with the same id.
create view staging.kernel as
select * exclude (undecodable, undecodable_value)
from read_parquet(
    getvariable('files_kernel'),
    schema = getvariable('schema_kernel'),
    hive_partitioning = true,
    hive_types = {'day': date}
)
where starts_with(schema, 'kernel/')
    and (getvariable('known_at') is null or appended_at <= getvariable('known_at'))
    and (getvariable('since') is null or coalesce(event_at, observed_at) >= getvariable('since'))
    and (getvariable('until') is null or coalesce(event_at, observed_at) <= getvariable('until'));
