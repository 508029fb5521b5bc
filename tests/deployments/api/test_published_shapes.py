"""The fields that OpenAI's published shapes require are there, also where they are null."""

from __future__ import annotations

from typing import Any

import pytest

from models.protocol.messages import TokenLogprobs
from router.types import Delta, ShownToken
from tests.fakes.http import ScriptedGenerator, tiny_tokenizer
from tests.harness.http_clients import client_of, events_of

TOKENIZER = tiny_tokenizer()
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "tiny", "prompt": "hi"}
DELTAS = (Delta("a", (5,), (ShownToken(0, TokenLogprobs(5, -0.5, 1, ((5, -0.5),))),)),)
USAGE = {"prompt_tokens", "completion_tokens", "total_tokens"}


async def asked(path: str, body: dict[str, Any]) -> Any:
    deltas = DELTAS if body.get("logprobs") else ()
    async with client_of(ScriptedGenerator(deltas=deltas)) as client:
        response = await client.post(path, json=body)
    assert response.status_code == 200
    return events_of(response.text)[:-1] if body.get("stream") else response.json()


@pytest.mark.parametrize("logprobs", [{}, {"logprobs": True, "top_logprobs": 1}], ids=["", "lp"])
async def test_a_chat_answer(logprobs):
    answer = await asked("/v1/chat/completions", CHAT | logprobs)
    assert set(answer) >= {"id", "choices", "created", "model", "object", "usage"}
    assert set(answer["usage"]) >= USAGE
    [choice] = answer["choices"]
    assert set(choice) == {"finish_reason", "index", "message", "logprobs"}
    assert set(choice["message"]) == {"role", "content", "refusal"}
    assert choice["message"]["refusal"] is None
    assert (choice["logprobs"] is None) == (not logprobs)
    if logprobs:
        assert set(choice["logprobs"]) == {"content", "refusal"}
        [token] = choice["logprobs"]["content"]
        assert set(token) == {"token", "logprob", "bytes", "top_logprobs"}
        assert set(token["top_logprobs"][0]) == {"token", "logprob", "bytes"}


async def test_a_message_can_be_sent_back_as_it_came():
    answer = await asked("/v1/chat/completions", CHAT)
    messages = [*CHAT["messages"], answer["choices"][0]["message"]]
    await asked("/v1/chat/completions", CHAT | {"messages": [*messages, messages[0]]})


@pytest.mark.parametrize("usage", [False, True])
async def test_a_chat_streams_events(usage):
    options = {"include_usage": True} if usage else {}
    events = await asked("/v1/chat/completions", CHAT | {"stream": True, "stream_options": options})
    for event in events:
        assert set(event) >= {"id", "choices", "created", "model", "object"}
        assert ("usage" in event) == usage
        for choice in event["choices"]:
            assert set(choice) >= {"delta", "index", "finish_reason"}
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_text_answer(stream):
    answers = await asked("/v1/completions", TEXT | {"stream": stream})
    for answer in answers if stream else [answers]:
        assert set(answer) >= {"id", "object", "created", "model", "choices"}
        [choice] = answer["choices"]
        assert set(choice) == {"finish_reason", "index", "logprobs", "text"}
