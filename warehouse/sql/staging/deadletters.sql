-- Messages that a stage could not decode or step, byte for byte.
-- As stored: a record that was sent twice is here twice, with the same id.
create view staging.deadletters as
select * exclude (undecodable, undecodable_value)
from read_parquet(
    getvariable('root') || '/deadletters/*/*.parquet',
    union_by_name = true,
    hive_partitioning = true,
    hive_types = {'day': date}
)
where starts_with(schema, 'deadletter/');
