"""From sampling fields to the terms engines take: ids, tokenised words, what contradicts what."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deployments.api.bodies import parse
from deployments.api.requests import prepare_completions, prepare_turn
from deployments.api.sampling_terms import bad_word_ids
from deployments.api.schemas.requests import ChatCompletionRequest, CompletionRequest
from models.protocol.errors import InvalidRequest
from router.types import GenerationRequest
from tests.fakes.http import served_model, tiny_tokenizer

MODEL = served_model()
TOKENIZER = tiny_tokenizer()
VOCAB_SIZE = TOKENIZER.vocab_size


def chat(**fields: Any) -> GenerationRequest:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]} | fields
    asked = parse(json.dumps(body).encode(), ChatCompletionRequest)
    return prepare_turn(asked, MODEL, "r1")[0]


def completion(**fields: Any) -> GenerationRequest:
    body = {"model": "tiny", "prompt": "hi"} | fields
    asked = parse(json.dumps(body).encode(), CompletionRequest)
    [request], _ = prepare_completions(asked, MODEL, "r1")
    return request


def test_terms_are_taken_over():
    request = chat(
        logit_bias={"3": 1.5, "0": -100},
        min_tokens=7,
        stop_token_ids=[4, 5],
        include_stop_str_in_output=True,
        prompt_logprobs=3,
    )
    sampling = request.sampling
    assert sampling.logit_bias == ((3, 1.5), (0, -100.0))
    assert (sampling.min_tokens, sampling.num_prompt_logprobs) == (7, 3)
    assert request.stop_token_ids == (4, 5)
    assert request.includes_stop
    plain = chat()
    assert (plain.sampling.num_logprobs, plain.sampling.num_prompt_logprobs) == (-1, -1)
    assert not plain.includes_stop


def test_how_many_logprobs():
    assert chat(logprobs=True).sampling.num_logprobs == 0
    assert chat(logprobs=True, top_logprobs=5).sampling.num_logprobs == 5
    assert chat(logprobs=False).sampling.num_logprobs == -1
    assert completion(logprobs=0).sampling.num_logprobs == 0
    assert completion(logprobs=4).sampling.num_prompt_logprobs == -1
    echoed = completion(logprobs=4, echo=True, prompt_logprobs=2).sampling
    assert (echoed.num_logprobs, echoed.num_prompt_logprobs) == (4, 4)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (
            {"logit_bias": {str(VOCAB_SIZE): 1}},
            "logit_bias",
            f"token id {VOCAB_SIZE} is outside the vocabulary of {VOCAB_SIZE}",
        ),
        ({"stop_token_ids": [-1]}, "stop_token_ids", "token id -1 is outside"),
        (
            {"min_tokens": 6, "max_tokens": 5},
            "min_tokens",
            "at most max_tokens, 5 (got 6)",
        ),
        ({"top_logprobs": 2}, "top_logprobs", "only allowed with logprobs: true (got 2)"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "with stream: false"),
    ],
)
def test_refusals_name_field_and_value(fields, param, message):
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    assert caught.value.param == param
    assert message in caught.value.message


def ids(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER.encode_piece(text))


def test_a_bad_word_is_one_at_the_start_and_one_behind_a_space():
    assert ids(" bear")[-len(ids("bear")) :] != ids("bear")  # one token with its space
    assert bad_word_ids(["bear"], TOKENIZER) == (ids("bear"), ids(" bear"))
    assert bad_word_ids(["  bear", "bear"], TOKENIZER) == (ids("bear"), ids(" bear"))


def test_a_form_that_forbids_nothing_more_is_left_out():
    assert ids(" zq") == (*ids(" "), *ids("zq"))
    assert bad_word_ids(["zq"], TOKENIZER) == (ids("zq"),)


def test_bad_words_of_a_request_are_tokenised():
    assert chat(bad_words=["bear"]).sampling.bad_words == (ids("bear"), ids(" bear"))
    assert chat().sampling.bad_words == ()
