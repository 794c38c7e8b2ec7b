-- Statements of one source about one part; weight 0 to 1.
-- As stored: a record that was sent twice is here twice, with the same id.
create view staging.suspicions as
select * exclude (undecodable, undecodable_value)
from read_parquet(
    getvariable('root') || '/suspicions/*/*.parquet',
    union_by_name = true,
    hive_partitioning = true,
    hive_types = {'day': date}
)
where starts_with(schema, 'suspicion/');
