"""Look-aheads under grammars through the routes, with OpenAI's client: every answer parses."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import openai
import pytest

from tests.cases.lookahead.compared import TERMS

WORDS = ("dog", "happy", "tree")
REWARD: Any = {"kind": "words", "required": list(WORDS)}
PROMPT = "Write a short story about a dog and a ball."
SCHEMA: Any = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "minLength": 4, "maxLength": 16},
        "story": {"type": "string", "minLength": 10, "maxLength": 60},
        "pages": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["title", "story", "pages"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "story", "schema": SCHEMA}}
CHAT: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": PROMPT}],
    "max_tokens": 96,
    "temperature": 0.0,
}
NOTE: Any = {
    "type": "function",
    "function": {
        "name": "note",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string", "maxLength": 40}},
            "required": ["text"],
        },
    },
}


def steered(method: str = "cdsl", reward: Any = REWARD, **fields: Any) -> dict[str, Any]:
    return {"lookahead": TERMS | {"method": method, "reward": reward} | fields}


async def asked(
    client: openai.AsyncOpenAI, extra: dict[str, Any], **fields: Any
) -> tuple[str, dict[str, Any]]:
    """The text, which ended by itself, and what the usage says of looking ahead."""
    answer = await client.chat.completions.create(**CHAT | fields, extra_body=extra)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    usage = (answer.usage.model_extra or {}).get("lookahead", {})
    return answer.choices[0].message.content or "", usage


def checked(text: str) -> str:
    """The story, of an answer that obeys the schema."""
    value = json.loads(text)
    assert value.keys() == {"title", "story", "pages"}
    assert 4 <= len(value["title"]) <= 16
    assert 10 <= len(value["story"]) <= 60
    assert 1 <= value["pages"] <= 9
    return text.lower()


def num_words(text: str) -> int:
    return sum(re.search(rf"\b{word}\b", text) is not None for word in WORDS)


@pytest.mark.parametrize("method", ["cdlh", "cdsl"])
async def test_json_by_schema_says_more_of_what_is_wished(
    client: openai.AsyncOpenAI, method: str
) -> None:
    plain, _ = await asked(client, {}, response_format=FORMAT)
    extra = steered(method)
    text, usage = await asked(client, extra, response_format=FORMAT)
    found = num_words(checked(text))
    assert found > num_words(checked(plain))
    assert usage["soft_satisfaction"] == pytest.approx(found / len(WORDS))
    assert usage["target_passes"] > usage["rollouts"] > 0
    assert (usage["draft_steps"] > 0) == (method == "cdsl")

    stream = await client.chat.completions.create(
        **CHAT,
        response_format=FORMAT,
        extra_body=extra,
        stream=True,
        stream_options={"include_usage": True},
    )
    pieces, told = [], None
    async for event in stream:
        pieces += [choice.delta.content or "" for choice in event.choices]
        told = event.usage.model_extra["lookahead"] if event.usage is not None else told
    assert "".join(pieces) == text
    assert told == usage


async def test_it_parses_whatever_the_reward_says(client: openai.AsyncOpenAI) -> None:
    """Rewards that no JSON meets, a budget that is spent at once, sampling, and many at a time."""
    against = {"kind": "pattern", "pattern": "[^{]*"}
    ways = [
        steered("cdlh", against, commit="rollout", reward_weight=100.0, candidates=8),
        steered("cdsl", against, reward_threshold=1.0, reward_weight=100.0),
        steered("cdsl", {"kind": "words", "forbidden": ["title"]}, generation="plain"),
        steered("cdlh", budget=1),
        steered("cdsl", budget=12),
    ]
    sampled = steered("cdsl", verification="speculative_sampling", rollout="sampled")
    answers = await asyncio.gather(
        *(asked(client, way, response_format=FORMAT) for way in ways),
        *(asked(client, sampled, response_format=FORMAT, temperature=0.9, seed=5) for _ in "ab"),
    )
    for text, _ in answers:
        checked(text)
    assert answers[-1] == answers[-2]
    assert [usage["budget_spent"] for _, usage in answers[:5]] == [False, False, False, True, True]


async def test_choices_patterns_and_calls(client: openai.AsyncOpenAI) -> None:
    choices = ["a cat", "a happy dog", "a tree"]
    outputs = {"structured_outputs": {"choice": choices}}
    text, usage = await asked(client, steered("cdlh", length=6) | outputs)
    assert text in choices
    assert usage["soft_satisfaction"] == pytest.approx(num_words(text) / 3)

    answer = await client.completions.create(
        model="demo",
        prompt="Once upon a time",
        max_tokens=60,
        temperature=0.0,
        extra_body=steered() | {"structured_outputs": {"regex": r"[a-z ]{10,40}\."}},
    )
    assert re.fullmatch(r"[a-z ]{10,40}\.", answer.choices[0].text)

    called = await client.chat.completions.create(
        **CHAT, tools=[NOTE], tool_choice="required", extra_body=steered()
    )
    assert called.choices[0].message.tool_calls
    [call] = called.choices[0].message.tool_calls
    assert call.type == "function"
    assert json.loads(call.function.arguments).keys() == {"text"}


async def test_a_response_is_steered_within_its_format(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(
        model="demo",
        input=PROMPT,
        max_output_tokens=96,
        temperature=0.0,
        text={"format": {"type": "json_schema", "name": "story", "schema": SCHEMA}},
        extra_body=steered(),
    )
    text, usage = await asked(client, steered(), response_format=FORMAT)
    assert answer.output_text == text
    assert answer.usage is not None
    assert (answer.usage.model_extra or {})["lookahead"] == usage


async def test_a_grammar_that_is_refused_names_its_field(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await asked(client, steered() | {"structured_outputs": {"regex": "a(?=b)"}})
    body: Any = caught.value.body
    assert body["param"] == "structured_outputs.regex"
