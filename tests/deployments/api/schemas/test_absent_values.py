"""What asks for nothing is absent, at any depth; what a client owns keeps its nulls."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.api.responses.shapes import ResponsesRequest
from deployments.api.schemas.requests import ChatCompletionRequest, CompletionRequest
from models.protocol.errors import InvalidRequest
from tests.deployments.api.asking import read

TOOL = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"default": None}}}}
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"type": "function", "function": TOOL}],
}
RESPONSE: dict[str, Any] = {"model": "m", "input": "hi", "tools": [{"type": "function", **TOOL}]}


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": TOOL | {"strict": None}, "cache_control": {}}]},
        {"tool_choice": None, "reasoning_effort": None, "verbosity": None, "anything": None},
        {"response_format": None, "lookahead": None, "prediction": None},
        {"speculation": {"k": None, "drafter": None, "enabled": None}},
        {"temperature": None, "stop": None, "speculation": None},
        {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
        {"n": 1, "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}},
        {"logprobs": False, "min_p": 0.0},
        {"logit_bias": {"5": None}},
        {"include_reasoning": True, "client_metadata": {"a": 1}, "reasoning": {"effort": None}},
        {"top_logprobs": None, "n": 1.0, "use_beam_search": False},
    ],
)
def test_a_chat_reads_what_asks_for_nothing_as_absent(fields):
    assert read(ChatCompletionRequest, CHAT, **fields) == read(ChatCompletionRequest, CHAT)


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning": {"effort": None, "summary": None}},
        {"include": ["reasoning.encrypted_content"]},
        {"text": {"format": {"type": "text", "schema": None}, "verbosity": None}},
        {"client_metadata": {}, "include_reasoning": True},
        {"metadata": None},
        {"tools": [{"type": "function", **TOOL, "description": None, "defer_loading": True}]},
    ],
)
def test_a_response_reads_what_asks_for_nothing_as_absent(fields):
    assert read(ResponsesRequest, RESPONSE, **fields) == read(ResponsesRequest, RESPONSE)


def test_a_number_without_a_fraction_is_an_integer():
    text = {"model": "m", "prompt": [1.0, 2], "seed": 7.0, "stop_token_ids": [3.0]}
    parsed = read(CompletionRequest, text, speculation={"k": 2.0})
    assert (parsed.prompt, parsed.seed, parsed.stop_token_ids) == ([[1, 2]], 7, [3])
    assert parsed.speculation.k == 2
    with pytest.raises(InvalidRequest, match=r"seed: .*1\.5"):
        read(CompletionRequest, text, seed=1.5)


def test_nulls_that_a_client_owns_stay():
    parsed = read(ChatCompletionRequest, CHAT, chat_template_kwargs={"a": None})
    assert parsed.tools[0].function.parameters["properties"] == {"a": {"default": None}}
    assert parsed.template_settings == {"a": None}
    assert read(ResponsesRequest, RESPONSE, metadata={"a": None}).metadata == {"a": None}


def test_hints_are_variables_of_the_template():
    parsed = read(ChatCompletionRequest, CHAT, reasoning_effort="none", verbosity="low")
    hints = {"reasoning_effort": "none", "enable_thinking": False, "verbosity": "low"}
    assert parsed.template_settings == hints
    own = read(
        ChatCompletionRequest,
        CHAT,
        reasoning_effort="none",
        chat_template_kwargs={"enable_thinking": True},
    )
    assert own.template_settings["enable_thinking"] is True


def test_tools_of_others_are_left_out_beside_functions_unless_one_must_be_called():
    tools = [{"type": "web_search"}, *RESPONSE["tools"]]
    parsed = read(ResponsesRequest, RESPONSE, tools=tools)
    assert [tool.name for tool in parsed.tools] == ["f"]
    assert parsed.other_tools == ((0, "web_search"),)
    for fields in ({"tool_choice": "required"}, {"tools": tools[:1]}):
        with pytest.raises(InvalidRequest) as refused:
            read(ResponsesRequest, RESPONSE | {"tools": tools}, **fields)
        assert refused.value.param == "tools[0]"
