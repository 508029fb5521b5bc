"""Several prompts in one request for completions: order, seeds, echo, logprobs, usage, limits."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from models.protocol.messages import TokenLogprobs
from models.protocol.packed_logprobs import pack
from router.types import Delta, Detokenizer, Finished, GenerationRequest, ShownToken
from tests.deployments.api.asking import post
from tests.fakes.http import STATS, ScriptedGenerator, tiny_tokenizer
from tests.harness.http_clients import events_of

TOKENIZER = tiny_tokenizer()
PROMPTS = ["The", "old bear", "a€"]
IDS = [TOKENIZER.encode(prompt) for prompt in PROMPTS]
STREAMS = pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])


class PromptTeller(ScriptedGenerator):
    """Its text is the prompt's in brackets, with the seed; logprobs where they are asked for."""

    async def generate(
        self, request: GenerationRequest, detokenizer: Detokenizer
    ) -> AsyncGenerator[Delta | Finished, None]:
        self.requests.append(request)
        sampling = request.sampling
        text = f"({TOKENIZER.decode(request.prompt_ids)}{sampling.seed})"
        of_prompt = None
        if sampling.num_prompt_logprobs >= 0:
            of_prompt = tuple(
                pack(TokenLogprobs(token_id, -0.5 - i, 1))
                for i, token_id in enumerate(request.prompt_ids[1:])
            )
        shown: tuple[ShownToken, ...] = ()
        if sampling.num_logprobs >= 0:
            shown = (ShownToken(0, TokenLogprobs(TOKENIZER.encode_piece("a")[0], -0.25, 1)),)
        yield Delta(text, (5,), shown, of_prompt)
        yield Finished(
            finish_reason="stop",
            num_prompt_tokens=len(request.prompt_ids),
            num_completion_tokens=1,
            num_cached_tokens=1,
            speculation=STATS,
        )


async def ask(scripted: ScriptedGenerator, **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "prompt": PROMPTS, "seed": 5} | fields
    return await post("/v1/completions", body, scripted)


async def choices(is_stream: bool, **fields: Any) -> list[dict[str, Any]]:
    """Text and lists of each choice, whole or put together."""
    response = await ask(PromptTeller(), stream=is_stream, **fields)
    if not is_stream:
        answer = response.json()
        assert [choice["index"] for choice in answer["choices"]] == list(
            range(len(answer["choices"]))
        )
        return list(answer["choices"])
    whole: dict[int, dict[str, Any]] = {}
    for event in events_of(response.text)[:-1]:
        for choice in event["choices"]:
            one = whole.setdefault(choice["index"], {"text": "", "logprobs": {}})
            one["text"] += choice["text"]
            for name, values in (choice["logprobs"] or {}).items():
                one["logprobs"].setdefault(name, []).extend(values)
    return [whole[index] for index in range(len(whole))]


@STREAMS
@pytest.mark.parametrize("prompts", [PROMPTS, IDS], ids=["texts", "ids"])
async def test_each_prompt_gets_the_answers_that_it_gets_alone(prompts, is_stream):
    told = [choice["text"] for choice in await choices(is_stream, prompt=prompts, n=2)]
    assert told == [f"({text}{seed})" for text in PROMPTS for seed in (5, 6)]
    for index, prompt in enumerate(prompts):
        alone = [choice["text"] for choice in await choices(is_stream, prompt=prompt, n=2)]
        assert told[2 * index : 2 * index + 2] == alone


async def test_a_seed_that_is_drawn_is_one_for_all():
    scripted = PromptTeller()
    answer = (await ask(scripted, seed=None, n=2)).json()
    seeds = [request.sampling.seed for request in scripted.requests]
    assert sorted(seeds) == sorted([answer["seed"], answer["seed"] + 1] * 3)
    assert len({request.request_id for request in scripted.requests}) == 6


@STREAMS
async def test_each_is_echoed_with_its_own_logprobs(is_stream):
    told = await choices(is_stream, n=2, echo=True, logprobs=0)
    for index, choice in enumerate(told):
        prompt, ids = PROMPTS[index // 2], IDS[index // 2]
        assert choice["text"].startswith(f"{prompt}({prompt}")
        lists = choice["logprobs"]
        assert {len(values) for values in lists.values()} == {len(ids) + 1}
        assert lists["token_logprobs"] == [None, *(-0.5 - i for i in range(len(ids) - 1)), -0.25]
        assert lists["text_offset"][-1] == len(prompt)
        alone = (await choices(is_stream, prompt=prompt, echo=True, logprobs=0))[0]
        assert alone["logprobs"] == lists


async def test_a_prompts_logprobs_are_asked_for_once_and_told_with_each_of_its_choices():
    scripted = PromptTeller()
    answer = (await ask(scripted, n=2, prompt_logprobs=0)).json()
    asked = {request.request_id: request.sampling for request in scripted.requests}
    assert sum(sampling.num_prompt_logprobs >= 0 for sampling in asked.values()) == len(PROMPTS)
    for index, choice in enumerate(answer["choices"]):
        first, *others = choice["prompt_logprobs"]
        assert first is None
        assert [[*one] for one in others] == [[str(i)] for i in IDS[index // 2][1:]]
        assert choice["logprobs"] is None


@STREAMS
async def test_usage_counts_each_prompt_once(is_stream, caplog):
    options = {"stream": True, "stream_options": {"include_usage": True}} if is_stream else {}
    with caplog.at_level(logging.INFO, "deployments.api.request_log"):
        response = await ask(PromptTeller(), n=2, **options)
    answer = events_of(response.text)[-2] if is_stream else response.json()
    num_prompt = sum(map(len, IDS))
    assert answer["usage"] == {
        "prompt_tokens": num_prompt,
        "completion_tokens": 6,
        "total_tokens": num_prompt + 6,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
    [record] = [one for one in caplog.records if "finished" in one.getMessage()]
    assert record.__dict__["prompt_tokens"] == num_prompt
    assert record.__dict__["cached_tokens"] == 3


async def test_continuous_usage_has_its_own_prompts_tokens():
    options = {"include_usage": True, "continuous_usage_stats": True}
    response = await ask(PromptTeller(), stream=True, stream_options=options)
    for event in events_of(response.text)[:-2]:
        index = event["choices"][0]["index"]
        assert event["usage"]["prompt_tokens"] == len(IDS[index])


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"n": 3}, "prompt", "at most 8 choices in all are allowed (got 9: 3 prompts with n 3)"),
        ({"prompt": ["a"] * 9}, "prompt", "(got 9: 9 prompts with n 1)"),
        ({"n": 9}, "n", "n: at most 8 choices are allowed (got 9)"),
        ({"prompt": [[5], [5, 10**6]]}, "prompt[1]", "prompt[1][1]: token id 1000000 is outside"),
        ({"prompt": ["a", ""]}, "prompt[1]", "prompt[1]: the prompt has no tokens"),
        ({"prompt": [[5], [5] * 300]}, "prompt[1]", "but the prompt has 300"),
    ],
)
async def test_a_refusal_says_which(fields, param, message):
    scripted = PromptTeller()
    response = await ask(scripted, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert message in response.json()["error"]["message"]
    assert scripted.requests == []
