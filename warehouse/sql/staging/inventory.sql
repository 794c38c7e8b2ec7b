-- Identity of nodes at start and on change, one row a record; GPUs and HCAs are lists.
-- As stored: a record that was sent twice is here twice, with the same id.
create view staging.inventory as
select * exclude (undecodable, undecodable_value, event_at)
from read_parquet(
    getvariable('files_inventory'),
    schema = getvariable('schema_inventory'),
    hive_partitioning = true,
    hive_types = {'day': date}
)
where starts_with(schema, 'inventory/')
    and (getvariable('known_at') is null or appended_at <= getvariable('known_at'));
