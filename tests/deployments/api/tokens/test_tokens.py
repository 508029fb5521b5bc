"""/tokenize and /detokenize over the demo's tokenizer: vLLM's shapes, the ids that requests get."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.deployments.api.asking import post
from tests.fakes.http import ScriptedGenerator, served_model, tiny_tokenizer
from tests.harness.http_clients import client_of
from tests.harness.local import demo_tokenizer

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi <|end|> there, Zoë \U0001f600!"},
]
TOKENIZER = demo_tokenizer()
MODEL = served_model(tokenizer=TOKENIZER)


async def said(path: str, body: dict[str, Any], status: int = 200) -> Any:
    response = await post(path, body, model=MODEL)
    assert response.status_code == status, response.text
    return response.json()


async def test_a_prompt_has_the_ids_that_completions_read():
    answer = await said("/tokenize", {"model": "tiny", "prompt": "Once upon a time"})
    ids = TOKENIZER.encode("Once upon a time")
    assert answer == {"count": len(ids), "max_model_len": 200, "tokens": ids, "token_strs": None}
    bare = await said("/tokenize", {"prompt": "Once upon a time", "add_special_tokens": False})
    assert bare["tokens"] == TOKENIZER.encode_piece("Once upon a time")


async def test_a_conversation_has_the_ids_that_chats_read():
    scripted = ScriptedGenerator()
    body = {"model": "tiny", "messages": MESSAGES}
    await post("/v1/chat/completions", body, scripted, model=MODEL)
    answer = await said("/tokenize", {"messages": MESSAGES})
    assert tuple(answer["tokens"]) == scripted.requests[0].prompt_ids
    closed = await said("/tokenize", {"messages": MESSAGES, "add_generation_prompt": False})
    opened = answer["tokens"]
    assert closed["tokens"] == opened[: closed["count"]]
    assert 0 < closed["count"] < answer["count"]


async def test_tokens_have_the_names_that_logprobs_give_them():
    answer = await said(
        "/tokenize", {"prompt": "a caf\u00e9 \U0001f600", "return_token_strs": True}
    )
    assert len(answer["token_strs"]) == answer["count"]
    assert "caf" in "".join(answer["token_strs"])


@pytest.mark.parametrize(
    "text",
    ["", "Once upon a time", " two  spaces ", "Zoë \U0001f600\n\ttab", "x" * 3000],
)
async def test_text_comes_back_as_it_went(text):
    ids = (await said("/tokenize", {"prompt": text}))["tokens"]
    assert (await said("/detokenize", {"tokens": ids}))["prompt"] == text


async def test_special_tokens_come_back_by_their_names():
    ids = (await said("/tokenize", {"messages": MESSAGES}))["tokens"]
    specials = [i for i in ids if TOKENIZER.is_special(i)]
    assert specials
    text = (await said("/detokenize", {"tokens": ids}))["prompt"]
    for token_id in specials:
        assert TOKENIZER.token_bytes(token_id).decode() in text
    assert "Hi <|end|> there, Zoë \U0001f600!" in text


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": False}, "add_generation_prompt"),
        ("/tokenize", {"messages": MESSAGES, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": MESSAGES, "chat_template": "{{ 1 }}"}, "chat_template"),
        ("/tokenize", {"prompt": "a", "promt": "b"}, "promt"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": "5"}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens"),
        ("/detokenize", {"tokens": [5] * 262_145}, "tokens"),
        ("/detokenize", {}, "tokens"),
    ],
)
async def test_what_is_wrong_is_named(path, body, param):
    assert (await said(path, body, 400))["error"]["param"] == param


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_another_model_is_not_found(path):
    body = {"model": "other", "prompt": "a"} if path == "/tokenize" else {"tokens": [5]}
    assert (await said(path, body | {"model": "other"}, 404))["error"]["param"] == "model"


async def test_a_text_longer_than_the_context_is_counted_away_from_the_event_loop():
    text = "the dog and the ball " * 20_000
    gaps = []

    async with client_of(
        ScriptedGenerator(), model=served_model(tokenizer=tiny_tokenizer())
    ) as client:

        async def watch() -> None:
            while True:
                began = time.perf_counter()
                await asyncio.sleep(0.001)
                gaps.append(time.perf_counter() - began)

        watching = asyncio.create_task(watch())
        answer = (await client.post("/tokenize", json={"prompt": text})).json()
        watching.cancel()
    assert answer["count"] > answer["max_model_len"]
    assert len(gaps) > 20
