"""Default sampling: where it comes from, what comes before it, what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deployments.api.responses.job import responses_job
from deployments.api.responses.shapes import ResponsesRequest
from deployments.api.schemas.sampling_defaults import SamplingDefaults, sampling_defaults
from models.protocol.messages import Sampling
from tests.deployments.api.asking import chat_request, read
from tests.fakes.http import served_model

FILE = {"temperature": 0.6, "top_k": 20, "top_p": 0.8, "do_sample": True, "max_new_tokens": 9}
NOTHING = SamplingDefaults()
OF_FILE = sampling_defaults("auto", FILE, NOTHING)


def sampled(**fields: Any) -> Sampling:
    return chat_request(served_model(sampling=OF_FILE), **fields).sampling


def test_the_checkpoints_values_are_for_fields_that_a_request_does_not_have():
    own = sampled()
    assert (own.temperature, own.top_k, own.top_p) == (0.6, 20, 0.8)
    asked = sampled(temperature=0, top_k=0, top_p=None)
    assert (asked.temperature, asked.top_k, asked.top_p) == (0.0, 0, 0.8)


def test_a_response_says_what_it_was_sampled_with():
    model = served_model(sampling=OF_FILE)
    asked = read(ResponsesRequest, {"model": "tiny", "input": "hi", "top_p": 0.5})
    job = responses_job(asked, model)
    [request] = job.requests
    assert (request.sampling.temperature, request.sampling.top_p) == (0.6, 0.5)
    opening = json.loads(job.writer.opening()[0])["response"]
    assert (opening["temperature"], opening["top_p"]) == (0.6, 0.5)


def test_look_aheads_take_no_default_penalty():
    model = served_model(sampling=SamplingDefaults(repetition_penalty=1.2))
    reward = {"kind": "words", "required": ["dog"], "forbidden": None}
    steered = {"lookahead": {"method": "cdlh", "reward": reward}}
    asked = [chat_request(model, **fields).sampling for fields in ({}, steered)]
    assert [one.repetition_penalty for one in asked] == [1.2, 1.0]


def test_an_operator_replaces_values_or_drops_them_all(tmp_path):
    own = SamplingDefaults(temperature=0.1)
    assert sampling_defaults("auto", FILE, own).given == {
        "temperature": 0.1,
        "top_p": 0.8,
        "top_k": 20,
    }
    assert sampling_defaults("vllm", FILE, own) == own
    (tmp_path / "generation_config.json").write_text('{"min_p": 0.1, "top_k": null}')
    assert sampling_defaults(str(tmp_path), FILE, NOTHING).given == {"min_p": 0.1}


@pytest.mark.parametrize(
    ("content", "words"),
    [({"top_p": 3}, "generation_config.json: top_p: .*3"), ({"temperature": "hot"}, "hot")],
)
def test_a_wrong_value_is_refused_by_file_and_key(content, words):
    with pytest.raises(ValueError, match=words):
        sampling_defaults("auto", content, NOTHING)
    assert sampling_defaults("vllm", content, NOTHING) == NOTHING


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"router\.generation_config: .*"):
        sampling_defaults(str(tmp_path), {}, NOTHING)
