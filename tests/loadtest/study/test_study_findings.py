"""What is concluded from figures that are known."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.study.engines import Ask
from loadtest.study.findings import (
    batches,
    best_choices,
    choice_of,
    chosen_draft,
    expected,
    expected_best,
    last_paying_batch,
    shares_near_theory,
)
from loadtest.study.page import render
from loadtest.study.sections.speed import repeated


def line(way, speed_up, **more):
    return {"way": way, "speed_up": speed_up, "is_same_text": True, "tokens_per_round": 2.0} | more


def lines(adaptive=1.0, **by_k):
    fixed = [line(f"k={k.removeprefix('k')}", speed) for k, speed in by_k.items()]
    return [line("k=0", 1.0), *fixed, line("adaptive", adaptive)]


def content(parts, drafts=("small", "large")):
    settings = {
        "target": "t",
        "drafts": list(drafts),
        "prompts": "demo",
        "num_prompts": 1,
        "tokens": 9,
        "temperature": 0.7,
        "temperatures": [0.7],
        "k": [1, 3],
        "threads": 1,
        "dtype": "bfloat16",
    }
    machine = {"date": "d", "processor": "p", "cores": 2, "torch": "v"}
    timed = {name: part | {"seconds": 1.0} for name, part in parts.items()}
    return {"settings": settings, "parts": timed, "command": "c", "machine": machine}


def test_the_best_k_comes_with_those_that_are_as_good_around_it():
    choice = choice_of("code", "d", lines(1.5, k1=1.3, k2=1.58, k3=1.6, k5=1.56, k8=1.59))
    assert (choice.k, choice.speed_up, choice.as_good) == (3, 1.6, (2, 8))
    assert choice.adaptive == 1.5
    none = choice_of("json", "d", lines(k1=0.99, k3=0.8))
    assert (none.k, none.speed_up, none.as_good) == (0, 1.0, (0, 1))


def test_the_draft_to_take_is_the_fastest_over_all_tasks():
    parts = {
        "speedup/small/a": {"lines": lines(k1=1.1)},
        "speedup/small/b": {"lines": lines(k1=2.0)},
        "speedup/large/a": {"lines": lines(k1=1.6)},
    }
    assert chosen_draft(content(parts)) == "small"  # not all is measured: the first given
    assert "Take the draft" not in render(content(parts), [])
    parts["speedup/large/b"] = {"lines": lines(k1=1.6)}
    assert chosen_draft(content(parts)) == "large"
    assert [(one.task, one.draft) for one in best_choices(content(parts))] == [
        ("a", "large"),
        ("b", "small"),
    ]
    assert "Take the draft **large**" in render(content(parts), [])


def test_drafting_stops_paying_at_the_first_batch_without_gain():
    parts = {
        f"batch/small/{batch}": {"lines": lines(k1=speed), "costs": {"cost_ratio": 0.1}}
        for batch, speed in ((16, 1.1), (1, 1.5), (8, 0.9), (4, 1.2))
    }
    assert list(batches(content(parts), "small")) == [1, 4, 8, 16]
    assert last_paying_batch(content(parts), "small") == 4
    assert last_paying_batch(content({}), "small") is None
    assert "pays up to 4 requests" in render(content(parts), [])


def test_theory_takes_acceptance_costs_and_longer_passes():
    parts: dict[str, Any] = {
        "acceptance/small/a": {
            "temperatures": [
                {
                    **{"temperature": 0.7, "acceptance": {"value": 0.8}},
                    **{"hazards": [0.5, 0.5, 1.0], "num_rounds": 4, "num_drafted_rounds": 4},
                }
            ]
        },
        "costs/small": {"cost_ratio": 0.1, "growth": {"1": 1.0, "3": 1.5}},
    }
    one, three = expected(content(parts), "small", "a", 0.7)
    assert (one.tokens_per_round, three.tokens_per_round) == pytest.approx((1.8, 2.952))
    assert three.by_position == pytest.approx(1 + 0.5 + 0.25 + 0.25)
    assert three.speed_up == pytest.approx(2.952 / 1.3)
    assert three.with_growth == pytest.approx(2.0 / 1.8)
    best = expected_best(content(parts), "small", "a", 0.7)
    assert best is not None
    assert best == pytest.approx((1, 1.5 / 1.1))
    assert shares_near_theory(content(parts)) is None
    parts["speedup/small/a"] = {"lines": lines(k1=1.5, k3=1.2)}  # theory: 1.64, 2.27; 1.36, 1.11
    assert shares_near_theory(content(parts)) == {"speed_up": 0.5, "with_growth": 1.0}
    parts["acceptance/small/a"]["temperatures"][0]["num_drafted_rounds"] = 1  # of 4
    assert expected_best(content(parts), "small", "a", 0.7) == pytest.approx((1, 1.125 / 1.025))
    parts["costs/small"] = {"cost_ratio": 0.9, "growth": {}}
    assert expected_best(content(parts), "small", "a", 0.7) == (0, 1.0)
    assert expected(content(parts), "large", "a", 0.7) == []
    assert expected_best(content({}), "small", "a", 0.7) is None


def test_requests_that_are_repeated_have_other_seeds():
    asks = [Ask(prompt_ids=(n,), temperature=0.7, seed=n, max_tokens=4) for n in (0, 1, 2)]
    more = repeated(asks, 7)
    assert [ask.prompt_ids[0] for ask in more] == [0, 1, 2, 0, 1, 2, 0]
    assert len({ask.seed for ask in more}) == 7
    assert len(repeated(asks, 2)) == 2
