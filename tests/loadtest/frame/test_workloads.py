"""Workloads of changing and of mixed traffic, and a draft that turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from loadtest.frame.experiment import Terms
from loadtest.frame.pairs import find_models
from loadtest.frame.runs import Ask
from loadtest.frame.stages import EngineStage, TurningPool
from loadtest.frame.ways import Way
from loadtest.frame.workloads import exact, mixed, turning

MODELS = find_models("demo")


def numbered(terms: Terms, kind: str, count: int) -> Sequence[Sequence[int]]:
    """Prompts that say their kind and place."""
    return [[ord(kind[0]), index] for index in range(count)]


def test_acceptance_turns_midway() -> None:
    asks = turning("code", "extraction", numbered)(Terms(count=6, tokens=5, turn=0, models=MODELS))
    assert [chr(ask.prompt_ids[0]) for ask in asks] == list("ccceee")
    assert {ask.max_tokens for ask in asks} == {5}


def test_mixed_traffic_has_kinds_temperatures_and_arrivals_of_all_sorts() -> None:
    terms = Terms(count=14, tokens=40, batch=4, turn=0, models=MODELS)
    asks = mixed(numbered)(terms)
    assert {chr(ask.prompt_ids[0]) for ask in asks} == {"s", "c", "e"}
    assert {ask.temperature for ask in asks} == {0.0, 0.7, 1.3}
    assert len({ask.max_tokens for ask in asks}) > 3
    assert [ask.pause_s for ask in asks[4:]] == [0.0] * 10
    assert sorted({ask.pause_s for ask in asks[:4]}) == [ask.pause_s for ask in asks[:4]]
    assert len({ask.prompt_ids for ask in asks}) == 14
    assert asks == mixed(numbered)(terms)


class NamedPool:
    """Gives its name in place of a lease."""

    def __init__(self, name: str, given: list[str]) -> None:
        self.name = name
        self.given = given

    async def lease(self, session_id: str, *, timeout_s: float) -> None:
        self.given.append(self.name)


@pytest.mark.parametrize("num_leases", [4, 1])
async def test_a_pool_turns_after_half_of_the_leases_of_each_run(num_leases: int) -> None:
    given: list[str] = []
    pool = TurningPool([NamedPool("first", given), NamedPool("later", given)])  # type: ignore[list-item]
    for _ in range(2):
        pool.begin(num_leases)
        for number in range(num_leases):
            await pool.lease(str(number), timeout_s=1.0)
    half = num_leases // 2
    assert given == 2 * (["first"] * (num_leases - half) + ["later"] * half)


def test_a_draft_that_turns_is_one_draft_to_the_router() -> None:
    drafts = {"draft": MODELS.drafts["draft"], "later": MODELS.target}
    models = replace(MODELS, drafts=drafts, later="later", engine={"max_model_len": 128})
    asks = [Ask(prompt_ids=(5, 6, number), max_tokens=16, seed=number) for number in range(4)]
    with EngineStage(models) as stage:
        runs = [stage.run(asks, way, 1) for way in (Way(k=0), Way(k=3))]
    assert runs[0].contents == runs[1].contents
    assert set(runs[1].stats.num_drafted_by) == {"draft_model"}
    # The target's own weights are right wherever they draft.
    assert [one.stats.draft_acceptance_rate for one in runs[1].answers[2:]] == [1.0, 1.0]


def test_a_prompt_that_comes_again_is_asked_in_a_group_of_its_own() -> None:
    def one_prompt(terms: Terms, kind: str, count: int) -> Sequence[Sequence[int]]:
        return [[5, 6] if index % 2 else [7] for index in range(count)]

    asks = exact("story", one_prompt)(Terms(count=5, tokens=4, turn=0, models=MODELS))
    assert [ask.group for ask in asks] == ["", "", "1", "1", "2"]
    assert len({(ask.prompt_ids, ask.group) for ask in asks}) == 5


def test_processes_side_by_side_share_the_threads() -> None:
    engine = {"num_threads": 4, "dtype": "float32"}
    models = replace(MODELS, engine=engine)
    tree = models.side_by_side(Way()).tree(Way())
    assert (tree["target"]["num_threads"], tree["draft"]["num_threads"]) == (3, 1)
    alone = Way(drafts=())
    assert models.side_by_side(alone).tree(alone)["target"]["num_threads"] == 4
