"""Forbidden tokens and biases, by hand, and in the one score function."""

import pytest
import torch

from models.protocol.messages import Sampling
from models.sampling.logits import process_logits
from models.sampling.token_rules import forbid, forbidden_ids
from tests.fakes.engines import (
    CONSTRAINT,
    EOS_ID,
    Client,
    Link,
    ScriptedMasks,
    lowest_third,
    make_draft,
    make_target,
    random_prompt,
    run_clients,
)

EOS = (9, 8)
WORDS = Sampling(bad_words=((4,), (1, 2), (1, 1, 3)))


@pytest.mark.parametrize(
    ("generated", "expected"),
    [
        ([], [4]),
        ([1], [4, 2]),
        ([1, 1], [4, 2, 3]),
        ([1, 1, 5], [4]),
        ([5, 1, 1], [4, 2, 3]),
        ([2], [4]),
    ],
)
def test_a_bad_words_last_token_is_forbidden_behind_its_others(generated, expected):
    assert forbidden_ids(WORDS, EOS, generated) == expected


def test_no_eos_before_min_tokens():
    sampling = Sampling(min_tokens=2)
    assert [forbidden_ids(sampling, EOS, [7] * n) for n in range(4)] == [[9, 8], [9, 8], [], []]
    assert forbidden_ids(sampling, (), []) == []


def test_forbidden_ids_are_forbidden_in_their_row_alone():
    scores = torch.arange(12.0).view(3, 4)
    found = forbid(scores, [[3, 0, 0], [], [1, -1, 4, 99]])
    assert found.isneginf().nonzero().tolist() == [[0, 0], [0, 3], [2, 1]]
    assert torch.equal(scores, torch.arange(12.0).view(3, 4))  # the input is not changed
    assert forbid(scores, [[], [], [7]]) is scores


def test_a_row_is_never_left_with_nothing():
    logits = torch.zeros(2, 10)
    mask = (1 << 9).to_bytes(4, "little")  # a complete JSON text: only its end may follow
    scores = process_logits(logits, [Sampling()] * 2, [mask, None], forbidden=[[9], [9]])
    assert scores[0].isfinite().nonzero()[:, 0].tolist() == [9]
    assert not scores[1, 9].isfinite()


@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_a_bias_is_added_before_penalties_and_temperature(temperature):
    sampling = Sampling(temperature=temperature, logit_bias=((1, 2.0), (1, 0.5), (3, -100.0)))
    scores = process_logits(torch.ones(1, 4), [sampling], [None])[0]
    expected = torch.tensor([1.0, 3.5, 1.0, -99.0]) / (temperature or 1.0)
    assert torch.equal(scores, expected)


def test_a_bias_does_not_bring_back_what_is_forbidden():
    sampling = Sampling(temperature=0, logit_bias=((1, 100.0), (99, 1.0), (-2, 1.0)))
    scores = process_logits(torch.ones(1, 4), [sampling], [None], forbidden=[[1]])
    assert scores[0].tolist() == [1.0, -torch.inf, 1.0, 1.0]


@pytest.mark.parametrize("k", [0, 2])
def test_a_grammar_that_ends_the_text_outweighs_min_tokens(k):
    """Behind the sixth token the grammar allows the eos alone: it is drawn, nothing fails."""
    target = make_target(ScriptedMasks(lowest_third))
    client = Client(
        session_id="s",
        prompt=random_prompt(1, 9),
        sampling=Sampling(seed=3, min_tokens=30, bad_words=((EOS_ID,),)),
        num_tokens=20,
        target_link=Link(target),
        draft_link=Link(make_draft(ScriptedMasks(lowest_third), noise=0.02)) if k else None,
        num_draft_tokens=lambda: k,
        constraint=CONSTRAINT,
        eos_ids=[EOS_ID],
    )
    run_clients([client])
    assert client.failures == []
    assert len(client.text) == 7
    assert client.text[-1] == EOS_ID
