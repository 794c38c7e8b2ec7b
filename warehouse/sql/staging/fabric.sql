-- Counters of switches and HCAs, one row a port and sweep; a port is (guid, port).
-- Counters are raw values as read: those named in `saturated` stick at their maximum; `reset` means
-- that they began anew since the sweep before.
create view staging.fabric as
select * exclude (undecodable, undecodable_value)
from read_parquet(
    getvariable('files_fabric'),
    schema = getvariable('schema_fabric'),
    hive_partitioning = true,
    hive_types = {'day': date}
)
where starts_with(schema, 'fabric/')
    and (getvariable('known_at') is null or appended_at <= getvariable('known_at'))
    and (getvariable('since') is null or coalesce(event_at, observed_at) >= getvariable('since'))
    and (getvariable('until') is null or coalesce(event_at, observed_at) <= getvariable('until'));
