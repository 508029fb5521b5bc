"""Predicted outputs through routes and real engines: fewer passes, honest counts, the same text."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx
import pytest

from deployments.local.inline import InlineDevice, InlinePool
from deployments.local.pool import LocalEnginePool
from router.planning.adaptive import RouterPlanner
from router.planning.costs import PassCosts
from tests.harness.http_clients import events_of
from tests.harness.local import NO_LOOKUP, demo_grammar_host, demo_http

CHAT = {
    "model": "demo",
    "messages": [{"role": "user", "content": "Write a short story about a dog and a ball."}],
    "max_tokens": 48,
    "seed": 7,
}


def by_turns(name: str, pool: LocalEnginePool) -> InlinePool:
    """Step the target in the event loop: after a miss it runs on no further on a busy machine."""
    assert name == "target"
    return InlineDevice().pool(pool.engine, epoch=1, max_model_len=pool.grant.max_model_len)


class FreeRows(PassCosts):
    """A busy machine's measured price of rows may end all drafts; here they cost nothing."""

    def rows_price(self, num_rows: int, num_beside: int, num_sessions: int) -> float:
        return 0.0


def alone() -> AbstractAsyncContextManager[httpx.AsyncClient]:
    """Return a client where nobody drafts but the prediction."""
    return demo_http(
        draft=None,
        speculation=NO_LOOKUP,
        link_to=by_turns,
        planner=RouterPlanner(FreeRows()),
    )


K = {"speculation": {"k": 6}}  # the plan of a busy machine may be to draft nothing


async def chat(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await client.post("/v1/chat/completions", json=CHAT | fields)
    assert response.status_code == 200, response.text
    return response.json()


def content_of(answer: dict[str, Any]) -> str:
    return answer["choices"][0]["message"]["content"]


def counts_of(answer: dict[str, Any]) -> tuple[int, int]:
    details = answer["usage"]["completion_tokens_details"]
    return details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]


def predicted(content: object) -> dict[str, object]:
    return {"prediction": {"type": "content", "content": content}}


@pytest.mark.parametrize("temperature", [0, 1])
async def test_a_right_prediction_takes_the_place_of_passes(temperature):
    async with alone() as client:
        plain = await chat(client, temperature=temperature)
        text = content_of(plain)
        drafted = await chat(client, temperature=temperature, **K, **predicted(text))
    num_tokens = plain["usage"]["completion_tokens"]
    accepted, rejected = counts_of(drafted)
    assert content_of(drafted) == text
    assert counts_of(plain) == (0, 0)
    assert drafted["usage"]["completion_tokens"] == num_tokens  # rejected ones are none of these
    assert accepted > 0.7 * num_tokens
    # A token that was sampled may be spelled as two in the prediction.
    assert rejected <= (3 if temperature == 0 else 10)
    rounds = drafted["metrics"]["rounds"]["num_rounds"]
    assert rounds + accepted == num_tokens  # each round has one token of the target's own
    assert rounds < 0.3 * plain["metrics"]["rounds"]["num_rounds"]
    assert drafted["metrics"]["speculative_decoding"]["num_draft_tokens_by"] == {
        "prediction": accepted + rejected
    }


@pytest.mark.parametrize("temperature", [0, 1])
async def test_the_text_does_not_depend_on_it(temperature):
    async with demo_http() as client:
        plain = await chat(client, temperature=temperature, speculation={"enabled": False})
        text = content_of(plain)
        halves = [text[: len(text) // 2], text[len(text) // 2 :]]
        edited = text.replace(" the ", " a green ", 1)
        for content in (
            "",
            text,
            edited,
            text[::-1],
            "Once " * 40,
            [{"type": "text", "text": half} for half in halves],
        ):
            for options in ({}, {"speculation": {"k": 3}}, {"speculation": {"k": 0}}):
                answer = await chat(
                    client, temperature=temperature, **predicted(content), **options
                )
                assert content_of(answer) == text, (content, options)
                if options == {"speculation": {"k": 0}} or not content:
                    assert counts_of(answer) == (0, 0)
        drafted = await chat(client, temperature=temperature, **K, **predicted(edited))
        assert counts_of(drafted)[0] > 10


async def test_under_a_schema_it_is_drafted_from_and_obeyed():
    schema = {
        "type": "object",
        "required": ["name", "item"],
        "properties": {"name": {"type": "string"}, "item": {"type": "string"}},
    }
    form = {
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    }
    async with demo_http() as client:
        response = await client.post("/v1/chat/completions", json=CHAT | form | predicted("{"))
        assert response.status_code == 400  # this harness has no constraint service
    async with demo_http(grammar_host=demo_grammar_host()) as client:
        plain = await chat(client, temperature=0, speculation={"enabled": False}, **form)
        text = content_of(plain)
        drafted = await chat(client, temperature=0, **K, **form, **predicted(text))
        assert content_of(drafted) == text
        assert counts_of(drafted)[0] > 0
        wrong = await chat(client, temperature=0, **form, **predicted("No JSON at all."))
        assert content_of(wrong) == text


async def test_all_choices_count_together_and_a_stream_says_it_too():
    async with alone() as client:
        text = content_of(await chat(client, temperature=0))
        two = await chat(client, temperature=0, n=2, **K, **predicted(text))
        one = await chat(client, temperature=0, **K, **predicted(text))
        assert counts_of(two)[0] > 1.7 * counts_of(one)[0]
        assert [choice["message"]["content"] for choice in two["choices"]] == [text, text]
        stream = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0} | K
        response = await client.post("/v1/chat/completions", json=CHAT | stream | predicted(text))
        assert counts_of(events_of(response.text)[-2])[0] > 0.7 * counts_of(one)[0]


async def test_by_rejection_it_is_drafted_from_only_where_no_seed_matters():
    rule = {"speculation": {"verification": "rejection", "k": 6}}
    async with alone() as client:
        text = content_of(await chat(client, temperature=1, **rule))
        seeded = await chat(client, temperature=1, **rule, **predicted(text))
        assert counts_of(seeded) == (0, 0)
        greedy = content_of(await chat(client, temperature=0, **rule))
        answer = await chat(client, temperature=0, **rule, **predicted(greedy))
        assert content_of(answer) == greedy
        assert counts_of(answer)[0] > 0


async def test_what_is_no_prediction_is_refused_by_name():
    async with demo_http() as client:
        for prediction, param in (
            ("text", "prediction"),
            ({"type": "file", "content": "a"}, "prediction.type"),
            ({"type": "content"}, "prediction.content"),
            ({"type": "content", "content": [{"type": "image"}]}, "prediction.content"),
            ({"type": "content", "content": "a", "more": 1}, "prediction.more"),
            ({"type": "content", "content": "dog " * 300}, "prediction.content"),
            ({"type": "content", "content": "dog " * 100_000}, "prediction.content"),
        ):
            body = CHAT | {"prediction": prediction}
            response = await client.post("/v1/chat/completions", json=body)
            assert response.status_code == 400, prediction
            assert response.json()["error"]["param"] == param
