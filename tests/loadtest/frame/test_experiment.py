"""Experiments run by turns, on any stage; equal texts are checked; a run that was cut goes on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from loadtest.frame.experiment import Experiment, Result, Terms, measure, table
from loadtest.frame.pairs import find_models
from loadtest.frame.runs import Answer, Ask, Run
from loadtest.frame.ways import Way

MODELS = find_models("demo")


def asks(terms: Terms) -> Sequence[Ask]:
    return [Ask(prompt_ids=(terms.turn, index), max_tokens=4) for index in range(terms.count)]


class ScriptedStage:
    """Answers at once with the prompt, or with something else in ways that it was told."""

    def __init__(self, wrong: str = "") -> None:
        self.wrong = wrong
        self.seen: list[tuple[str, tuple[int, ...], int]] = []
        self.batches: list[int] = []

    def run(self, asks: Sequence[Ask], way: Way, batch: int) -> Run:
        name = way.drafter or "plain"
        self.batches.append(batch)
        self.seen += [(name, ask.prompt_ids, ask.max_tokens) for ask in asks]
        answers = [
            Answer(
                content=(0,) if name == self.wrong else ask.prompt_ids,
                num_tokens=4,
                num_first=1,
                began_s=0.0,
                first_s=0.5,
                ended_s=1.0 if name == "plain" else 0.75,
            )
            for ask in asks
        ]
        return Run(answers=answers, batch=batch)


EXPERIMENT = Experiment(
    question="is a scripted stage faster with a drafter",
    workloads={"one": asks, "two": asks},
    ways={"plain": Way(k=0), "suffix": Way(drafter="suffix")},
    measures=("tokens_per_s",),
    stages=("scripted",),
    repeats=3,
    count=2,
)


def run(stage: ScriptedStage, experiment: Experiment = EXPERIMENT, **options: Any) -> Result:
    openers: Any = {"scripted": lambda models: nullcontext(stage)}
    return measure(experiment, MODELS, openers, **options)


def test_every_way_has_the_same_requests_in_a_turn_and_new_ones_in_the_next() -> None:
    stage = ScriptedStage()
    result = run(stage)
    assert not result.problems
    assert [(row["workload"], row["way"]) for row in result.rows] == [
        ("one", "plain"),
        ("one", "suffix"),
        ("two", "plain"),
        ("two", "suffix"),
    ]
    by_way = {
        name: [ids for way, ids, _ in stage.seen if way == name] for name in ("plain", "suffix")
    }
    assert sorted(by_way["plain"]) == sorted(by_way["suffix"])
    assert {turn for turn, _ in by_way["plain"]} == {0, 1, 2, 3}  # 0: the warm-up


def test_figures_and_ratios_are_in_the_table() -> None:
    result = run(ScriptedStage())
    assert result.rows[0]["runs"] == {"tokens_per_s": [8.0, 8.0, 8.0]}
    assert table(result.rows, "plain")[3].endswith("| 1.33 |")


def test_a_text_that_depends_on_the_way_is_a_problem() -> None:
    result = run(ScriptedStage(wrong="suffix"))
    assert len(result.problems) == 2 * 3  # workloads, turns
    assert "answers 0, 1 of suffix are not those of plain" in result.problems[0]


def test_cells_that_are_known_are_not_run_again() -> None:
    first = run(ScriptedStage())
    stage = ScriptedStage()
    known = Result(
        rows=[row for row in first.rows if row["workload"] == "one"], problems=["a text differs"]
    )
    again = run(stage, known=known)
    assert again.problems == ["a text differs"]  # it was found before the run was cut
    assert again.rows == first.rows
    assert len(stage.seen) == 2 * (1 + 3 * 2)  # ways; the warm-up and the turns of one workload


def test_a_way_may_have_its_stage() -> None:
    here, there = ScriptedStage(), ScriptedStage()
    ways = {"plain": Way(k=0), "other": Way(k=0, at="there")}
    openers: Any = {
        "scripted": lambda models: nullcontext(here),
        "there": lambda models: nullcontext(there),
    }
    measure(replace(EXPERIMENT, ways=ways, batches=(2,)), MODELS, openers)
    assert set(here.batches) == set(there.batches) == {2}
    assert len(there.seen) == 2 * (2 + 3 * 4)  # workloads; a place's warm-up, turns of 4 requests


def test_lines_of_its_own_run_by_turns_after_one_that_does_not_count() -> None:
    order: list[str] = []

    @contextmanager
    def lines(terms: Terms, ways: Any) -> Any:
        def turn(name: str) -> dict[str, float]:
            order.append(name)
            return {"ms": float(len(order))}

        yield {name: lambda name=name: turn(name) for name in "ab"}
        order.append(f"closed {terms.count}")

    experiment = Experiment(question="how long", lines={"own": lines}, repeats=2, batches=(3,))
    result = measure(experiment, MODELS, {})
    assert order == [*"ab", *"ab", *"ba", "closed 12"]
    assert [(row["workload"], row["way"], row["runs"]) for row in result.rows] == [
        ("own", "a", {"ms": [3.0, 6.0]}),
        ("own", "b", {"ms": [4.0, 5.0]}),
    ]
    assert table(result.rows)[0].endswith("times a |")


def test_only_cells_that_are_named_are_run_and_ways_only_on_their_stages() -> None:
    ways = {"plain": Way(k=0), "elsewhere": Way(k=3, stages=("other",))}
    chosen = replace(EXPERIMENT, ways=ways, cells=(("scripted", "two", 4),))
    rows = run(ScriptedStage(), chosen).rows
    assert [(row["workload"], row["batch"], row["way"]) for row in rows] == [("two", 4, "plain")]
    assert len(EXPERIMENT.places()) == 2


def test_a_run_has_requests_for_some_time_and_fills_each_place_twice() -> None:
    """A scripted plain answer has 4 tokens at 8 a second."""
    for run_s, num_asks in ((0.001, 2), (1.9, 4)):
        stage = ScriptedStage()
        run(stage, replace(EXPERIMENT, run_s=run_s, cells=(("scripted", "one", 1),)))
        last = [ids for way, ids, _ in stage.seen if way == "plain" and ids[0] == 3]
        assert len(last) == num_asks


def test_a_way_with_a_draft_model_is_run_with_each_and_needs_one() -> None:
    ways = {"k=0": Way(k=0), "k=3": Way(k=3, drafts=("draft",)), "lookup": Way(drafts=())}
    several = replace(EXPERIMENT, ways=ways).for_drafts(["draft", "draft-2"])
    assert {name: way.drafts for name, way in several.ways.items()} == {
        **{"k=0": None, "k=3": ("draft",), "k=3, draft-2": ("draft-2",), "lookup": ()},
    }
    assert set(replace(EXPERIMENT, ways=ways).for_drafts([]).ways) == {"k=0", "lookup"}


def test_a_run_that_was_cut_does_not_read_as_complete() -> None:
    kept: list[bool] = []
    result = run(ScriptedStage(), on_cell=lambda found: kept.append(found.extra["is_complete"]))
    assert kept == [False, False]
    assert result.extra["is_complete"]
