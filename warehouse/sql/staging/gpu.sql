-- NVML snapshots, one row a GPU and tick; a tick that NVML could not answer has one row without index.
-- Units are in the names: _c degrees Celsius, _w watts, _mhz megahertz, _mib mebibytes, _us
-- microseconds. ECC counts are NVML totals: volatile since driver load, aggregate over the card's life.
-- gpu: what the card's history follows, its UUID, else its serial number, else its place.
create view staging.gpu as
select
    * exclude (undecodable, undecodable_value),
    coalesce(nullif(uuid, ''), nullif(serial, ''), host || '/' || coalesce(pci, index::varchar)) as gpu
from read_parquet(
    getvariable('files_gpu'),
    schema = getvariable('schema_gpu'),
    hive_partitioning = true,
    hive_types = {'day': date}
)
where starts_with(schema, 'gpu/')
    and (getvariable('known_at') is null or appended_at <= getvariable('known_at'))
    and (getvariable('since') is null or event_at >= getvariable('since'))
    and (getvariable('until') is null or event_at <= getvariable('until'));
