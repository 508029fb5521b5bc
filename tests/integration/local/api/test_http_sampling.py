"""Sampling parameters from HTTP to real engines and back, drafted for: no Ray, no sockets."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.harness.http_clients import events_of
from tests.harness.local import demo_http, demo_tokenizer

TOKENIZER = demo_tokenizer()
CHAT = {
    "model": "demo",
    "messages": [{"role": "user", "content": "Write a short story about a dog and a ball."}],
    "max_tokens": 24,
    "seed": 7,
}
TEXT = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}


async def chat(client: httpx.AsyncClient, k: int = 3, **fields: Any) -> dict[str, Any]:
    body = CHAT | {"speculation": {"k": k}} | fields
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def text(client: httpx.AsyncClient, **fields: Any) -> Any:
    response = await client.post("/v1/completions", json=TEXT | fields)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


async def test_chat_logprobs_spell_the_text_and_do_not_depend_on_k() -> None:
    asked = {"logprobs": True, "top_logprobs": 3}
    async with demo_http() as client:
        plain, drafted = [await chat(client, k, **asked) for k in (0, 3)]
        stream = await client.post(
            "/v1/chat/completions",
            json=CHAT | asked | {"stream": True, "stop": ["and"], "max_tokens": 60},
        )
    [choice] = plain["choices"]
    assert drafted["choices"] == [choice]
    content = choice["logprobs"]["content"]
    spelt = bytes(byte for token in content for byte in token["bytes"]).decode()
    assert spelt == choice["message"]["content"]
    assert all(len(token["top_logprobs"]) == 3 for token in content)
    streamed, entries = "", ""
    for event in events_of(stream.text)[:-1]:
        [part] = event["choices"]
        streamed += part["delta"].get("content", "")
        for token in (part["logprobs"] or {"content": []})["content"]:
            entries += bytes(token["bytes"]).decode()
        assert entries.startswith(streamed), "an entry is never later than its text"
    assert "and" not in streamed
    assert len(streamed) <= len(entries) < len(streamed) + len(" and")


async def test_choices_are_the_answers_of_consecutive_seeds() -> None:
    async with demo_http() as client:
        answer = await chat(client, n=3)
        alone = [await chat(client, seed=seed) for seed in (7, 8, 9)]
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert texts == [one["choices"][0]["message"]["content"] for one in alone]
    assert len(set(texts)) == 3


async def test_words_and_biases_and_ends() -> None:
    async with demo_http() as client:
        free = await chat(client, temperature=0)
        words = free["choices"][0]["message"]["content"].split()[1:4]
        clean = await chat(client, temperature=0, bad_words=words)
        told = clean["choices"][0]["message"]["content"].split()
        assert not set(words) & set(told)
        [eos] = TOKENIZER.eos_ids
        short = await chat(client, logit_bias={str(eos): 100}, min_tokens=5)
        assert short["usage"]["completion_tokens"] == 6
        assert short["choices"][0]["finish_reason"] == "stop"
        cut = await text(client, stop=["a"], include_stop_str_in_output=True)
        assert cut["text"].endswith("a")
        assert "a" not in cut["text"][:-1]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_echo_scores_a_text(is_stream: bool) -> None:
    """The use of `echo`: how likely is this text? It is what `prompt_logprobs` say as well."""
    async with demo_http() as client:
        scored = await text(client, prompt_logprobs=0)
        body = TEXT | {"echo": True, "logprobs": 1, "stream": is_stream}
        response = await client.post("/v1/completions", json=body)
    answers = events_of(response.text)[:-2] if is_stream else [response.json()]
    parts = [answer["choices"][0] for answer in answers]
    echoed = "".join(part["text"] for part in parts)
    assert echoed == TEXT["prompt"] + scored["text"]
    columns = {
        name: [value for part in parts for value in part["logprobs"][name]]
        for name in ("tokens", "token_logprobs", "text_offset")
    }
    num_prompt = len(TOKENIZER.encode(str(TEXT["prompt"])))
    expected = [
        None if entry is None else next(iter(entry.values()))["logprob"]
        for entry in scored["prompt_logprobs"]
    ]
    assert columns["token_logprobs"][:num_prompt] == expected
    for token, offset in zip(columns["tokens"], columns["text_offset"], strict=True):
        assert echoed.startswith(token, offset)
