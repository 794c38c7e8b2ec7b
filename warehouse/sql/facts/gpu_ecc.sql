-- ECC and row-remap counts of each GPU where they changed, with the growth since the change before
-- (null at first sight; negative where a volatile count began anew with the driver).
-- Grouping by the counts themselves leaves few rows to sort: most samples change nothing.
create view facts.gpu_ecc as
with
counts as (
    select
        gpu,
        any_value(host) as host,
        any_value(pci) as pci,
        boot_id,
        ecc_volatile_corrected,
        ecc_volatile_uncorrected,
        ecc_aggregate_corrected,
        ecc_aggregate_uncorrected,
        remapped_correctable,
        remapped_uncorrectable,
        remap_pending,
        remap_failure,
        min(event_at) as event_at,
        max(event_at) as last_at
    from staging.gpu
    where index is not null and status = 'ok'
    group by
        gpu, boot_id, ecc_volatile_corrected, ecc_volatile_uncorrected, ecc_aggregate_corrected,
        ecc_aggregate_uncorrected, remapped_correctable, remapped_uncorrectable, remap_pending,
        remap_failure
)
select
    gpu,
    host,
    pci,
    boot_id,
    event_at,
    last_at,
    ecc_volatile_corrected,
    ecc_volatile_uncorrected,
    ecc_aggregate_corrected,
    ecc_aggregate_uncorrected,
    remapped_correctable,
    remapped_uncorrectable,
    remap_pending,
    remap_failure,
    ecc_volatile_uncorrected - lag(ecc_volatile_uncorrected) over history
        as ecc_volatile_uncorrected_growth,
    ecc_aggregate_corrected - lag(ecc_aggregate_corrected) over history
        as ecc_aggregate_corrected_growth,
    ecc_aggregate_uncorrected - lag(ecc_aggregate_uncorrected) over history
        as ecc_aggregate_uncorrected_growth
from counts
window history as (partition by gpu order by event_at);
