from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from deployments.api.lookahead.fields import LookaheadOptions
from router.types import LookaheadSettings
from tests.deployments.api.asking import post, refusal
from tests.fakes.http import ScriptedGenerator

CHATS = "/v1/chat/completions"
WORDS = {"kind": "concepts", "concepts": ["dog"]}
STEERED = {"lookahead": {"method": "cdsl", "reward": WORDS}}
BODY: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hi"}],
    "temperature": 0.0,
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


async def refused(body: dict[str, Any], path: str = CHATS) -> tuple[str, str]:
    """The field and the message of a 400."""
    error = await refusal(path, body)
    return error["param"], error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"logprobs": True},
        {"presence_penalty": 0.5},
        {"repetition_penalty": 1.1},
        {"logit_bias": {"5": 1.0}},
        {"prediction": {"type": "content", "content": "x"}},
        {"min_tokens": 3},
        {"bad_words": ["x"]},
        {"prompt_logprobs": 1},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_a_field_that_does_not_go_with_it(fields: dict[str, Any]) -> None:
    [name] = fields
    param, message = await refused(BODY | STEERED | fields)
    assert param == name
    assert message.startswith(f"{name}: does not go with lookahead, leave it at ")


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [("choice_sampling", "exact", '"masked"'), ("choice_probabilities", True, "false")],
)
async def test_choices_are_masked_and_not_weighed(name: str, value: object, wanted: str) -> None:
    param, message = await refused(
        BODY | STEERED | {"structured_outputs": {"choice": ["a"], name: value}}
    )
    assert param == f"structured_outputs.{name}"
    assert message.startswith(f"{param}: does not go with lookahead, leave it at {wanted} (got ")


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, "json_object"),
        ({"structured_outputs": {"regex": "a+"}}, "regex"),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "choice"),
        ({"structured_outputs": {"choice": ["a", "b"], "choice_sampling": "masked"}}, "choice"),
        ({"tools": [TOOL], "tool_choice": "required"}, "lark"),
    ],
)
async def test_a_grammar_goes_with_it(fields: dict[str, Any], kind: str | None) -> None:
    generator = ScriptedGenerator()
    answers = [await post(CHATS, BODY | STEERED | fields, generator)]
    if "tools" not in fields:
        text = {"model": "tiny", "prompt": "x"} | STEERED
        answers.append(await post("/v1/completions", text | fields, generator))
    assert [answer.status_code for answer in answers] == [200] * len(answers), answers[-1].text
    for request in generator.requests:
        assert request.lookahead is not None
        assert request.choices == ()
        assert (request.grammar and request.grammar.kind) == kind


async def test_a_response_may_be_steered_too() -> None:
    generator = ScriptedGenerator()
    body = {"model": "tiny", "input": "hi"} | STEERED
    answer = await post("/v1/responses", body, generator)
    assert answer.status_code == 200, answer.text
    [request] = generator.requests
    assert request.lookahead is not None
    assert request.lookahead.reward == '{"kind": "concepts", "concepts": ["dog"]}'
    logprobs = {"include": ["message.output_text.logprobs"]}
    param, message = await refused(body | logprobs, "/v1/responses")
    assert param == "include"
    assert message.startswith("include: does not go with lookahead")


@pytest.mark.parametrize(
    "options",
    [
        {"k": 3},
        {"details": True},
        {"compare": True},
        {"enabled": False},
        {"disable_by_batch_size": 2},
        {"draft_sample_method": "greedy"},
    ],
)
async def test_an_option_of_speculation_that_does_not_go_with_it(options: dict[str, Any]) -> None:
    [name] = options
    param, message = await refused(BODY | STEERED | {"speculation": options})
    assert param == f"speculation.{name}"
    assert "does not go with lookahead" in message


async def test_several_prompts_and_logprobs_of_text() -> None:
    text = {"model": "tiny", "prompt": ["a", "b"]} | STEERED
    assert await refused(text, "/v1/completions") == (
        "prompt",
        'prompt: does not go with lookahead, leave it at "one prompt" (got "2 prompts")',
    )
    param, _ = await refused(text | {"prompt": "a", "logprobs": 0}, "/v1/completions")
    assert param == "logprobs"


@pytest.mark.parametrize(
    ("lookahead", "param", "fault"),
    [
        ({}, "method", "required"),
        ({"method": "beam"}, "method", "'cdsl', 'cdlh' or 'off'"),
        ({"method": "cdsl"}, "reward", "is required with method cdsl"),
        ({"method": "cdsl", "reward": {}}, "reward", "kind: must be one of concepts"),
        ({"method": "cdsl", "reward": {"kind": "x"}}, "reward", 'got "x"'),
        ({"method": "cdsl", "reward": WORDS, "length": 33}, "length", "32"),
        ({"method": "cdsl", "reward": WORDS, "candidates": 0}, "candidates", "1"),
        ({"method": "cdsl", "reward": WORDS, "candidates": 17}, "candidates", "16"),
        ({"method": "cdsl", "reward": WORDS, "budget": 0}, "budget", "1"),
        ({"method": "cdsl", "reward": WORDS, "accept_threshold": 1.5}, "accept_threshold", "1"),
        ({"method": "cdsl", "reward": WORDS, "reward_threshold": -0.1}, "reward_threshold", "0"),
        ({"method": "cdsl", "reward": WORDS, "acceptance": "p"}, "acceptance", "'paper' or 'gain'"),
        ({"method": "cdsl", "reward": WORDS, "beams": 2}, "beams", ""),
        (
            {"method": "cdsl", "reward": WORDS, "verification": "speculative_sampling"},
            "verification",
            "temperature above 0",
        ),
        (
            {"method": "cdlh", "reward": {"kind": "words", "required": ["x" * 70_000]}},
            "reward",
            "at most 65536 bytes",
        ),
    ],
)
async def test_a_wrong_value_is_refused_by_name(
    lookahead: dict[str, Any], param: str, fault: str
) -> None:
    named, message = await refused(BODY | {"lookahead": lookahead})
    assert named == f"lookahead.{param}"
    assert message.startswith(f"lookahead.{param}: ") or "unknown" in message
    assert fault in message


def test_the_api_and_the_router_have_the_same_defaults() -> None:
    asked = LookaheadOptions(method="cdsl").model_dump()
    names = {one.name: one.default for one in dataclasses.fields(LookaheadSettings)}
    shared = names.keys() & asked.keys() - {"method", "reward", "budget"}
    assert {"acceptance", "commit", "candidates", "length"} < shared
    assert {name: asked[name] for name in shared} == {name: names[name] for name in shared}


@pytest.mark.parametrize("acceptance", ["paper", "gain"])
async def test_the_rule_of_acceptance_is_the_routers(acceptance: str) -> None:
    generator = ScriptedGenerator()
    asked = {"method": "cdsl", "reward": WORDS, "acceptance": acceptance, "commit": "token"}
    answer = await post(CHATS, BODY | {"lookahead": asked}, generator)
    assert answer.status_code == 200, answer.text
    settings = generator.requests[0].lookahead
    assert settings is not None
    assert (settings.acceptance, settings.commit) == (acceptance, "token")


async def test_what_the_router_is_asked() -> None:
    generator = ScriptedGenerator()
    asked = {"method": "cdsl", "reward": WORDS, "verification": "speculative_sampling"}
    terms = {"length": 5, "candidates": 2, "commit": "rollout", "seed": -1, "budget": 9}
    body = BODY | {"temperature": 0.5, "lookahead": asked | terms}
    answer = await post(CHATS, body, generator)
    assert answer.status_code == 200, answer.text
    off = BODY | {"lookahead": {"method": "off"}, "n": 2}
    assert (await post(CHATS, off, generator)).status_code == 200
    steered, *others = generator.requests
    settings = steered.lookahead
    assert settings is not None
    assert steered.sampling.verification == "rejection"
    assert (settings.method, settings.length, settings.candidates) == ("cdsl", 5, 2)
    assert (settings.commit, settings.seed, settings.budget) == ("rollout", 2**64 - 1, 9)
    assert settings.reward == '{"kind": "concepts", "concepts": ["dog"]}'
    assert all(other.lookahead is None for other in others)
