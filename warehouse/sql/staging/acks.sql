-- Answers of schedulers to commands. took_ms: milliseconds.
-- As stored: a record that was sent twice is here twice, with the same id.
create view staging.acks as
select * exclude (undecodable, undecodable_value)
from read_parquet(
    getvariable('root') || '/acks/*/*.parquet',
    union_by_name = true,
    hive_partitioning = true,
    hive_types = {'day': date}
)
where starts_with(schema, 'ack/');
