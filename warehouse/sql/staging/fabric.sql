-- Counters of switches and HCAs, one row a port and sweep; a port is (guid, port).
-- Counters are raw values as read: those named in `saturated` stick at their maximum; `reset` means
-- that they began anew since the sweep before.
create view staging.fabric as
select * exclude (undecodable, undecodable_value)
from read_parquet(
    getvariable('root') || '/fabric/*/*.parquet',
    union_by_name = true,
    hive_partitioning = true,
    hive_types = {'day': date}
)
where starts_with(schema, 'fabric/');
