-- Every sending of every command: the same id may stand here several times.
-- As stored: a record that was sent twice is here twice, with the same id.
create view staging.commands as
select * exclude (undecodable, undecodable_value)
from read_parquet(
    getvariable('files_commands'),
    schema = getvariable('schema_commands'),
    hive_partitioning = true,
    hive_types = {'day': date}
)
where starts_with(schema, 'command/')
    and (getvariable('known_at') is null or appended_at <= getvariable('known_at'));
