-- What people asked the isolation stage for.
-- As stored: a record that was sent twice is here twice, with the same id.
create view staging.requests as
select * exclude (undecodable, undecodable_value)
from read_parquet(
    getvariable('root') || '/requests/*/*.parquet',
    union_by_name = true,
    hive_partitioning = true,
    hive_types = {'day': date}
)
where starts_with(schema, 'request/');
