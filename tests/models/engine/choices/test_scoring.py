"""The law that choices are drawn from: exact weights under all terms, and the draw itself."""

from __future__ import annotations

import math
from collections import Counter

import msgspec
import numpy as np
import pytest
import torch
from scipy import stats

from models.engine.choices.scoring import draw_choice
from models.engine.choices.tree import ChoiceTree, Step
from models.protocol.messages import Chosen, Sampling
from tests.cases.choices.lists import CHOICES, choosing, enumerated, normalised
from tests.cases.distribution import Case, reference_probs
from tests.fakes.engines import EOS_ID, random_prompt, reference_model
from tests.models.engine.asked import TargetOf

pytestmark = pytest.mark.every_engine

PROMPT = random_prompt(3, 41)
LOGPROBS = [-8.0, -7.0, -9.5, -6.8, -12.0]
NUM_DRAWS = 4000
TERMS = Sampling(
    temperature=0.3,  # not of the weights, and neither is truncation
    top_p=0.5,
    top_k=2,
    seed=5,
    presence_penalty=1.2,
    frequency_penalty=0.7,
    repetition_penalty=1.3,
    logit_bias=((3, 1.5), (9, -2.0), (EOS_ID, 2.0)),
)


def test_weights_have_the_terms_of_the_request(target_of: TargetOf) -> None:
    terms = msgspec.structs.replace(TERMS, temperature=1.0, top_p=1.0, top_k=0)

    def processed(ids: list[int]) -> list[float]:
        with torch.inference_mode():
            logits = reference_model()(torch.tensor([ids])).logits[0, -1].numpy()
        case = Case(terms, prompt=tuple(PROMPT))
        return list(np.log(reference_probs(logits, case, ids[len(PROMPT) :])))

    choices = [*CHOICES, [3, 3, 3], [PROMPT[0], PROMPT[1]]]
    target = target_of(max_num_batched_tokens=256)
    target.open(sampling=TERMS, prompt_len=len(PROMPT))
    target.engine.submit(choosing("s", 1, PROMPT, choices), "r")
    (reply,) = target.drain()
    assert isinstance(reply, Chosen)
    assert reply.logprobs == pytest.approx(
        enumerated(PROMPT, choices, [EOS_ID], processed), abs=3e-4
    )


def draws(sampling: Sampling, position: int = 7) -> list[int]:
    counts = Counter(
        draw_choice(LOGPROBS, msgspec.structs.replace(sampling, seed=seed), position)
        for seed in range(NUM_DRAWS)
    )
    return [counts[index] for index in range(len(LOGPROBS))]


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_draws_follow_the_law_of_the_choices(temperature: float) -> None:
    probs = normalised(LOGPROBS, temperature)
    found = draws(Sampling(temperature=temperature))
    assert stats.chisquare(found, [p * NUM_DRAWS for p in probs]).pvalue > 1e-4
    wrong = normalised(LOGPROBS, temperature * 1.3)
    assert stats.chisquare(found, [p * NUM_DRAWS for p in wrong]).pvalue < 1e-4


@pytest.mark.parametrize(
    ("terms", "kept"),
    [
        (Sampling(top_k=2), {1, 3}),
        (Sampling(top_p=0.5), {1, 3}),
        (Sampling(min_p=0.2), {0, 1, 3}),
        (Sampling(temperature=0), {3}),
    ],
    ids=["top-k", "top-p", "min-p", "greedy"],
)
def test_truncation_is_of_the_choices(terms: Sampling, kept: set[int]) -> None:
    found = draws(terms)
    assert {index for index, count in enumerate(found) if count} == kept
    law = [p if index in kept else 0.0 for index, p in enumerate(normalised(LOGPROBS))]
    expected = [NUM_DRAWS * p / sum(law) for p in law if p]
    if len(kept) > 1:
        observed = [found[index] for index in sorted(kept)]
        assert stats.chisquare(observed, expected).pvalue > 1e-4


def test_a_draw_has_noise_of_its_position() -> None:
    seeds = range(200)
    one, other = (
        [draw_choice(LOGPROBS, Sampling(seed=seed), position) for seed in seeds]
        for position in (7, 8)
    )
    assert one != other
    assert one == [draw_choice(LOGPROBS, Sampling(seed=seed), 7) for seed in seeds]


def test_logprobs_far_from_zero_lose_no_difference() -> None:
    far = [-40_000.0 + logprob for logprob in LOGPROBS]
    seeds = range(200)
    assert [draw_choice(far, Sampling(seed=seed), 7) for seed in seeds] == [
        draw_choice(LOGPROBS, Sampling(seed=seed), 7) for seed in seeds
    ]


def test_every_node_is_of_one_branch_and_leaves_are_few() -> None:
    tree = ChoiceTree([[3], [3, 4], [3, 4, 5], [7, 8], [3, 9]])
    nodes = [node for branch in tree.branches for node in branch.nodes]
    assert sorted(nodes) == list(range(1, 7))
    assert [list(branch.tokens) for branch in tree.branches] == [[3, 4, 5], [7, 8], [3, 9]]
    assert [len(branch.nodes) for branch in tree.branches] == [3, 2, 1]


def test_a_tree_adds_up_the_steps_of_a_choice() -> None:
    tree = ChoiceTree([[3], [3, 4]])
    values = {Step(0, 3): -1.0, Step(1, None): -2.0, Step(1, 4): -4.0, Step(2, None): -8.0}
    asked = [step for node in range(3) for step in tree.steps(node)]
    assert sorted(map(str, asked)) == sorted(map(str, values))
    for step, value in values.items():
        tree.note(step, value)
    assert (tree.logprob(0), tree.logprob(1)) == (-3.0, -13.0)
    assert math.isfinite(sum(normalised([tree.logprob(0), tree.logprob(1)])))
