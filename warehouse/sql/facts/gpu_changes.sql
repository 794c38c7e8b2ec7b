-- What changed on a GPU from one sample to the next: its status, its memory-error counters, its remap
-- and retirement state, what the driver demands, its bus and links; one row a change.
-- A value that a sample lacks is not a change: it is held against the last one that was read.
-- what: the field. was and became: the values as text; was is null where the GPU was seen first, and
-- then the row is here only if the value is a bad one.
create view facts.gpu_changes as
with
samples as (
    select
        id, gpu, source, event_at, host, index, pci, uuid,
        status as status,
        error,
        coalesce(unread['status'], unread['reading']) as unread,
        boot_id as boot,
        driver as driver,
        ecc_volatile_corrected, ecc_volatile_uncorrected, ecc_aggregate_corrected,
        ecc_aggregate_uncorrected, sram_threshold_exceeded, remapped_correctable,
        remapped_uncorrectable, remap_pending, remap_failure, retired_pages, retired_pending,
        recovery_action, pcie_width, nvlinks_active, mig_enabled
    from staging.gpu
    where index is not null
    qualify row_number() over (
        partition by gpu, uuid, host, pci, source, event_at order by kafka_offset
    ) = 1
),
texts as (
    select
        id, gpu, source, event_at, host, index, pci, uuid, error, unread,
        status,
        boot,
        driver,
        ecc_volatile_corrected::varchar as ecc_volatile_corrected,
        ecc_volatile_uncorrected::varchar as ecc_volatile_uncorrected,
        ecc_aggregate_corrected::varchar as ecc_aggregate_corrected,
        ecc_aggregate_uncorrected::varchar as ecc_aggregate_uncorrected,
        sram_threshold_exceeded::varchar as sram_threshold_exceeded,
        remapped_correctable::varchar as remapped_correctable,
        remapped_uncorrectable::varchar as remapped_uncorrectable,
        remap_pending::varchar as remap_pending,
        remap_failure::varchar as remap_failure,
        retired_pages::varchar as retired_pages,
        retired_pending::varchar as retired_pending,
        recovery_action::varchar as recovery_action,
        pcie_width::varchar as pcie_width,
        nvlinks_active::varchar as nvlinks_active,
        mig_enabled::varchar as mig_enabled
    from samples
),
readings as (
    unpivot texts on
        status, boot, driver, ecc_volatile_corrected, ecc_volatile_uncorrected,
        ecc_aggregate_corrected, ecc_aggregate_uncorrected, sram_threshold_exceeded,
        remapped_correctable, remapped_uncorrectable, remap_pending, remap_failure, retired_pages,
        retired_pending, recovery_action, pcie_width, nvlinks_active, mig_enabled
    into name what value became
),
paired as (
    select
        id, gpu, source, event_at, host, index, pci, uuid, error, unread, what, became,
        lag(became) over (
            partition by gpu, uuid, host, pci, source, what order by event_at
        ) as was
    from readings
)
select
    event_at,
    gpu,
    source,
    host,
    index,
    pci,
    uuid,
    what,
    was,
    became,
    error,
    unread,
    id
from paired
where was <> became
    or (
        was is null
        and (
            (what = 'status' and became <> 'ok')
            or (
                what in ('remap_pending', 'remap_failure', 'retired_pending',
                         'sram_threshold_exceeded')
                and became = 'true'
            )
            or (what = 'recovery_action' and became <> '0')
        )
    );
