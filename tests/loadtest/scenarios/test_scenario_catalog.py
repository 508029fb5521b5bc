"""Which scenarios there are, how they are chosen, and what is asked in them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from loadtest.grow.source import Source, check_size
from loadtest.scenarios.asks import asks_of
from loadtest.scenarios.catalog import CATALOG, GROWN, QUICK, TURNING, Scenario, select
from loadtest.scenarios.growing import DRAFT_SIZES, SOURCE_PATH, TARGET_SIZE


def test_names_are_unique_and_tell_what_differs() -> None:
    names = [scenario.name for scenario in CATALOG]
    assert len(names) == len(set(names))
    assert Scenario(pair="demo").name == "demo-b4"
    odd = Scenario(
        pair="demo", where="http", batch=8, temperature=1.3, num_tokens=8, kind="turning"
    )
    assert odd.name == "demo-b8-turning-t1.3-n8-http"


def test_every_axis_is_varied() -> None:
    assert {one.batch for one in CATALOG} == {1, 4, 8, 16}
    assert {one.temperature for one in CATALOG} == {0.0, 0.7, 1.3}
    assert {8, 200} <= {one.num_tokens for one in CATALOG}
    assert {one.where for one in CATALOG} == {"engine", "link", "http"}
    assert {grown.acceptance for grown in GROWN.values()} == {0.3, 0.6, 0.8, 0.95}
    assert {grown.cost_percent for grown in GROWN.values()} == {1, 5, 15, 40}
    pairs = {one.pair for one in CATALOG}
    assert pairs == {"demo", "smollm2", "349m-18m", *GROWN, *TURNING}
    assert {part for parts in TURNING.values() for part in parts} <= set(GROWN)


def test_the_shipped_draft_can_be_grown_to_every_size() -> None:
    source = Source.load(SOURCE_PATH)
    assert {grown.cost_percent for grown in GROWN.values()} == set(DRAFT_SIZES)
    for size in (TARGET_SIZE, *DRAFT_SIZES.values()):
        check_size(source, size)
    assert DRAFT_SIZES[1] == source.size


def test_patterns_choose_in_the_order_of_the_catalog() -> None:
    assert [one.name for one in select(QUICK[::-1])] == list(QUICK)
    assert {one.pair for one in select(["a*-c40*"])} == {"a80-c40", "a30-c40"}
    assert select(["*"]) == list(CATALOG)
    with pytest.raises(ValueError, match="no scenario matches 'demo-b3'"):
        select(["demo-b1", "demo-b3"])


def numbered(kind: str, count: int) -> Sequence[Sequence[int]]:
    """Prompts that say their kind and place."""
    return [[ord(kind[0]), index] for index in range(count)]


def test_acceptance_turns_midway() -> None:
    asks = asks_of(Scenario(pair="demo", kind="turning", num_tokens=5), numbered, 6)
    assert [chr(ask.prompt[0]) for ask in asks] == list("ccceee")
    assert {ask.num_tokens for ask in asks} == {5}


def test_mixed_traffic_has_kinds_temperatures_and_arrivals_of_all_sorts() -> None:
    scenario = Scenario(pair="demo", kind="mixed", batch=4, num_tokens=40)
    asks = asks_of(scenario, numbered, 14)
    assert {chr(ask.prompt[0]) for ask in asks} == {"s", "c", "e"}
    assert {ask.temperature for ask in asks} == {0.0, 0.7, 1.3}
    assert len({ask.num_tokens for ask in asks}) > 3
    assert [ask.pause_s for ask in asks[4:]] == [0.0] * 10
    assert sorted({ask.pause_s for ask in asks[:4]}) == [ask.pause_s for ask in asks[:4]]
    assert len({tuple(ask.prompt) for ask in asks}) == 14
    assert asks == asks_of(scenario, numbered, 14)
