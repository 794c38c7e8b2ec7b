-- Every sending of every command: the same id may stand here several times.
-- As stored: a record that was sent twice is here twice, with the same id.
create view staging.commands as
select * exclude (undecodable, undecodable_value)
from read_parquet(
    getvariable('root') || '/commands/*/*.parquet',
    union_by_name = true,
    hive_partitioning = true,
    hive_types = {'day': date}
)
where starts_with(schema, 'command/');
