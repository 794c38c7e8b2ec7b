-- How each GPU's memory errors were judged, day by day: one row a GPU, counter and evaluated day, the
-- last result where a day was judged again. judged_at: the end of the days that were judged. Rates are
-- episodes a day of use; reaches_*_days are days from judged_at; p, q and coverage are 0 to 1.
-- verdict_before: the result of the day judged before.
create view trends.ecc_growth as
with
results as (
    select
        gpu, counter, event_at as judged_at, host, pci, uuid, serial, model, verdict, shape, since,
        since_first, since_last, episodes, recent_episodes, rate_recent, rate_before, ratio,
        ratio_low, ratio_high, effect, p, q, tested, coverage, beside_peers, alarm_at, states,
        reaches, reaches_days, reaches_low_days, reaches_high_days, refused, why, id
    from staging.growth
    qualify row_number() over (
        partition by gpu, counter, event_at order by observed_at desc, kafka_offset desc
    ) = 1
)
select
    judged_at, gpu, counter, verdict,
    lag(verdict) over (partition by gpu, counter order by judged_at) as verdict_before,
    shape, since, since_first, since_last, effect, ratio, ratio_low, ratio_high, p, q, tested,
    episodes, recent_episodes, rate_recent, rate_before, coverage, beside_peers, alarm_at, states,
    reaches, reaches_days, reaches_low_days, reaches_high_days, refused, why,
    host, pci, uuid, serial, model, id
from results;
