"""The planner and the forming window in simulated time, against what fixed lengths reach there."""

from __future__ import annotations

import pytest

from loadtest.simulate.scenarios import FIXED_LENGTHS, Scenario, run, scenarios

SECONDS = 20.0
SEEDS = (0, 1, 2)  # a run of 20 s is a few hundred rounds: single ones differ by 2-3%
SHARE = 0.95  # of the best of k = 0 and every fixed k, on the mean of the seeds
HELD_TO = [
    ("cpu-demo a=0.9", 1),
    ("cpu-demo a=0.5", 8),
    ("cpu-demo a=0.7", 8),
    ("cpu-349m a=0.7", 1),
    ("cpu-349m a=0.7", 8),
    ("gpu a=0.7", 8),
    ("gpu a=0.7, 2 routers", 8),
]


def scenario(name: str, num_clients: int) -> Scenario:
    (found,) = (one for one in scenarios() if (one.name, len(one.kinds)) == (name, num_clients))
    return found


def mean_rate(found: Scenario, policy: str | int) -> float:
    runs = [run(found, policy, seconds=SECONDS, seed=seed) for seed in SEEDS]
    return sum(each.tokens_per_s for each in runs) / len(SEEDS)


@pytest.mark.parametrize(("name", "num_clients"), HELD_TO)
def test_the_planner_reaches_the_best_fixed_length(name: str, num_clients: int) -> None:
    found = scenario(name, num_clients)
    rates = {k: mean_rate(found, k) for k in (0, *FIXED_LENGTHS)}
    assert mean_rate(found, "joint") >= SHARE * max(rates.values()), rates


@pytest.mark.parametrize("k", [0, 2])
def test_batches_stay_whole_where_rows_are_cheap(k: int) -> None:
    assert run(scenario("gpu a=0.7", 8), k, seconds=SECONDS).mean_batch >= 7.0


def test_batches_part_where_two_halves_are_faster() -> None:
    assert run(scenario("cpu-demo a=0.9", 8), 4, seconds=SECONDS).mean_batch <= 5.0


def test_planning_follows_acceptance_over_time() -> None:
    """The first 10 s draft seldom stands, then nearly always: 20 s must beat never drafting."""
    rising = scenario("gpu a=0.2 to 0.9", 8)
    plain = run(rising, 0, seconds=20.0).tokens_per_s
    planned = run(rising, "joint", seconds=20.0)
    assert planned.tokens_per_s >= 1.2 * plain
    assert max(planned.lengths) >= 5


def test_a_run_is_a_function_of_its_seed() -> None:
    one = run(scenario("cpu-demo mixed", 4), "joint", seconds=3.0, seed=1)
    assert one == run(scenario("cpu-demo mixed", 4), "joint", seconds=3.0, seed=1)
    assert one != run(scenario("cpu-demo mixed", 4), "joint", seconds=3.0, seed=2)
