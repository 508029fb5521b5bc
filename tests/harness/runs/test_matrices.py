"""Samples of matrices have each pair, and a run of them can be repeated."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path

import pytest

from tests.harness.runs.matrices import covering

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
"""
CONFTEST = """
from tests.harness.runs import matrices

def pytest_addoption(parser):
    matrices.add_options(parser)

def pytest_report_header(config):
    return "matrices: " + matrices.begin(config)

def pytest_configure(config):
    config.addinivalue_line("markers", "matrix: sampled")
    matrices.begin(config)

def pytest_collection_modifyitems(config, items):
    matrices.sample(config, items)
"""


def test_a_run_says_its_seed_and_takes_a_sample_of_it(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (tmp_path / "test_some.py").write_text(TESTS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", ".", *PLAIN]
    ran = subprocess.run(
        [*command, "--matrix-seed", "7", "."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "matrices: sampled, --matrix-seed 7" in ran.stdout, ran.stdout + ran.stderr
    assert f"{4 + 12} passed" in ran.stdout, ran.stdout
