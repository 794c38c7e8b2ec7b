-- Fault drills: a record at the start of each and one at its end. *_s: seconds from the injection.
-- As stored: a record that was sent twice is here twice, with the same id.
create view staging.drills as
select * exclude (undecodable, undecodable_value)
from read_parquet(
    getvariable('files_drills'),
    schema = getvariable('schema_drills'),
    hive_partitioning = true,
    hive_types = {'day': date}
)
where starts_with(schema, 'drill/')
    and (getvariable('known_at') is null or appended_at <= getvariable('known_at'));
