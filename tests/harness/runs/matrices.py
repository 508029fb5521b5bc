"""A run takes a sample of the tests, another one each day; `--full` runs all.

Tests marked `matrix` run for some combinations of their parameters.

Of three parameters and more every pair of values is there, of two every value: most faults need
one value or two (Kuhn, Wallace, Gallo, "Software Fault Interactions and Implications for Software
Testing", 2004). Tests marked `day` take longest, and run on one day in three. A run that names
files or tests (`-k`) leaves none of these out. The seed that a run prints at its head repeats it.
"""

from __future__ import annotations

import datetime
import os
import random
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from itertools import combinations
from typing import TypeVar

import pytest

NUM_DAYS = 3  # until each test marked `day` has run
_SEED = "OUTRIDER_MATRIX_SEED"  # workers of one run have it from the process that starts them

Combination = Mapping[str, Hashable]
Value = TypeVar("Value")


def add_options(parser: pytest.Parser) -> None:
    """Add the options of this module."""
    group = parser.getgroup("matrices of parameters")
    group.addoption(
        "--full", action="store_true", help="run all combinations, and the tests of all days"
    )
    group.addoption(
        "--matrix-seed", type=int, help="choose combinations as the run that printed it"
    )


def begin(config: pytest.Config) -> str:
    """Fix the seed of this run and of its workers; return what the head of the run says."""
    given = config.getoption("--matrix-seed")
    if given is not None:
        os.environ[_SEED] = str(given)
    today = datetime.datetime.now(datetime.UTC).date().toordinal()
    seed = os.environ.setdefault(_SEED, str(today))
    return "all combinations" if config.getoption("--full") else f"sampled, --matrix-seed {seed}"


def sample(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests and combinations that a sample does without."""
    if config.getoption("--full"):
        return
    left_out = _other_combinations(items)
    files = [argument.partition("::")[0] for argument in config.args]
    if not config.option.keyword and not any(name.endswith(".py") for name in files):
        left_out |= _other_days(items)
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def _other_days(items: list[pytest.Item]) -> set[pytest.Item]:
    today = int(os.environ[_SEED]) % NUM_DAYS
    left_out: set[pytest.Item] = set()
    for item in items:
        mark = item.get_closest_marker("day")
        if mark is None:
            continue
        if mark.args not in [(day,) for day in range(NUM_DAYS)]:
            raise pytest.UsageError(f"{item.nodeid}: a day is 0 to {NUM_DAYS - 1}, not {mark.args}")
        if mark.args != (today,):
            left_out.add(item)
    return left_out


def _other_combinations(items: list[pytest.Item]) -> set[pytest.Item]:
    groups: defaultdict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("matrix"):
            groups[item.nodeid.partition("[")[0]].append(item)
    left_out: set[pytest.Item] = set()
    for name, group in groups.items():
        rng = random.Random(f"{os.environ[_SEED]} {name}")
        kept = covering([_combination(item) for item in group], rng)
        left_out.update(item for number, item in enumerate(group) if number not in kept)
    return left_out


def some_of(config: pytest.Config, name: str, values: Sequence[Value]) -> Sequence[Value]:
    """Return what a fixture is to make of these: all with `--full`, or one, by name and seed."""
    if config.getoption("--full"):
        return values
    return [random.Random(f"{os.environ[_SEED]} {name}").choice(values)]


def covering(of: Sequence[Combination], rng: random.Random) -> set[int]:
    """Choose combinations that have what all of them have: all values, all pairs from three on.

    Args:
        of: parameters and values; not each combination of values need be there.
        rng: breaks ties.

    Returns:
        Their numbers; few, not the fewest.
    """
    names = [
        name for name in (of[0] if of else ()) if len({combination[name] for combination in of}) > 1
    ]
    strength = 2 if len(names) > 2 else 1
    wanted = [
        {
            tuple((name, combination[name]) for name in some)
            for some in combinations(names, strength)
        }
        for combination in of
    ]
    missing = set().union(*wanted) if wanted else set()
    order = list(range(len(of)))
    rng.shuffle(order)
    chosen: set[int] = set() if names else set(order)
    while missing:
        best = max(order, key=lambda number: len(wanted[number] & missing))
        chosen.add(best)
        missing -= wanted[best]
    return chosen


def _combination(item: pytest.Function) -> Combination:
    spec = getattr(item, "callspec", None)
    # By identity: values need not be hashable, and are one object in all of their combinations.
    return {} if spec is None else {name: id(value) for name, value in spec.params.items()}
