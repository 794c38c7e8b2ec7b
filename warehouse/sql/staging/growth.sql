-- Daily results of `ringfence ecc-growth --publish`, one row a GPU and counter. Rates are episodes a day
-- of use; *_days are days from event_at.
-- As stored: a record that was sent twice is here twice, with the same id.
create view staging.growth as
select * exclude (undecodable, undecodable_value)
from read_parquet(
    getvariable('files_growth'),
    schema = getvariable('schema_growth'),
    hive_partitioning = true,
    hive_types = {'day': date}
)
where starts_with(schema, 'growth/')
    and (getvariable('known_at') is null or appended_at <= getvariable('known_at'));
