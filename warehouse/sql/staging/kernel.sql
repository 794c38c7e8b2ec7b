-- Kernel-log events (Xid, SXid, NVRM, AER, mlx5, OOM ...), one row an event; a storm is one row with a count.
-- As stored: a record that was sent twice is here twice, with the same id.
create view staging.kernel as
select * exclude (undecodable, undecodable_value)
from read_parquet(
    getvariable('root') || '/kernel/*/*.parquet',
    union_by_name = true,
    hive_partitioning = true,
    hive_types = {'day': date}
)
where starts_with(schema, 'kernel/');
