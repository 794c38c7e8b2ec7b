-- GPUs as they were sampled, one row a GPU, source and time. gap_s: seconds since the sample before
-- (null for the first). ok: the GPU answered. A sample that is missing has no row: it shows in gap_s.
-- _c degrees Celsius, _w watts, _mhz megahertz, _mib mebibytes; temperature_margin_c is degrees left
-- to the T.Limit. A count that was not read at this tick is null, never zero.
create view facts.gpu_samples as
with
samples as (
    select
        gpu, source, event_at, host, index, pci, uuid, serial, name, boot_id, driver, status, error,
        ecc_volatile_corrected, ecc_volatile_uncorrected, ecc_aggregate_corrected,
        ecc_aggregate_uncorrected, sram_aggregate_parity, sram_aggregate_secded,
        sram_threshold_exceeded, remapped_correctable, remapped_uncorrectable, remap_pending,
        remap_failure, remap_banks, retired_pages_sbe, retired_pages_dbe, retired_pending,
        recovery_action, temperature_c, temperature_memory_c, temperature_margin_c, power_w,
        utilization_pct, memory_used_mib, clock_sm_mhz, clocks_event_reasons, pcie_replays,
        pcie_width, pcie_generation, nvlinks_active, unread, day
    from staging.gpu
    where index is not null
    qualify row_number() over (
        partition by gpu, uuid, host, source, event_at order by kafka_offset
    ) = 1
)
select
    gpu,
    source,
    event_at,
    epoch(
        event_at - lag(event_at) over (
            partition by gpu, uuid, source order by event_at, host, index
        )
    ) as gap_s,
    status = 'ok' as ok,
    host,
    index,
    pci,
    uuid,
    serial,
    name,
    boot_id,
    driver,
    status,
    error,
    ecc_volatile_corrected,
    ecc_volatile_uncorrected,
    ecc_aggregate_corrected,
    ecc_aggregate_uncorrected,
    sram_aggregate_parity,
    sram_aggregate_secded,
    sram_threshold_exceeded,
    remapped_correctable,
    remapped_uncorrectable,
    remap_pending,
    remap_failure,
    remap_banks,
    retired_pages_sbe,
    retired_pages_dbe,
    retired_pending,
    recovery_action,
    temperature_c,
    temperature_memory_c,
    temperature_margin_c,
    power_w,
    utilization_pct,
    memory_used_mib,
    clock_sm_mhz,
    clocks_event_reasons,
    pcie_replays,
    pcie_width,
    pcie_generation,
    nvlinks_active,
    unread,
    day
from samples;
