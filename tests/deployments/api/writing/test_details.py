"""`speculation.details` over real engines: every mode tells the rounds that its text came from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import jsonschema
import pytest
import pytest_asyncio

from deployments.api.schemas.openapi import openapi_page
from router.limits import SpeculationLimits
from tests.deployments.api.asking import post
from tests.fakes.http import CHAT, served_model
from tests.harness.http_clients import events_of
from tests.harness.served_demo import demo_over_http

PAGE = openapi_page(served_model(), asks_for_keys=False)
ORDER = "Turn this order into JSON.\nImogen from Delhi wants 6 blue lamps at $62.29 each."
STORY = "Once upon a time, there was a little dog named Spot. Spot had a"
SCHEMA = {
    "type": "object",
    "properties": {
        "customer": {"type": "string", "maxLength": 12},
        "quantity": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["customer", "quantity"],
    "additionalProperties": False,
}
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"seed": 5},
    "fixed": {"seed": 5, "speculation": {"k": 3}},
    "no drafts": {"seed": 5, "speculation": {"enabled": False}},
    "copied": {"temperature": 0, "speculation": {"drafter": "suffix"}},
    "rejection": {"seed": 5, "speculation": {"k": 3, "verification": "rejection"}},
    "constrained": {"temperature": 0, "structured_outputs": {"json": SCHEMA}},
    "constrained, seeded": {"seed": 3, "structured_outputs": {"json": SCHEMA}},
    "constrained, fixed": {
        "temperature": 0,
        "structured_outputs": {"json": SCHEMA},
        "speculation": {"k": 4},
    },
    "stop": {"temperature": 0, "stop": ["lamps", "ball."]},
    "choices": {"seed": 5, "n": 3},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def demo() -> AsyncIterator[httpx.AsyncClient]:
    async with (
        demo_over_http(speculation=SpeculationLimits()) as target,
        httpx.AsyncClient(base_url=target.root_url, timeout=60) as client,
    ):
        yield client


def body(route: str, fields: dict[str, Any], *, details: bool = True) -> dict[str, Any]:
    speculation = {**fields.get("speculation", {}), "details": details}
    # No answer is drafted from another one, so that all ask for the same.
    asked = {"model": "demo", "max_tokens": 40, "cache_salt": f"{fields}"[:200], **fields}
    asked |= {"speculation": speculation}
    if route == "chat/completions":
        return asked | {"messages": [{"role": "user", "content": ORDER}], "logprobs": True}
    return asked | {"prompt": STORY, "logprobs": 0}


def text_of(choice: dict[str, Any]) -> str:
    if "text" in choice:
        return str(choice["text"])
    said = choice.get("message") or choice["delta"]
    return said.get("content") or ""


def logprobs_of(choice: dict[str, Any]) -> list[float]:
    found = choice["logprobs"]
    if "content" in found:
        return [token["logprob"] for token in found["content"]]
    return list(found["token_logprobs"])


def check(details: dict[str, Any], text: str, logprobs: list[float] | None) -> None:
    """What is told of one choice agrees with itself, its text and its logprobs."""
    rounds, tokens = details["rounds"], details["tokens"]
    assert [each["round"] for each in rounds] == list(range(len(rounds)))
    offsets = [token["offset"] for token in tokens]
    assert offsets == sorted(offsets)
    if text:
        assert offsets[0] == 0
    if logprobs is not None:
        assert [token["logprob"] for token in tokens] == logprobs
    for index, token in enumerate(tokens):
        end = offsets[index + 1] if index + 1 < len(tokens) else len(text)
        if "\\x" not in token["token"]:
            assert token["token"].startswith(text[token["offset"] : end])
    for each in rounds:
        num_accepted = sum(part["num_accepted"] for part in each["drafted"])
        num_drafted = sum(part["num_tokens"] for part in each["drafted"])
        assert 1 <= each["num_tokens"] <= num_accepted + 1
        kinds = {"plain": num_drafted == 0, "bonus": 0 < num_drafted == num_accepted}
        assert kinds.get(each["last"], num_accepted < num_drafted)
        own = [token["origin"] for token in tokens if token["round"] == each["round"]]
        accepted = Counter[str]()  # of all parts of a drafter
        for part in each["drafted"]:
            accepted[part["drafter"]] += part["num_accepted"]
        assert all(own.count(drafter) <= right for drafter, right in accepted.items())
        time = each["time"]
        parts = sum(value for name, value in time.items() if name != "round_ms")
        assert time["round_ms"] == pytest.approx(parts, abs=0.01)


def check_totals(answer: dict[str, Any], details: list[dict[str, Any]]) -> None:
    """Rounds add up to the usage and to the metrics."""
    rounds = [each for choice in details for each in choice["rounds"]]
    counts = answer["metrics"]["speculative_decoding"]
    parts = [part for each in rounds for part in each["drafted"]]
    assert sum(each["num_tokens"] for each in rounds) == answer["usage"]["completion_tokens"]
    assert len(rounds) == answer["metrics"]["rounds"]["num_rounds"]
    assert sum(part["num_tokens"] for part in parts) == counts["num_draft_tokens"]
    assert sum(part["num_accepted"] for part in parts) == counts["num_accepted_draft_tokens"]
    for name in ("draft_ms", "verify_ms", "queue_ms", "link_ms", "grammar_ms"):
        total = math.fsum(each["time"][name] for each in rounds)
        assert total == pytest.approx(answer["metrics"]["rounds"][name], abs=0.01 * len(rounds))


def fits(shape: str, answer: dict[str, Any]) -> None:
    schema = {**PAGE["components"]["schemas"][shape], "components": PAGE["components"]}
    jsonschema.validate(answer, schema, jsonschema.Draft202012Validator)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("route", ["chat/completions", "completions"])
@pytest.mark.parametrize("mode", MODES)
async def test_an_answer_tells_its_rounds(demo: httpx.AsyncClient, mode: str, route: str) -> None:
    fields = MODES[mode]
    plain = (await demo.post(f"/v1/{route}", json=body(route, fields, details=False))).json()
    assert "speculation_details" not in plain
    answer = (await demo.post(f"/v1/{route}", json=body(route, fields))).json()
    fits("ChatCompletion" if route == "chat/completions" else "Completion", answer)
    details = answer["speculation_details"]
    assert [each["index"] for each in details] == list(range(fields.get("n", 1)))
    for choice, of_choice, of_plain in zip(
        answer["choices"], details, plain["choices"], strict=True
    ):
        if mode != "rejection":  # whose text depends on what was drafted
            assert text_of(choice) == text_of(of_plain)
        check(of_choice, text_of(choice), logprobs_of(choice))
    check_totals(answer, details)
    reasons = {each["why"]["reason"] for of in details for each in of["rounds"] if each["why"]}
    assert all(reasons)
    if mode == "no drafts":
        assert reasons == {"nobody drafts"}
        assert {token["origin"] for token in details[0]["tokens"]} == {"target"}
    if mode == "fixed":
        assert "fixed" in reasons
    if mode == "constrained, fixed":  # an adaptive plan may want rounds without any draft
        drafters = {part["drafter"] for each in details[0]["rounds"] for part in each["drafted"]}
        assert "forced" in drafters


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("with_usage", [False, True], ids=["", "usage"])
@pytest.mark.parametrize("route", ["chat/completions", "completions"])
@pytest.mark.parametrize("mode", MODES)
async def test_a_stream_tells_them_as_they_come(
    demo: httpx.AsyncClient, mode: str, route: str, with_usage: bool
) -> None:
    fields = MODES[mode]
    asked = body(route, fields) | {"stream": True}
    del asked["logprobs"]  # the probabilities come without them
    if with_usage:
        asked["stream_options"] = {"include_usage": True}
    response = await demo.post(f"/v1/{route}", json=asked)
    *events, done = events_of(response.text)
    assert done == "[DONE]"
    whole: dict[int, dict[str, Any]] = {}
    parts: dict[int, dict[str, list[Any]]] = {}
    texts: dict[int, str] = {}
    for event in events:
        fits("ChatCompletionChunk" if route == "chat/completions" else "Completion", event)
        for choice in event["choices"]:
            index = choice["index"]
            texts[index] = texts.get(index, "") + text_of(choice)
            assert not choice["logprobs"]
            if choice["finish_reason"]:
                [whole[index]] = event["speculation_details"]
            elif "speculation_details" in event:
                [new] = event["speculation_details"]
                assert new["index"] == index
                part = parts.setdefault(index, {"rounds": [], "tokens": []})
                part["rounds"] += new["rounds"]
                part["tokens"] += new["tokens"]
    assert len(whole) == len(texts) == fields.get("n", 1)
    for index, text in texts.items():
        check(whole[index], text, None)
        # What no event with text could bring is in the last.
        assert whole[index]["tokens"] == parts[index]["tokens"]
        told = len(parts[index]["rounds"])
        assert whole[index]["rounds"][:told] == parts[index]["rounds"]
    if with_usage:
        check_totals(events[-1], list(whole.values()))


@pytest.mark.parametrize(
    ("fields", "weight"),
    [({}, 20), ({"n": 2}, 40), ({"logprobs": True}, 21)],
    ids=["", "choices", "logprobs"],
)
async def test_details_are_bounded_as_logprobs_are(fields: dict[str, Any], weight: int) -> None:
    asked = CHAT | {"max_tokens": 10, "speculation": {"details": True}, **fields}
    for limit, status in ((10 * weight, 200), (10 * weight - 1, 400)):
        model = served_model(max_logprob_entries=limit)
        answer = await post("/v1/chat/completions", asked, model=model)
        assert answer.status_code == status
    error = answer.json()["error"]
    assert error["param"] == "speculation.details"
    assert f"at most {10 * weight - 1} logprobs (max_logprob_entries)" in error["message"]
