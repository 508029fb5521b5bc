"""The table of measured costs: what it was fed, between and beyond, and what it does not forget."""

import pytest

from models.costs.table import CostTable


def table_of(times: dict[int, float], repeats: int = 30) -> CostTable:
    table = CostTable()
    for _ in range(repeats):
        for count, time in times.items():
            table.observe(count, time)
    return table


def test_nothing_measured_costs_nothing() -> None:
    assert CostTable().is_empty
    assert CostTable().at(5) == 0.0


def test_it_gives_back_what_it_was_fed_and_lines_between() -> None:
    table = table_of({1: 10.0, 4: 16.0, 32: 72.0})
    assert table.at(1) == pytest.approx(10.0)
    assert table.at(4) == pytest.approx(16.0)
    assert table.at(2) == pytest.approx(12.0)
    assert table.at(18) == pytest.approx(44.0)


def test_beyond_the_ends_it_goes_on_along_the_line() -> None:
    table = table_of({4: 14.0, 8: 18.0})
    assert table.at(16) == pytest.approx(26.0)
    assert table.at(2) == pytest.approx(12.0)


def test_a_knee_is_kept() -> None:
    """Rows are free until the processor is busy: one straight line would not show where."""
    table = table_of({1: 20.0, 8: 20.0, 32: 20.0, 64: 40.0})
    assert table.at(30) == pytest.approx(20.0)
    assert table.at(48) == pytest.approx(30.0)


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
