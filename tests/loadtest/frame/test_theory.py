"""The calculator's formulas, and what it refuses."""

from __future__ import annotations

import pytest

from loadtest.__main__ import main
from loadtest.frame.expected import advice, beside_theory, theory_table
from loadtest.frame.runs import MEASURES, Answer, Run
from loadtest.frame.theory import (
    best_length,
    constant_tokens,
    position_tokens,
    speed_up,
    step_share,
    theory_lines,
)
from loadtest.frame.ways import Way
from router.stats import SpeculationStats


@pytest.mark.parametrize(
    ("acceptance", "cost", "best"),
    [
        (0.0, 0.1, 0),  # nothing is ever accepted
        (0.3, 0.3, 0),  # a + 1 tokens for 1 + c: 1.0, no gain
        (0.3, 0.2, 1),
        (0.8, 0.1, 6),
        (0.8, 0.0, 16),  # what costs nothing is drafted as far as one looks
        (1.0, 0.5, 16),
    ],
)
def test_the_best_k(acceptance, cost, best):
    assert best_length(acceptance, cost) == best
    own = speed_up(constant_tokens(acceptance, best), best, cost)
    for k in range(17):
        assert own >= speed_up(constant_tokens(acceptance, k), k, cost)


def test_the_command_prints_tokens_speed_up_best_k_and_a_table_and_draws_them(capsys, tmp_path):
    file = tmp_path / "theory.png"
    assert main(["--theory", "0.8", "0.1", "5", "--output", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "= 3.69" in printed
    assert "E / (1 + k c) = 2.46" in printed
    assert "best k = 6, with a speed-up of 2.47" in printed
    table = {line.split()[0]: line.split()[1:] for line in printed.splitlines()[7:]}
    assert table["5"] == ["3.69", "2.46"]
    assert table["6"] == ["3.95", "2.47", "best"]
    assert file.read_bytes().startswith(b"\x89PNG")


def test_a_cost_may_be_named_either_way_and_the_command_says_which(capsys):
    assert main(["--theory", "0.8", "0.05", "5"]) == 0
    first, *below = capsys.readouterr().out.splitlines()
    assert first == (
        "c = 0.05 is draft over target: a draft step takes 0.05 of a pass, "
        "a pass as long as 20 of them"
    )
    assert main(["--theory", "0.8", "20", "5"]) == 0
    other, *same = capsys.readouterr().out.splitlines()
    assert other.startswith("c = 20 is above 1, so it is target over draft: a pass takes as long")
    assert same == below
    assert "speed-up E / (1 + k c) = 2.95" in below  # 3.69 / 1.25


def test_a_cost_of_nothing_and_of_a_whole_pass_are_taken_as_they_are():
    assert next(iter(theory_lines(0.8, 0.0, 5))).endswith("a draft step takes 0 of a pass")
    assert step_share(1.0) == 1.0
    assert step_share(1.25) == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("acceptance", "k", "tokens"),
    [
        *((0.0, 5, 1.0), (0.5, 1, 1.5), (0.5, 3, 1.875), (0.8, 5, 3.68928), (0.8, 8, 4.3289)),
        (1.0, 8, 9.0),
    ],
)
def test_the_formula_of_constant_acceptance(acceptance, k, tokens):
    assert constant_tokens(acceptance, k) == pytest.approx(tokens, abs=1e-4)
    assert position_tokens([acceptance] * k, k) == pytest.approx(constant_tokens(acceptance, k))


def test_the_formula_by_position():
    assert position_tokens([0.5, 0.8, 0.25], 3) == pytest.approx(1 + 0.5 + 0.4 + 0.1)
    assert position_tokens([0.5, 0.8, 0.25], 2) == pytest.approx(1.9)


def measured(drafted: tuple[int, ...], accepted: tuple[int, ...]) -> dict[str, float]:
    stats = SpeculationStats(
        num_rounds=len(drafted), per_step_drafted=drafted, per_step_accepted=accepted
    )
    answer = Answer(
        content=(), num_tokens=4, num_first=1, began_s=0.0, first_s=0.5, ended_s=1.0, stats=stats
    )
    run = Run(answers=[answer], batch=1)
    return {name: find(run) for name, find in MEASURES.items()}


def test_tokens_behind_a_rejection_or_a_draft_were_not_at_risk():
    """Counting all drafted tokens would give 6 of 20."""
    found = measured((4,) * 5, (0, 2, 4, 0, 0))
    assert found["token_acceptance"] == pytest.approx(6 / 10)
    places = [found[f"accepted_at_{place}"] for place in range(1, 6)]
    assert places == pytest.approx([2 / 5, 1, 1 / 2, 1, 0])
    assert position_tokens(places, 4) == pytest.approx(found["tokens_per_round"]) == 11 / 5
    short = measured((3, 3, 2), (1, 3, 0))
    assert [short[f"accepted_at_{place}"] for place in (1, 2, 3)] == pytest.approx([2 / 3, 0.5, 1])


def test_theory_takes_the_length_of_each_round():
    found = measured((1, 3), (1, 0))
    assert found["token_acceptance"] == 0.5
    assert found["theory_tokens"] == pytest.approx((1.5 + 1.875) / 2)


def row(way: str, rate: float, **figures: float) -> dict[str, object]:
    runs = {"tokens_per_s": [rate], **{name: [value] for name, value in figures.items()}}
    return {"stage": "engine", "workload": "code", "batch": 1, "way": way, "runs": runs}


def test_measured_speed_stands_beside_both_forms_of_theory():
    """A pass takes 10 ms and a step 1; every second round has a draft."""
    three = {
        **{"token_acceptance": 0.8, "tokens_per_round": 2.0, "drafted_share": 0.5},
        **{"draft_ms": 1.5, "verify_ms": 12.0, "accepted_at_1": 0.5, "accepted_at_2": 0.5},
    }
    rows = [row("plain", 10.0, verify_ms=10.0), row("k=3", 15.0, **three), row("live", 14.8)]
    ways = {"plain": Way(k=0), "k=3": Way(k=3), "live": Way()}
    [one] = beside_theory(rows, ways)
    assert (one["measured"], one["cost"], one["constant"]) == pytest.approx((1.5, 0.1, 2.952))
    assert one["speed_up"] == pytest.approx(2.952 / 1.3)
    assert one["by_position"] == pytest.approx(1.75)
    assert one["with_growth"] == pytest.approx(1.375 / 1.35)
    assert "| engine, code, 1 | k=3 | 1.50 | 0.80 | 0.10 |" in theory_table([one])[2]
    assert list(advice(rows, "plain")) == [
        "engine, code, 1: k=3 is 1.50 times plain; as good: live"
    ]
    assert not beside_theory(rows[1:], ways)
