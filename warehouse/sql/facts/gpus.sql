-- GPUs by the latest inventory of their node: what ties PCI address, UUID, serial and index together.
create view facts.gpus as
with
latest as (
    select host, observed_at, boot_id, driver, gpus, rack, leaf, pool, nvlink_domain
    from staging.inventory
    qualify row_number() over (partition by host order by observed_at desc, kafka_offset desc) = 1
),
cards as (
    select
        host, observed_at, boot_id, driver, rack, leaf, pool, nvlink_domain, unnest(gpus) as card
    from latest
)
select
    host,
    card.index as index,
    card.pci as pci,
    card.uuid as uuid,
    card.serial as serial,
    card.name as name,
    card.hcas as hcas,
    card.mig as mig,
    driver,
    boot_id,
    rack,
    leaf,
    pool,
    nvlink_domain,
    observed_at
from cards;
