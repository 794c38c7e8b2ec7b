-- Every revision of every verdict; confidence 0 to 1.
-- As stored: a record that was sent twice is here twice, with the same id.
create view staging.verdicts as
select * exclude (undecodable, undecodable_value)
from read_parquet(
    getvariable('files_verdicts'),
    schema = getvariable('schema_verdicts'),
    hive_partitioning = true,
    hive_types = {'day': date}
)
where starts_with(schema, 'verdict/')
    and (getvariable('known_at') is null or appended_at <= getvariable('known_at'));
