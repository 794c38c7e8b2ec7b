-- GPUs by how bad their newest daily result is, worst first: one row a GPU, its worse counter. rank: 1 is
-- the worst. judged_at: the end of the days that were judged; effect: the rate now by that before.
create view trends.ecc_ranking as
with
newest as (
    select
        judged_at, gpu, host, pci, counter, verdict, effect, q, episodes, recent_episodes, coverage,
        shape, since, states, reaches_days, reaches_low_days, reaches_high_days, refused, why,
        list_position(
            ['hard', 'growing', 'suspect', 'insufficient', 'stable'], verdict
        ) as badness
    from trends.ecc_growth
    qualify judged_at = max(judged_at) over ()
),
worse as (
    select
        judged_at, gpu, host, pci, counter, verdict, effect, q, episodes, recent_episodes, coverage,
        shape, since, states, reaches_days, reaches_low_days, reaches_high_days, refused, why, badness
    from newest
    qualify row_number() over (partition by gpu order by badness, q, effect desc, counter) = 1
)
select
    row_number() over (order by badness, q, effect desc, gpu) as rank,
    gpu, host, pci, counter, verdict, effect, q, episodes, recent_episodes, coverage, shape, since,
    states, reaches_days, reaches_low_days, reaches_high_days, refused, why, judged_at
from worse;
