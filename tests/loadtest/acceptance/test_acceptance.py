"""Formulas, estimators on simulated rounds, rounds of real engines, and the command."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from loadtest.acceptance.__main__ import main, rules_of
from loadtest.acceptance.rounds import EnginePair
from loadtest.acceptance.theory import analyse, constant_tokens, position_tokens
from loadtest.report.prompts import demo_prompts
from models.protocol.messages import Sampling
from router.types import Finished
from tests.harness.local import DEMO, IdDetokenizer, local_service, make_request

KS = range(1, 9)


@pytest.mark.parametrize(
    ("acceptance", "k", "tokens"),
    [(0.0, 5, 1.0), (0.5, 1, 1.5), (0.5, 3, 1.875), (0.8, 8, 4.3289), (1.0, 8, 9.0)],
)
def test_the_formula_of_constant_acceptance(acceptance, k, tokens):
    assert constant_tokens(acceptance, k) == pytest.approx(tokens, abs=1e-4)
    if acceptance < 1:
        assert constant_tokens(acceptance, k) == pytest.approx(
            (1 - acceptance ** (k + 1)) / (1 - acceptance)
        )
    assert position_tokens([acceptance] * k, k) == pytest.approx(constant_tokens(acceptance, k))


def test_the_formula_by_position():
    assert position_tokens([0.5, 0.8, 0.25], 3) == pytest.approx(1 + 0.5 + 0.4 + 0.1)
    assert position_tokens([0.5, 0.8, 0.25], 2) == pytest.approx(1.9)


def simulate(
    hazards: list[float], num_prompts: int, num_rounds: int, seed: int, spread: float = 0.0
) -> dict[int, list[list[int]]]:
    """Rounds whose j-th token stands with hazards[j] plus what is the prompt's own."""
    choose = random.Random(seed)
    ease = [choose.uniform(-spread, spread) for _ in range(num_prompts)]

    def accepted(k: int, own: float) -> int:
        return next((j for j in range(k) if choose.random() >= hazards[j] + own), k)

    return {
        k: [[accepted(k, own) for _ in range(num_rounds)] for own in ease]
        for k in range(1, len(hazards) + 1)
    }


@pytest.mark.parametrize("acceptance", [0.3, 0.6, 0.9])
def test_a_known_acceptance_is_recovered_and_the_formula_holds(acceptance):
    analysis = analyse(simulate([acceptance] * 8, num_prompts=60, num_rounds=50, seed=3))
    assert analysis.acceptance.value == pytest.approx(acceptance, abs=0.01)
    assert analysis.acceptance.low < acceptance < analysis.acceptance.high
    assert [line.k for line in analysis.lines] == list(KS)
    for line in analysis.lines:
        assert line.num_rounds == 3000
        assert line.constant == pytest.approx(constant_tokens(analysis.acceptance.value, line.k))
        assert line.measured.value == pytest.approx(constant_tokens(acceptance, line.k), rel=0.04)
        assert line.by_position == pytest.approx(line.constant, rel=0.04)


def test_known_hazards_are_recovered_where_the_constant_formula_fails():
    hazards = [0.4, 0.7, 0.9, 0.95]
    analysis = analyse(simulate(hazards, num_prompts=60, num_rounds=100, seed=4))
    assert analysis.hazards == pytest.approx(hazards, abs=0.02)
    assert analysis.num_at_risk == sorted(analysis.num_at_risk, reverse=True)
    for line in analysis.lines:
        excess = line.by_position_excess
        assert excess.value == pytest.approx(line.by_position - line.measured.value)
        assert excess.low < 0.02
        assert excess.high > -0.02
    first, last = analysis.lines[0], analysis.lines[-1]
    assert first.constant_excess.low > 0.05
    assert last.constant_excess.high < -0.05
    assert last.by_position == pytest.approx(position_tokens(hazards, 4), rel=0.03)


def test_what_lies_behind_a_rejection_does_not_count():
    """Counting all drafted tokens would give 6 of 20."""
    analysis = analyse({4: [[0, 2], [4, 0, 0]]})
    assert analysis.acceptance.value == pytest.approx(6 / 10)
    assert analysis.num_at_risk == [5, 2, 2, 1]
    assert analysis.hazards == pytest.approx([2 / 5, 1, 1 / 2, 1])
    assert analysis.lines[0].measured.value == pytest.approx(11 / 5)
    # With a single k nothing is pooled, and the sum over positions is the measured mean itself.
    assert analysis.lines[0].by_position == pytest.approx(11 / 5)


def test_a_position_that_nobody_reached_counts_with_the_overall_rate():
    analysis = analyse({1: [[1, 0]], 3: [[0, 0]]})
    assert analysis.num_at_risk == [4, 0, 0]
    assert analysis.hazards == pytest.approx([0.25, 0.25, 0.25])


def test_intervals_cover_the_truth_as_often_as_they_say():
    """Prompts differ much more than rounds: intervals that took rounds as independent fail here."""
    truth = constant_tokens(0.5, 1)
    num_covered = 0
    for seed in range(100):
        analysis = analyse(simulate([0.5], num_prompts=40, num_rounds=30, seed=seed, spread=0.4))
        measured = analysis.lines[0].measured
        assert measured.low < measured.value < measured.high
        num_covered += measured.low < truth < measured.high
    assert 86 <= num_covered <= 100


@pytest.mark.parametrize(
    ("accepted", "message"),
    [
        ({}, "at least one"),
        ({1: []}, "at least one"),
        ({1: [[0]], 2: [[0], [1]]}, "same prompts"),
        ({2: [[0, 3]]}, "rounds must accept 0 to 2 tokens"),
        ({2: [[]]}, "rounds must accept"),
    ],
)
def test_impossible_rounds_are_refused(accepted, message):
    with pytest.raises(ValueError, match=message):
        analyse(accepted)


def test_all_rules_are_one_at_temperature_zero():
    rules = rules_of(["coupled", "rejection"], [1.0, 0.0, 0.5], seed=4)
    assert list(rules) == [
        "coupled T=1",
        "rejection T=1",
        "greedy",
        "coupled T=0.5",
        "rejection T=0.5",
    ]
    assert rules["greedy"] == Sampling(temperature=0.0, seed=4)
    assert rules["rejection T=0.5"].verification == "rejection"


# --- rounds of real engines ----------------------------------------------------------------------


def make_pair(pair: Path, batch: int = 3) -> EnginePair:
    return EnginePair(pair, dtype="bfloat16", batch=batch, max_model_len=1024, num_threads=1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_agrees_with_itself(tiny_target, tmp_path, temperature):
    for name in ("target", "draft"):
        shutil.copytree(tiny_target, tmp_path / name)
    prompts = [[5, 6, 7], [8, 9], [10], [11, 12, 13, 14], [15]]
    sampling = Sampling(temperature=temperature, seed=3)
    for k in (1, 3):
        rounds = make_pair(tmp_path, batch=2).run(prompts, sampling, k, max_tokens=20)
        assert len(rounds) == len(prompts)
        assert {accepted for each in rounds for accepted in each} == {k}
        assert max(len(each) for each in rounds) == -(-20 // (k + 1))


def test_distributions_travel_with_a_draft_of_the_rejection_rule(tiny_target, tmp_path):
    """A model agrees with itself but for the tail that drafts leave out. Tokens that came
    without their distribution would count as certain and be refused far more often.
    """
    for name in ("target", "draft"):
        shutil.copytree(tiny_target, tmp_path / name)
    sampling = Sampling(temperature=1.0, seed=3, verification="rejection")
    pair = make_pair(tmp_path, batch=10)
    rounds = pair.run([[i] for i in range(2, 22)], sampling, 2, max_tokens=30)
    assert analyse({2: rounds}).acceptance.value > 0.5  # without them 0.03


@pytest.mark.parametrize(("temperature", "k"), [(0.0, 3), (1.0, 5)])
async def test_rounds_are_those_of_the_router(temperature, k):
    """The router's loop over the same engines has the same fate of the same drafts."""
    max_tokens = 40
    prompts = demo_prompts(3, seed=5, kind="story")
    sampling = Sampling(temperature=temperature, seed=11)
    rounds = make_pair(DEMO).run(prompts, sampling, k, max_tokens)
    async with local_service(DEMO / "target", DEMO / "draft") as service:
        for index, prompt in enumerate(prompts):
            request = make_request(
                f"r{index}",
                prompt,
                k=k,
                max_tokens=max_tokens,
                temperature=temperature,
                seed=11 + index,
            )
            sizes: list[int] = []
            async for event in service.generator.generate(request, IdDetokenizer()):
                if isinstance(event, Finished):
                    theirs = drafted_rounds(sizes, event, k)
                else:
                    sizes.append(len(event.token_ids))
            starts = [sum(rounds[index][:i]) + i for i in range(len(rounds[index]))]
            ours = dict(zip(starts, rounds[index], strict=True))
            # Rounds begin elsewhere at first; from the first rejection on at the same tokens.
            common = theirs.keys() & ours.keys()
            assert len(common) >= 3
            assert {start: theirs[start] for start in common} == {i: ours[i] for i in common}


def drafted_rounds(sizes: list[int], finished: Finished, k: int) -> dict[int, int]:
    """Accepted tokens of the rounds that had a whole draft, by the token they begin at.

    The first rounds have none while the draft model prefills, and the very last token has no room
    for one.
    """
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    if starts[-1] == finished.num_completion_tokens - 1:
        del starts[-1]
    stats = finished.speculation
    drafted, accepted = stats.per_step_drafted, stats.per_step_accepted
    starts = starts[len(starts) - len(drafted) :]
    return {start: accepted[i] for i, start in enumerate(starts) if drafted[i] == k}


def test_the_command_prints_writes_and_draws(tmp_path, capsys):
    output = tmp_path / "new" / "acceptance.json"
    argv = ["--prompts", "3", "--max-tokens", "12", "--k", "2", "1", "--workload", "orders"]
    argv += ["stories", "--output", str(output)]
    main(argv)
    printed = capsys.readouterr().out
    assert "orders, coupled T=1: a = 0." in printed
    assert "stories, greedy: a = " in printed
    content = json.loads(output.read_text(encoding="utf-8"))
    assert content["command"].startswith("python -m loadtest.acceptance --prompts 3")
    assert content["settings"]["seed"] == 1
    assert content["machine"]["torch"]
    studies = content["studies"]
    assert [(study["workload"], study["rule"]) for study in studies] == [
        (workload, rule)
        for workload in ("orders", "stories")
        for rule in ("coupled T=1", "rejection T=1", "greedy")
    ]
    for study in studies:
        analysis = study["analysis"]
        assert [line["k"] for line in analysis["lines"]] == [1, 2]
        for line in analysis["lines"]:
            assert 1.0 <= line["measured"]["low"] <= line["measured"]["high"] <= line["k"] + 1
            assert f"{line['measured']['value']:.3f} [" in printed
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
