-- What was planned on a host or GPU, and who uses it, from `event_at` until `until`.
-- As stored: a record that was sent twice is here twice, with the same id.
create view staging.context as
select * exclude (undecodable, undecodable_value)
from read_parquet(
    getvariable('root') || '/context/*/*.parquet',
    union_by_name = true,
    hive_partitioning = true,
    hive_types = {'day': date}
)
where starts_with(schema, 'context/');
