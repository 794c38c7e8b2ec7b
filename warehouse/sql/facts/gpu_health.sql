-- GPUs as they were seen last, one row each, with what is wrong in `alerts`.
-- temperature_c is absolute; temperature_margin_c is degrees left to the T.Limit: never mix them.
create view facts.gpu_health as
with
last_seen as (
    select gpu, max(event_at) as event_at
    from staging.gpu
    where index is not null
    group by gpu
),
latest as (
    select
        snapshot.gpu, snapshot.host, snapshot.index, snapshot.pci, snapshot.uuid, snapshot.serial,
        snapshot.name, snapshot.event_at, snapshot.status, snapshot.error,
        snapshot.ecc_volatile_uncorrected, snapshot.ecc_aggregate_uncorrected,
        snapshot.ecc_volatile_corrected, snapshot.ecc_aggregate_corrected,
        snapshot.sram_threshold_exceeded, snapshot.remapped_correctable,
        snapshot.remapped_uncorrectable, snapshot.remap_pending, snapshot.remap_failure,
        snapshot.retired_pages, snapshot.retired_pending, snapshot.recovery_action,
        snapshot.temperature_c, snapshot.temperature_memory_c, snapshot.temperature_margin_c,
        snapshot.power_w, snapshot.utilization_pct, snapshot.clock_sm_mhz,
        snapshot.pcie_width, snapshot.pcie_width_max, snapshot.pcie_generation,
        snapshot.pcie_generation_max
    from staging.gpu as snapshot
    inner join last_seen on last_seen.gpu = snapshot.gpu and last_seen.event_at = snapshot.event_at
    where snapshot.index is not null
    qualify row_number() over (partition by snapshot.gpu order by snapshot.kafka_offset desc) = 1
)
select
    gpu,
    host,
    index,
    pci,
    uuid,
    serial,
    name,
    event_at,
    status,
    error,
    list_filter(
        [
            case when status <> 'ok' then status end,
            case when remap_failure then 'remap failure' end,
            case when remap_pending then 'remap pending' end,
            case when retired_pending then 'page retirement pending' end,
            case when sram_threshold_exceeded then 'SRAM threshold exceeded' end,
            case when ecc_volatile_uncorrected > 0 then 'uncorrectable ECC' end,
            case when recovery_action > 0 then 'recovery action ' || recovery_action end
        ],
        lambda alert: alert is not null
    ) as alerts,
    ecc_volatile_uncorrected,
    ecc_aggregate_uncorrected,
    ecc_volatile_corrected,
    ecc_aggregate_corrected,
    sram_threshold_exceeded,
    remapped_correctable,
    remapped_uncorrectable,
    remap_pending,
    remap_failure,
    retired_pages,
    retired_pending,
    recovery_action,
    temperature_c,
    temperature_memory_c,
    temperature_margin_c,
    power_w,
    utilization_pct,
    clock_sm_mhz,
    pcie_width,
    pcie_width_max,
    pcie_generation,
    pcie_generation_max
from latest;
