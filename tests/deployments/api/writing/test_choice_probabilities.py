"""Choices over HTTP: how they are asked for, refused, and what the answer says of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from models.protocol.messages import Grammar
from router.types import Delta
from tests.deployments.api.asking import post, refusal
from tests.fakes.http import BODIES, BOTH, CHAT, ScriptedGenerator, tiny_tokenizer
from tests.harness.http_clients import events_of

CHOICES = ["yes", 'no "way"', "<|end|>"]
LOGPROBS = (-1.0, -3.0, -2.0)
EXPECTED = [
    {"choice": "yes", "logprob": -1.0, "probability": pytest.approx(0.6652, abs=1e-4)},
    {"choice": 'no "way"', "logprob": -3.0, "probability": pytest.approx(0.0900, abs=1e-4)},
    {"choice": "<|end|>", "logprob": -2.0, "probability": pytest.approx(0.2447, abs=1e-4)},
]
DELTA = Delta("yes", (1, 2), finish_reason="stop", choice_logprobs=LOGPROBS)


def asking(**outputs: Any) -> dict[str, Any]:
    return {"structured_outputs": {"choice": CHOICES} | outputs}


@BOTH
async def test_choices_are_weighed_whole_by_default(path: str) -> None:
    generator = ScriptedGenerator(deltas=[DELTA])
    answer = await post(path, BODIES[path] | asking(), generator)
    masked = await post(path, BODIES[path] | asking(choice_sampling="masked"), generator)
    assert (answer.status_code, masked.status_code) == (200, 200)
    exact, by_mask = generator.requests
    assert exact.grammar is None
    assert [tiny_tokenizer().decode(ids) for ids in exact.choices] == CHOICES
    assert by_mask.choices == ()
    assert by_mask.grammar == Grammar(kind="choice", text=json.dumps(CHOICES))
    assert "choice_probabilities" not in answer.text


@BOTH
@pytest.mark.parametrize("n", [1, 3])
async def test_each_answer_has_the_probabilities_where_asked(path: str, n: int) -> None:
    wanted = BODIES[path] | asking(choice_probabilities=True) | {"n": n}
    answer = await post(path, wanted, ScriptedGenerator(deltas=[DELTA]))
    stream = await post(path, wanted | {"stream": True}, ScriptedGenerator(deltas=[DELTA]))
    assert answer.status_code == 200
    assert [choice["choice_probabilities"] for choice in answer.json()["choices"]] == [EXPECTED] * n
    told = [
        choice["choice_probabilities"]
        for event in events_of(stream.text)[:-1]
        for choice in event["choices"]
        if "choice_probabilities" in choice
    ]
    assert told == [EXPECTED] * n


@BOTH
async def test_a_stop_string_that_takes_the_text_leaves_them(path: str) -> None:
    wanted = BODIES[path] | asking(choice_probabilities=True) | {"stream": True}
    stream = await post(path, wanted, ScriptedGenerator(deltas=[replace(DELTA, text="")]))
    told = [choice for event in events_of(stream.text)[:-1] for choice in event["choices"]]
    assert [one["choice_probabilities"] for one in told if "choice_probabilities" in one] == [
        EXPECTED
    ]


@pytest.mark.parametrize("logprobs", [{}, {"logprobs": True, "top_logprobs": 1}])
async def test_they_stand_beside_logprobs_and_usage(logprobs: dict[str, Any]) -> None:
    wanted = CHAT | asking(choice_probabilities=True) | logprobs
    options = {"stream": True, "stream_options": {"include_usage": True}}
    generator = ScriptedGenerator(deltas=[DELTA])
    (choice,) = (await post("/v1/chat/completions", wanted, generator)).json()["choices"]
    stream = await post("/v1/chat/completions", wanted | options, generator)
    assert choice["choice_probabilities"] == EXPECTED
    assert choice["message"]["content"] == "yes"
    assert (choice["logprobs"] is None) == (not logprobs)
    events = events_of(stream.text)[:-1]
    assert events[-1]["usage"]["completion_tokens"] == 1
    text = [event for event in events if event["choices"] and "choice_probabilities" in str(event)]
    assert len(text) == 1
    assert text[0]["choices"][0]["delta"] == {"content": "yes"}


@BOTH
@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        (asking(choice_sampling="best"), "structured_outputs.choice_sampling", "'exact' or"),
        (asking(choice=["a", "a"]), "structured_outputs.choice", "choice: [1]: the same as [0]"),
        (asking(choice=["a", ""]), "structured_outputs.choice", "must not be empty"),
        (asking(choice=["a" * 4097]), "structured_outputs.choice", "the limit is 4096"),
        (asking(choice=[str(i) for i in range(1025)]), "structured_outputs.choice", "1 to 1024"),
        (asking(choice=["\ud800"]), None, ""),
        (asking() | {"bad_words": ["x"]}, "bad_words", "'masked'"),
        (asking() | {"min_tokens": 1}, "min_tokens", "'masked'"),
        (
            asking(choice_sampling="masked", choice_probabilities=True),
            "structured_outputs.choice_probabilities",
            "only allowed with choice_sampling 'exact'",
        ),
        (
            {"structured_outputs": {"regex": "a", "choice_sampling": "exact"}},
            "structured_outputs.choice_sampling",
            "only allowed with choice",
        ),
    ],
)
async def test_refusals_name_field_and_limit(
    path: str, fields: dict[str, Any], param: str | None, words: str
) -> None:
    generator = ScriptedGenerator(deltas=[DELTA])
    error = await refusal(path, BODIES[path] | fields, generator)
    assert generator.requests == []
    if param is not None:
        assert (error["param"], words in error["message"]) == (param, True), error


TOOLS = {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "auto"}


async def test_beside_tools_choices_are_masked() -> None:
    generator = ScriptedGenerator()
    answer, refused, unseen = [
        await post("/v1/chat/completions", CHAT | TOOLS | fields, generator)
        for fields in (
            asking(),
            asking(choice_probabilities=True),
            asking() | {"tool_choice": "none"},
        )
    ]
    assert (answer.status_code, refused.status_code, unseen.status_code) == (200, 400, 200)
    masked, exact = generator.requests
    assert (masked.choices, exact.grammar) == ((), None)
    assert masked.grammar is not None
    assert len(exact.choices) == len(CHOICES)
    assert refused.json()["error"]["param"] == "structured_outputs.choice_probabilities"
