"""The table of measured costs: what it was fed, between and beyond, and what it forgets or not."""

from __future__ import annotations

import random

import pytest

from models.costs.table import CostTable


def table_of(times: dict[int, float], repeats: int = 30) -> CostTable:
    table = CostTable()
    for _ in range(repeats):
        for count, time in times.items():
            table.observe(count, time)
    return table


def bent(num_rows: float) -> float:
    """Seconds of a pass: flat up to ten rows, then in proportion."""
    return 0.020 * max(1.0, num_rows / 10)


def learnt(sizes: list[int], *, noise: random.Random | None = None) -> CostTable:
    table = CostTable()
    for num_rows in sizes:
        factor = 1.0
        if noise is not None:  # one pass in five is disturbed, badly
            factor = noise.uniform(3, 10) if noise.random() < 0.2 else noise.uniform(0.9, 1.1)
        table.observe(num_rows, bent(num_rows) * factor)
    return table


def test_nothing_measured_costs_nothing() -> None:
    table = CostTable()
    assert table.is_empty
    assert (table.at(5), table.count_within(1.0), table.is_measured(5)) == (0.0, 0, False)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({1: 10.0, 4: 16.0, 32: 72.0}, {1: 10.0, 2: 12.0, 4: 16.0, 18: 44.0}),
        ({4: 14.0, 8: 18.0}, {2: 12.0, 16: 26.0}),
        # Rows are free until the processor is busy: one straight line would not show where.
        ({1: 20.0, 8: 20.0, 32: 20.0, 64: 40.0}, {30: 20.0, 48: 30.0}),
    ],
    ids=["between what it was fed", "beyond the ends", "a knee"],
)
def test_it_goes_along_lines(times: dict[int, float], expected: dict[int, float]) -> None:
    table = table_of(times)
    assert {count: table.at(count) for count in expected} == pytest.approx(expected)


def test_time_never_falls_with_the_count() -> None:
    table = table_of({1: 10.0, 4: 8.0, 8: 6.0})
    times = [table.at(count) for count in range(1, 20)]
    assert times == sorted(times)


def test_many_passes_of_one_size_do_not_make_other_sizes_free() -> None:
    table = table_of({8: 10.0, 16: 14.0})
    for _ in range(5000):
        table.observe(8, 10.0)
    assert table.at(16) == pytest.approx(14.0, rel=0.02)


def test_a_machine_that_grows_slower_grows_slower_for_every_size() -> None:
    table = table_of({8: 10.0, 16: 14.0})
    for _ in range(2000):
        table.observe(8, 20.0)
    assert table.at(8) == pytest.approx(20.0, rel=0.03)
    assert 18.0 < table.at(16) < 28.0


def test_one_hiccup_moves_little() -> None:
    table = table_of({8: 10.0})
    table.observe(8, 1000.0)
    assert table.at(8) < 11.5


def test_a_fifth_of_the_passes_may_be_disturbed() -> None:
    table = learnt([1, 10, 24, 70, 512] * 40, noise=random.Random(5))
    for num_rows in (1, 10, 24, 70, 512):
        assert table.at(num_rows) == pytest.approx(bent(num_rows), rel=0.2)


def test_it_follows_a_machine_that_has_become_slower_within_nine_passes_of_each_size() -> None:
    table = learnt([1, 24] * 30)
    for num_rows in [1, 24] * 9:
        table.observe(num_rows, 3 * bent(num_rows))
    assert table.at(1) == pytest.approx(3 * bent(1))
    assert table.at(24) == pytest.approx(3 * bent(24))


def test_of_sizes_that_contradict_each_other_the_one_measured_lately_counts() -> None:
    """The machine was slow when single rows were last measured."""
    table = CostTable()
    for _ in range(9):
        table.observe(1, 0.040)
    for _ in range(400):
        table.observe(8, 0.020)
    assert table.at(8) == pytest.approx(0.020, rel=0.05)
    assert table.at(1) == pytest.approx(0.020, rel=0.05)


def test_what_seemed_dearer_than_in_proportion_long_ago_is_forgotten() -> None:
    table = learnt([1])
    for _ in range(9):
        table.observe(24, 100.0)  # and then never again, for it seems too dear
    for _ in range(999):
        table.observe(1, bent(1))
    assert table.count_within(24 * bent(1)) == 1
    for _ in range(2 + 8):  # a curve lasts so long
        table.observe(1, bent(1))
    assert table.count_within(24 * bent(1)) == 24


def test_a_new_size_counts_at_once_and_a_further_time_after_at_most_eight() -> None:
    table = learnt([4] * 200)
    assert table.at(8) == table.at(4)
    table.observe(8, 3 * bent(8))
    assert table.at(8) == pytest.approx(3 * bent(8))
    for _ in range(9 + 8):
        table.observe(4, 2 * bent(4))
    assert table.at(4) == pytest.approx(2 * bent(4))


@pytest.mark.parametrize("limit_s", [0.001, 0.019, 0.02, 0.021, 0.04, 0.5, 1.024])
def test_counts_within_a_time_are_the_inverse_of_times_of_counts(limit_s: float) -> None:
    table = learnt([1, 3, 10, 24, 70, 200, 512])
    num_rows = table.count_within(limit_s)
    if num_rows:
        assert table.at(num_rows) <= limit_s + 1e-12
    assert table.at(num_rows + 1) > limit_s or not table.is_measured(num_rows)


def test_a_promise_beyond_what_was_measured_errs_towards_few() -> None:
    table = learnt([8, 32])
    assert table.count_within(2 * bent(32)) == 64
    assert table.count_within(bent(8) / 2) == 4
    assert not table.is_measured(4)
    assert table.is_measured(9)
