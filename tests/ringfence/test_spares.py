"""`ringfence spares`: against formulas worked out by other means, and at the edges."""

import json
import math

import pytest
from click.testing import CliRunner, Result
from scipy import stats

from ringfence.cli.preflight import spares
from ringfence.spares import Costs, Rate, SparesError, size


@pytest.mark.parametrize(("nodes", "rate", "repair"), [(128, 0.0065, 2.0), (2048, 0.00234, 5.0)])
def test_a_known_rate_gives_poisson(nodes: int, rate: float, repair: float) -> None:
    sizing = size(nodes, Rate(assumed=rate), repair, 0.999)
    for row in sizing.rows:
        mean = (nodes + row.spares) * rate * repair
        assert row.enough == pytest.approx(stats.poisson.cdf(row.spares, mean), rel=1e-9)
        assert row.waiting_hours == pytest.approx(
            8760 * stats.poisson.sf(row.spares, mean), rel=1e-6
        )
    assert sizing.rows[sizing.needed].enough >= 0.999 > sizing.rows[sizing.needed - 1].enough


def test_a_measured_rate_gives_a_negative_binomial() -> None:
    sizing = size(128, Rate(failures=9, node_days=3000), 5.0, 0.99)
    for row in sizing.rows:
        exposed = (128 + row.spares) * 5.0
        expected = stats.nbinom.cdf(row.spares, 9.5, 3000 / (3000 + exposed))
        assert row.enough == pytest.approx(expected, rel=1e-9)


def test_little_experience_needs_more_spares_than_much_of_the_same_rate() -> None:
    little = size(128, Rate(failures=3, node_days=500), 3.0, 0.99)
    much = size(128, Rate(failures=300, node_days=50_000), 3.0, 0.99)
    assert little.needed > much.needed


def test_much_experience_comes_to_what_a_known_rate_gives() -> None:
    much = size(128, Rate(failures=650_000, node_days=100_000_000.0), 2.0, 0.99)
    known = size(128, Rate(assumed=0.0065), 2.0, 0.99)
    assert (much.needed, much.cheapest) == (known.needed, known.cheapest)


def test_the_cheapest_reserve_is_that_of_the_least_cost() -> None:
    sizing = size(128, Rate(assumed=0.0065), 2.0, 0.999, Costs(node_hour=20.0))
    costs = {row.spares: row.cost for row in sizing.rows}
    assert sizing.cheapest == min(costs, key=costs.__getitem__)
    assert sizing.rows[1].cost_of_spares == pytest.approx(8760 * 20.0)


def test_none_seen_is_not_none_to_come() -> None:
    sizing = size(64, Rate(failures=0, node_days=640), 2.0, 0.99)
    assert sizing.needed >= 1


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ((0, Rate(assumed=0.1), 1.0, 0.9), "one node"),
        ((1, Rate(), 1.0, 0.9), "nothing was observed"),
        ((1, Rate(assumed=math.nan), 1.0, 0.9), "above zero"),
        ((1, Rate(assumed=0.1), math.inf, 0.9), "no time"),
        ((1, Rate(assumed=0.1), 1.0, 1.0), "between 0 and 1"),
        ((10**6, Rate(assumed=1.0), 10.0, 0.9), "to be mended"),
        ((50, Rate(failures=0, node_days=1.0), 0.5, 1 - 1e-15), "not enough"),
    ],
)
def test_a_question_without_an_answer_is_one_sentence(
    question: tuple[int, Rate, float, float], sentence: str
) -> None:
    with pytest.raises(SparesError, match=sentence):
        size(*question)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(spares, list(arguments))


def test_the_command_tells_the_sum_and_the_price() -> None:
    result = run("--nodes", "128", "--rate", "6.5", "--repair-days", "2")
    assert result.exit_code == 0
    assert "128 + 5 = 133 nodes have enough for 99.00% of the time" in result.output


def test_the_command_speaks_json() -> None:
    found = json.loads(
        run("--nodes", "16", "--failures", "2", "--node-days", "900", "--json").output
    )
    assert found["schema"] == "spares/1"
    assert found["rate"]["per_node_day"] == pytest.approx(2.5 / 900)
    assert found["rows"][found["needed"]]["enough"] >= 0.99


def test_half_a_measurement_is_refused() -> None:
    result = run("--nodes", "16", "--failures", "2")
    assert (result.exit_code, "belong together" in result.output) == (2, True)
