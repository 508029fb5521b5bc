"""What passes cost, learnt from noisy measurements."""

from __future__ import annotations

import random

import pytest

from models.costs.pass_cost import PassCost


def bent(num_rows: int) -> float:
    """Seconds of a pass: flat up to ten rows, then in proportion."""
    return 0.020 * max(1.0, num_rows / 10)


def learnt(sizes: list[int], *, noise: random.Random | None = None) -> PassCost:
    cost = PassCost()
    for num_rows in sizes:
        factor = 1.0
        if noise is not None:  # one pass in five is disturbed, badly
            factor = noise.uniform(3, 10) if noise.random() < 0.2 else noise.uniform(0.9, 1.1)
        cost.note(num_rows, bent(num_rows) * factor)
    return cost


def test_nothing_is_known_before_the_first_pass() -> None:
    cost = PassCost()
    assert (cost.seconds(5), cost.rows_within(1.0), cost.is_measured(5)) == (0.0, 0, False)


def test_measured_sizes_come_back_and_others_lie_between() -> None:
    cost = learnt([1, 10, 20, 512])
    for num_rows in (1, 10, 20, 512):
        assert cost.seconds(num_rows) == pytest.approx(bent(num_rows))
    assert cost.seconds(5) == pytest.approx(0.020)
    assert cost.seconds(15) == pytest.approx(0.030)


def test_beyond_what_was_measured_it_errs_towards_few_rows() -> None:
    cost = learnt([8, 32])
    assert cost.seconds(64) == pytest.approx(2 * bent(32))
    assert cost.rows_within(2 * bent(32)) == 64
    assert cost.seconds(4) == pytest.approx(bent(8) / 2)
    assert not cost.is_measured(4)
    assert cost.is_measured(9)


@pytest.mark.parametrize("limit_s", [0.001, 0.019, 0.02, 0.021, 0.04, 0.5, 1.024, 3.0])
def test_rows_within_is_the_inverse_of_seconds(limit_s: float) -> None:
    cost = learnt([1, 3, 10, 24, 70, 200, 512])
    num_rows = cost.rows_within(limit_s)
    assert cost.seconds(num_rows) <= limit_s + 1e-12
    assert cost.seconds(num_rows + 1) > limit_s


def test_a_fifth_of_the_passes_may_be_disturbed() -> None:
    noise = random.Random(5)
    cost = learnt([1, 10, 24, 70, 512] * 40, noise=noise)
    for num_rows in (1, 10, 24, 70, 512):
        assert cost.seconds(num_rows) == pytest.approx(bent(num_rows), rel=0.2)


def test_it_follows_a_machine_that_has_become_slower() -> None:
    cost = learnt([1, 24] * 30)
    for num_rows in [1, 24] * 9:
        cost.note(num_rows, 3 * bent(num_rows))
    assert cost.seconds(1) == pytest.approx(3 * bent(1))
    assert cost.seconds(24) == pytest.approx(3 * bent(24))


def test_what_was_measured_long_ago_is_forgotten() -> None:
    cost = learnt([1])
    for _ in range(9):
        cost.note(24, 100.0)  # and then never again, for it seems too dear
    for _ in range(1000):
        cost.note(1, bent(1))
    assert cost.seconds(24) == pytest.approx(24 * bent(1))


def test_more_rows_never_take_less() -> None:
    cost = PassCost()
    cost.note(4, 0.05)
    cost.note(8, 0.03)
    cost.note(16, 0.06)
    times = [cost.seconds(n) for n in range(1, 40)]
    assert times == sorted(times)
