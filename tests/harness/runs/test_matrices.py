"""Samples of matrices have each pair, and a run of them can be repeated."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path

import pytest

from tests.harness.runs.matrices import covering, some_of

ROOT = Path(__file__).parents[3]
PLAIN = ("-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "no:xdist")
MATRIX = [
    {"kind": kind, "rule": rule, "attention": attention, "only": 0}
    for kind, rule, attention in product(range(5), range(3), range(2))
]


def pairs(of: list[dict[str, int]]) -> set[object]:
    return {pair for one in of for pair in combinations(sorted(one.items()), 2)}


@pytest.mark.parametrize("seed", range(5))
def test_each_pair_of_values_is_there_in_half_of_the_combinations(seed: int) -> None:
    chosen = covering(MATRIX, random.Random(seed))
    assert pairs([MATRIX[number] for number in chosen]) == pairs(MATRIX)
    assert len(chosen) <= 18
    assert chosen == covering(MATRIX, random.Random(seed))


def test_another_seed_has_others() -> None:
    samples = [frozenset(covering(MATRIX, random.Random(seed))) for seed in range(5)]
    assert len(set(samples)) > 1
    assert len(frozenset().union(*samples)) > len(samples[0])


def test_two_parameters_have_each_value() -> None:
    matrix = [{"kind": kind, "dtype": dtype} for kind, dtype in product(range(5), range(2))]
    chosen = [matrix[number] for number in covering(matrix, random.Random(1))]
    assert len(chosen) == 5
    assert {one["kind"] for one in chosen} == set(range(5))
    assert {one["dtype"] for one in chosen} == {0, 1}


@pytest.mark.parametrize(
    "matrix", [[], [{}], [{"kind": 1}], [{"kind": kind} for kind in range(4)]], ids=len
)
def test_what_is_no_matrix_stays_whole(matrix: list[dict[str, int]]) -> None:
    assert covering(matrix, random.Random(1)) == set(range(len(matrix)))


TESTS = """
import pytest

@pytest.mark.matrix
@pytest.mark.parametrize("a", range(4))
@pytest.mark.parametrize("b", range(3))
def test_it(a, b):
    pass

@pytest.mark.parametrize("a", range(4))
@pytest.mark.parametrize("b", range(3))
def test_others(a, b):
    pass

@pytest.mark.day(1)
def test_today(): pass

@pytest.mark.day(2)
def test_tomorrow(): pass
"""
CONFTEST = """
from tests.harness.runs import matrices

def pytest_addoption(parser):
    matrices.add_options(parser)

def pytest_report_header(config):
    return "matrices: " + matrices.begin(config)

def pytest_configure(config):
    config.addinivalue_line("markers", "matrix: sampled")
    config.addinivalue_line("markers", "day: of three")
    matrices.begin(config)

def pytest_collection_modifyitems(config, items):
    matrices.sample(config, items)
"""


@pytest.mark.parametrize(
    ("words", "num_tests"),
    [
        (["."], 4 + 12 + 1),
        ([".", "--full"], 12 + 12 + 2),
        ([".", "-k", "test_it and 2-3"], 1),
        (["test_some.py"], 4 + 12 + 2),
        (["test_some.py::test_tomorrow"], 1),
        ([".", "-k", "tomorrow"], 1),
    ],
    ids=["sampled", "full", "named", "of a file", "one", "of another day"],
)
def test_a_run_says_its_seed_and_takes_what_it_was_asked_for(
    tmp_path: Path, words: list[str], num_tests: int
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (tmp_path / "test_some.py").write_text(TESTS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", ".", *PLAIN]
    ran = subprocess.run(
        [*command, "--matrix-seed", "7", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    said = "all combinations" if "--full" in words else "sampled, --matrix-seed 7"
    assert f"matrices: {said}" in ran.stdout, ran.stdout + ran.stderr
    assert f"{num_tests} passed" in ran.stdout, ran.stdout


@pytest.mark.parametrize(("is_full", "num_values"), [(True, 2), (False, 1)])
def test_a_fixture_makes_all_or_the_one_of_the_day(
    is_full: bool, num_values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Config:
        def getoption(self, name: str) -> bool:
            return is_full

    found: set[int] = set()
    for seed in range(20):
        monkeypatch.setenv("OUTRIDER_MATRIX_SEED", str(seed))
        values = some_of(Config(), "ranks", (2, 4))  # type: ignore[arg-type]
        assert list(values) == list(some_of(Config(), "ranks", (2, 4)))  # type: ignore[arg-type]
        assert len(values) == num_values
        found.update(values)
    assert found == {2, 4}
