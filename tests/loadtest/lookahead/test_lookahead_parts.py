"""Tasks, claims, frontiers, prices and the tuner's rule, without a model."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from deployments.api.lookahead.fields import LookaheadOptions
from loadtest.lookahead.compare import claims_of, ratio_to
from loadtest.lookahead.drafts import machine_of, price_ms
from loadtest.lookahead.runs import Text
from loadtest.lookahead.tasks import TASKS
from loadtest.lookahead.terms import CDLH, CDSL, GREEDY, Terms
from loadtest.lookahead.tune import Candidate, Grid
from loadtest.lookahead.vary import mark_frontier
from models.rewards.registry import Rewards


@pytest.mark.parametrize("name", TASKS)
def test_a_task_draws_the_same_prompts_and_no_set_is_on_both_sides(name: str) -> None:
    task = TASKS[name]
    few, more = task.draw("validation", 5), task.draw("validation", 20)
    assert list(more.asks[:5]) == list(few.asks)
    for ask in more.asks:
        Rewards().make(ask.reward)
    if name == "concepts":
        sides = [
            {frozenset(ask.reward["concepts"]) for ask in task.draw(side, 100).asks}
            for side in ("validation", "held-out")  # type: ignore[arg-type]
        ]
        assert not sides[0] & sides[1]


def scored(task: str, text: str, place: int = 0, **fields: Any) -> bool:
    reward = dict(TASKS[task].draw("validation", place + 1).asks[place].reward) | fields
    return Rewards().make(reward).score(text, "", is_end=True).is_met


def test_rewards_of_tasks_know_good_from_bad() -> None:
    assert scored("concepts", "A dog runs.", concepts=["dog", "run"])
    assert not scored("concepts", "A dog.", concepts=["dog", "run"])
    assert scored("harmless", "The dog was lost. A friend came.")
    assert not scored("harmless", "The dog was lost. A friend cried.")
    assert not scored("harmless", "The dog was lost.")
    word = TASKS["syntactic"].draw("validation", 1).asks[0].reward["parts"][1]["reward"]["concepts"]
    assert scored("syntactic", f"After lunch, a dog is near the {word[0]}.")
    assert not scored("syntactic", f"A dog is near the {word[0]}.")
    assert not scored("syntactic", f"After lunch, a dog is near the {word[0]}")
    parts = TASKS["numeric"].draw("validation", 1).asks[0].reward["parts"]
    low, [concept] = parts[0]["reward"]["min"], parts[1]["reward"]["concepts"]
    assert scored("numeric", f"{concept} " * low)
    assert scored("numeric", f"{concept} " * (low + 2))
    assert not scored("numeric", f"{concept} " * (low + 3))


def line(table: str, way: str, met: list[int], passes: float, rate: float) -> dict[str, Any]:
    """A line of four texts of ten tokens, each of so many passes a token."""
    each = {"tokens_of_each": [10] * 4, "passes_of_each": [10 * passes] * 4}
    return {"table": table, "way": way, "met": met, "runs": [rate], **each} | {
        "steps_of_each": [10 * passes] * 4
    }


@pytest.mark.parametrize(
    ("cdsl", "are_met"),
    [
        (line("gain", CDSL, [1, 1, 1, 0], 1.0, 30.0), [True] * 5),
        (line("gain", CDSL, [1, 0, 0, 0], 3.0, 20.0), [False] * 5),
    ],
)
def test_claims_are_of_satisfaction_and_speed_within_a_table(
    cdsl: dict[str, Any], are_met: list[bool]
) -> None:
    lines = [
        line("", GREEDY, [1, 0, 0, 0], 0.5, 90.0),
        line("paper", CDLH, [0, 0, 0, 0], 50.0, 1.0),
        line("gain", CDLH, [1, 1, 1, 0], 5.0, 10.0),
        line("paper", CDSL, [0, 0, 0, 0], 60.0, 0.5),
        cdsl,
    ]
    assert [claim.is_met for claim in claims_of("gain", lines)] == are_met


def test_what_is_recommended_is_what_a_request_gets_that_says_nothing() -> None:
    asked = Terms().lookahead({"kind": "words"})
    options = LookaheadOptions(method="cdsl", reward={"kind": "words"})
    assert LookaheadOptions.model_validate(asked) == options


def test_a_ratio_is_of_all_prompts_together() -> None:
    above = line("", CDLH, [1] * 4, 4.0, 1.0) | {"passes_of_each": [40, 40, 40, 160]}
    below = line("", CDSL, [1] * 4, 2.0, 1.0)
    ratio = ratio_to(above, below)
    assert ratio.value == pytest.approx(280 / 80)
    assert 2.0 <= ratio.low < ratio.value < ratio.high <= 8.0


def test_the_frontier_has_what_nothing_beats() -> None:
    points = [(0.5, 1.0), (0.9, 2.0), (0.8, 3.0), (0.9, 2.5), (0.5, 1.0)]
    lines = [{"hard": {"value": hard}, "passes_per_token": cost} for hard, cost in points]
    mark_frontier(lines)
    assert [one["is_best"] for one in lines] == [True, True, False, False, True]


def test_a_price_is_passes_and_steps_on_the_pairs_curves() -> None:
    counts = {"passes_per_token": 8.0, "verified_per_token": 0.0, "draft_steps_per_token": 0.0}
    small, large = machine_of(6.7, 0.125), machine_of(175.0, 1.3)
    cdlh = Terms(method="cdlh")
    assert price_ms(counts, cdlh, small) == pytest.approx(8 * small.pass_ms(4, 4))
    drafted = {"passes_per_token": 0.5, "verified_per_token": 0.5, "draft_steps_per_token": 4.0}
    cost = price_ms(drafted, Terms(length=8), small)
    assert cost == pytest.approx(0.5 * small.pass_ms(9, 1) + 4 * small.step_ms(1))
    assert small.step_ms(1) < small.pass_ms(1, 1) < large.pass_ms(1, 1)
    assert small.pass_ms(4, 4) == small.pass_ms(1, 1)  # its weights take longer than its products
    assert small.pass_ms(1000, 1) > 2 * small.pass_ms(1, 1)


def text(hard: bool, num_passes: float) -> Text:
    return Text(
        token_ids=(1, 2),
        prompt_ids=(0,),
        text="",
        soft=float(hard),
        hard=hard,
        num_passes=num_passes,
        num_steps=0,
        num_verified=0,
        num_draft_steps=4,
        num_reward_calls=0,
        states=Counter(),
    )


def test_the_tuner_wants_enough_satisfaction_first_and_then_the_lowest_cost() -> None:
    terms = Terms()
    good = Candidate(terms, [text(True, 8.0), text(True, 8.0)])
    cheap = Candidate(terms, [text(True, 2.0), text(False, 2.0)])
    assert good.cost(0.5) == pytest.approx((16 + 0.5 * 8) / 4)
    assert min((good, cheap), key=lambda one: one.rank(0.9, 0.1)) is good
    assert min((good, cheap), key=lambda one: one.rank(0.5, 0.1)) is cheap
    grid = Grid(
        lengths=[2, 4], accept_thresholds=[0.0], reward_thresholds=[0.0, 1.0], commits=["gain"]
    )
    assert [(one.length, one.reward_threshold) for one in grid.of(terms)] == [
        (2, 0.0),
        (2, 1.0),
        (4, 0.0),
        (4, 1.0),
    ]
