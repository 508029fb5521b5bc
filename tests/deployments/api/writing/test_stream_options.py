"""What `stream_options` add to a stream: usage at its end or on every event, and events' sizes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from deployments.api.writing.obfuscation import sealing
from models.protocol.errors import Unavailable
from models.protocol.messages import TokenLogprobs
from router.types import Delta, ShownToken
from tests.deployments.api.asking import post
from tests.fakes.http import BODIES, BOTH, ScriptedGenerator
from tests.harness.http_clients import events_of

# Three tokens, the second without text of its own.
DELTAS = (Delta("a", (5,)), Delta("", (6,)), Delta("bc", (7, 8)))


async def streamed(
    scripted: ScriptedGenerator, path: str, options: dict[str, Any], **fields: Any
) -> str:
    body = BODIES[path] | {"stream": True, "stream_options": options} | fields
    response = await post(path, body, scripted)
    assert response.status_code == 200
    return response.text


# --- usage ----------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("include", [{"include_usage": True}, {}], ids=["with-usage", "alone"])
async def test_continuous_usage_is_on_every_event(path, include):
    """As in vLLM, where the usage at the end comes with it unless it is refused."""
    scripted = ScriptedGenerator(deltas=DELTAS)
    text = await streamed(scripted, path, include | {"continuous_usage_stats": True})
    *events, last, done = events_of(text)
    assert done == "[DONE]"
    num_prompt = len(scripted.requests[0].prompt_ids)
    counts = [1, 4, 4] if path == "/v1/completions" else [0, 1, 4, 4]  # of role, texts and end
    assert [event["usage"] for event in events] == [
        {
            "prompt_tokens": num_prompt,
            "completion_tokens": count,
            "total_tokens": num_prompt + count,
        }
        for count in counts
    ]
    assert all(len(event["choices"]) == 1 for event in events)
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    assert last["usage"]["prompt_tokens"] == num_prompt


@BOTH
async def test_without_usage_there_is_no_continuous_one(path):
    options = {"include_usage": False, "continuous_usage_stats": True}
    events = events_of(await streamed(ScriptedGenerator(deltas=DELTAS), path, options))[:-1]
    assert all("usage" not in event for event in events)
    assert "metrics" in events[-1]


@BOTH
async def test_each_choice_counts_for_itself(path):
    texts = {5: ("one",), 6: ("two ", "words")}
    options = {"include_usage": True, "continuous_usage_stats": True}
    text = await streamed(ScriptedGenerator(texts_of=texts), path, options, n=2, seed=5)
    *events, last, _ = events_of(text)
    by_choice: dict[int, list[int]] = {0: [], 1: []}
    for event in events:
        usage = event["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        by_choice[event["choices"][0]["index"]].append(usage["completion_tokens"])
    assert [counts[-1] for counts in by_choice.values()] == [1, 2]
    assert all(counts == sorted(counts) for counts in by_choice.values())
    assert last["usage"]["completion_tokens"] == 3


# --- sizes ----------------------------------------------------------------------------------------


def sizes_of(text: str) -> set[int]:
    return {len(event.encode()) + 2 for event in text.split("\n\n") if event.startswith("data: {")}


@BOTH
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("usage", ["none", "last", "continuous"])
async def test_an_obfuscated_events_size_says_nothing_of_its_text(path, n, usage):
    rng = random.Random(3)
    texts = ["x" * rng.randrange(1, 60) + "€" * rng.randrange(20) for _ in range(40)]
    options = {
        "include_obfuscation": True,
        "include_usage": usage != "none",
        "continuous_usage_stats": usage == "continuous",
    }
    text = await streamed(ScriptedGenerator(texts=texts), path, options, n=n)
    *events, done = events_of(text)
    assert done == "[DONE]"
    assert all(isinstance(event["obfuscation"], str) for event in events)
    *with_text, _ = text.split('"finish_reason":"')[0].split("\n\n")
    assert len({len(event.encode()) for event in with_text}) == 1
    assert len(sizes_of(text)) <= 3
    bare = await streamed(
        ScriptedGenerator(texts=texts), path, options | {"include_obfuscation": False}, n=n
    )
    assert len(events_of(bare)) == len(events_of(text))
    assert len(sizes_of(bare)) > 20


@BOTH
async def test_longer_events_have_the_next_sizes(path):
    top = tuple((token, -0.125) for token in range(4, 24))
    deltas = [
        Delta("a" * size, (5,), (ShownToken(0, TokenLogprobs(5, -0.5, 1, top[: size % 21])),))
        for size in range(1, 400, 3)
    ]
    wanted = {"logprobs": True, "top_logprobs": 20} if "chat" in path else {"logprobs": 20}
    options = {"include_obfuscation": True}
    text = await streamed(ScriptedGenerator(deltas=deltas), path, options, **wanted)
    assert sizes_of(text) <= {len(b"data: \n\n") + 2**power for power in range(9, 13)}


@BOTH
async def test_the_event_of_an_error_is_no_exception(path):
    scripted = ScriptedGenerator(error=Unavailable("target lost"), error_at=1)
    text = await streamed(scripted, path, {"include_obfuscation": True})
    assert events_of(text)[-1]["error"]["message"] == "target lost"
    assert len(sizes_of(text)) == 1


@BOTH
async def test_events_are_bare_unless_it_is_asked_for(path):
    for options in ({}, {"include_obfuscation": False}, {"include_obfuscation": None}):
        text = await streamed(ScriptedGenerator(), path, options)
        assert "obfuscation" not in text


def test_what_fills_an_event_is_random():
    sealed = sealing("tiny")
    body = b'{"id":"x","choices":[]}'
    assert sealed(body) != sealed(body)
    assert len(sealed(body)) == len(sealed(body)) == 512
    for size in range(480, 520):
        filled = b'{"id":"%s"}' % (b"x" * size)
        assert len(sealed(filled)) in (512, 1024)
    assert len(sealing("m" * 600)(body)) == 2048
    assert len(sealed(b'{"id":"%s"}' % (b"x" * 300_000))) == 5 * 65_536
