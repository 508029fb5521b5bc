"""The planner and the forming window in simulated time, against what fixed lengths reach there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.simulate.__main__ import FIXED_LENGTHS, Scenario, main, run, scenarios

SECONDS = 20.0
SEEDS = (0, 1, 2)  # a run of 20 s is a few hundred rounds: single ones differ by 2-3%
SHARE = 0.95  # of the best of k = 0 and every fixed k, on the mean of the seeds
HELD_TO = [
    "cpu-demo x1 a=0.9",
    "cpu-demo x8 a=0.5",
    "cpu-demo x8 a=0.7",
    "cpu-349m x1 a=0.7",
    "cpu-349m x8 a=0.7",
    "gpu x8 a=0.7",
    "gpu x8 a=0.7 2 routers",
]


def scenario(name: str) -> Scenario:
    return next(each for each in scenarios() if each.name == name)


def mean_rate(name: str, policy: str | int) -> float:
    runs = [run(scenario(name), policy, seconds=SECONDS, seed=seed) for seed in SEEDS]
    return sum(each.tokens_per_s for each in runs) / len(SEEDS)


@pytest.mark.parametrize("name", HELD_TO)
def test_the_planner_reaches_the_best_fixed_length(name: str) -> None:
    rates = {k: mean_rate(name, k) for k in (0, *FIXED_LENGTHS)}
    assert mean_rate(name, "joint") >= SHARE * max(rates.values()), rates


@pytest.mark.parametrize("k", [0, 2])
def test_batches_stay_whole_where_rows_are_cheap(k: int) -> None:
    assert run(scenario("gpu x8 a=0.7"), k, seconds=SECONDS).mean_batch >= 7.0


def test_batches_part_where_two_halves_are_faster() -> None:
    assert run(scenario("cpu-demo x8 a=0.9"), 4, seconds=SECONDS).mean_batch <= 5.0


def test_planning_follows_acceptance_over_time() -> None:
    """The first 10 s draft seldom stands, then nearly always: 20 s must beat never drafting."""
    rising = scenario("gpu x8 0.2->0.9")
    plain = run(rising, 0, seconds=20.0).tokens_per_s
    planned = run(rising, "joint", seconds=20.0)
    assert planned.tokens_per_s >= 1.2 * plain
    assert max(planned.lengths) >= 5


def test_a_run_is_a_function_of_its_seed() -> None:
    one = run(scenario("cpu-demo x4 mixed"), "joint", seconds=3.0, seed=1)
    assert one == run(scenario("cpu-demo x4 mixed"), "joint", seconds=3.0, seed=1)
    assert one != run(scenario("cpu-demo x4 mixed"), "joint", seconds=3.0, seed=2)


def test_the_command_writes_a_line_for_each_scenario(tmp_path: Path) -> None:
    output = tmp_path / "simulate.json"
    main(["--only", "gpu x1 a=0.9", "--seconds", "5", "--output", str(output)])
    found = json.loads(output.read_text())
    [line] = found["samples"]
    assert line["name"] == "gpu x1 a=0.9"
    assert line["joint_share"] == pytest.approx(
        line["joint"] / max(line["plain"], line["best_fixed"]), abs=1e-3
    )
    assert found["summary"]["joint"]["worst_share"] == line["joint_share"]
