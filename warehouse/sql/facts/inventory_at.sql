-- Which GPU stood where, and when: one row a card, place and period without change, by the
-- inventories of its node. As of a time t: `valid_from <= t and (valid_to is null or t < valid_to)`.
-- valid_to is null while it still stands there. A card that moves has a row for each place.
-- driver and boot_id are those at the beginning of the period; serial follows the card, index does not.
create view facts.inventory_at as
with
told as (
    select
        id, host, observed_at, boot_id, driver, gpus, rack, leaf, pool, nvlink_domain,
        lead(observed_at) over (partition by host order by observed_at, id) as next_at
    from staging.inventory
    qualify row_number() over (partition by host, observed_at, id order by kafka_offset) = 1
),
cards as (
    select
        host, observed_at, next_at, boot_id, driver, rack, leaf, pool, nvlink_domain,
        unnest(gpus) as card
    from told
),
placed as (
    select
        coalesce(nullif(card.uuid, ''), nullif(card.serial, ''), host || '/' || card.pci) as gpu,
        host, card.pci as pci, card.index as index, card.uuid as uuid, card.serial as serial,
        card.name as name, card.hcas as hcas, card.mig as mig, driver, boot_id, rack, leaf, pool,
        nvlink_domain, observed_at, next_at,
        -- A new period begins where the card was not in its node's inventory before, or elsewhere.
        coalesce(lag(next_at) over card_here <> observed_at, true)
            or lag(coalesce(rack, '')) over card_here <> coalesce(rack, '')
            or lag(coalesce(pool, '')) over card_here <> coalesce(pool, '') as begins
    from cards
    window card_here as (
        partition by
            coalesce(nullif(card.uuid, ''), nullif(card.serial, ''), host || '/' || card.pci),
            host, card.pci
        order by observed_at
    )
),
periods as (
    select
        gpu, host, pci, index, uuid, serial, name, hcas, mig, driver, boot_id, rack, leaf, pool,
        nvlink_domain, observed_at, next_at,
        count(*) filter (where begins) over (
            partition by gpu, host, pci order by observed_at rows unbounded preceding
        ) as period
    from placed
),
stays as (
    select
        gpu,
        host,
        pci,
        arg_max(index, observed_at) as index,
        any_value(uuid) as uuid,
        any_value(serial) as serial,
        any_value(name) as name,
        arg_max(hcas, observed_at) as hcas,
        arg_max(mig, observed_at) as mig,
        arg_min(driver, observed_at) as driver,
        arg_min(boot_id, observed_at) as boot_id,
        any_value(rack) as rack,
        arg_max(leaf, observed_at) as leaf,
        any_value(pool) as pool,
        arg_max(nvlink_domain, observed_at) as nvlink_domain,
        min(observed_at) as valid_from,
        case when bool_or(next_at is null) then null else max(next_at) end as told_until
    from periods
    group by gpu, host, pci, period
)
select
    gpu,
    host,
    pci,
    index,
    uuid,
    serial,
    name,
    hcas,
    mig,
    driver,
    boot_id,
    rack,
    leaf,
    pool,
    nvlink_domain,
    valid_from,
    -- A card that turns up elsewhere has left, even where its old node says nothing any more.
    least(told_until, lead(valid_from) over (partition by gpu order by valid_from, host, pci))
        as valid_to
from stays;
