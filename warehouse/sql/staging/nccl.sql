-- Lines of NCCL, PyTorch and torchrun logs. timeout_ms, elapsed_ms: milliseconds; rank is global.
-- As stored: a record that was sent twice is here twice, with the same id.
create view staging.nccl as
select * exclude (undecodable, undecodable_value)
from read_parquet(
    getvariable('root') || '/nccl/*/*.parquet',
    union_by_name = true,
    hive_partitioning = true,
    hive_types = {'day': date}
)
where starts_with(schema, 'nccl/');
