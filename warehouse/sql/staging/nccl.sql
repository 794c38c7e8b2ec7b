-- Lines of NCCL, PyTorch and torchrun logs. timeout_ms, elapsed_ms: milliseconds; rank is global.
-- As stored: a record that was sent twice is here twice, with the same id.
create view staging.nccl as
select * exclude (undecodable, undecodable_value)
from read_parquet(
    getvariable('files_nccl'),
    schema = getvariable('schema_nccl'),
    hive_partitioning = true,
    hive_types = {'day': date}
)
where starts_with(schema, 'nccl/')
    and (getvariable('known_at') is null or appended_at <= getvariable('known_at'))
    and (getvariable('since') is null or coalesce(event_at, observed_at) >= getvariable('since'))
    and (getvariable('until') is null or coalesce(event_at, observed_at) <= getvariable('until'));
