"""Streams that break and go on at another router: the same text, nothing twice, nothing lost."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from deployments.streams import Refused, events, is_passing, resumed
from tests.harness.cutting import NEW_PROXY, cutting
from tests.harness.local import demo_grammar_host, demo_http
from tests.harness.served_demo import demo_over_http

ORDER = "Turn this order into JSON.\nImogen from Delhi wants 6 blue lamps at $62.29 each."
STORY = "Write a short story about a dog and a ball."
SCHEMA = {
    "type": "object",
    "properties": {"customer": {"type": "string"}, "quantity": {"type": "integer"}},
    "required": ["customer", "quantity"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "save", "parameters": SCHEMA, "strict": True}}
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 1},  # without a seed of its own
    "stop": {"temperature": 0, "stop": [" ball", "\n"]},
    "logprobs": {"temperature": 1, "logprobs": True, "top_logprobs": 2},
    "schema": {
        "messages": [{"role": "user", "content": ORDER}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "o", "schema": SCHEMA}},
    },
    "tools": {
        "messages": [{"role": "user", "content": ORDER}],
        "tools": [TOOL],
        "tool_choice": "required",
    },
    "choices": {"temperature": 1, "n": 3, "max_tokens": 20},
    "details": {"temperature": 0, "speculation": {"details": True}, "max_tokens": 24},
}

Event = dict[str, Any]


@asynccontextmanager
async def two_routers() -> AsyncIterator[list[httpx.AsyncClient]]:
    """Two services that know nothing of each other, drafting in different ways."""
    host = demo_grammar_host()
    async with (
        demo_http(grammar_host=host) as one,
        demo_http(grammar_host=host, draft=None) as other,
    ):
        yield [one, other]


def body_of(fields: dict[str, Any]) -> dict[str, Any]:
    messages = [{"role": "user", "content": STORY}]
    common = {"model": "demo", "messages": messages, "max_tokens": 48, "stream": True}
    return common | {"stream_options": {"include_usage": True}} | fields


def blocks_of(text: str) -> Iterator[tuple[Event, str]]:
    """Each event with its id; "" for none."""
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if fields.get("data", "[DONE]") != "[DONE]":
            yield json.loads(fields["data"]), fields.get("id", "")


async def stream(
    client: httpx.AsyncClient, body: dict[str, Any], last_id: str = ""
) -> list[tuple[Event, str]]:
    headers = {"last-event-id": last_id} if last_id else {}
    answer = await client.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return list(blocks_of(answer.text))


def joined(stream: Sequence[Event]) -> dict[Any, Any]:
    """Join a stream as a client does: all text, calls, logprobs and ends, by choice."""
    found: dict[Any, Any] = {"heads": set(), "usage": None}
    for event in stream:
        found["heads"].add((event["id"], event["created"], event["model"]))
        found["usage"] = event["usage"] or found["usage"]
        for choice in event["choices"]:
            of = found.setdefault(choice["index"], {"text": "", "calls": "", "tokens": []})
            delta = choice["delta"]
            of["text"] += delta.get("content") or ""
            of["role"] = delta.get("role") or of.get("role")
            of["reason"] = choice["finish_reason"]
            of["tokens"] += [
                (one["token"], one["logprob"])
                for one in (choice.get("logprobs") or {"content": []})["content"]
            ]
            for call in delta.get("tool_calls", ()):
                of["calls"] += call["function"].get("name", "") + call["function"]["arguments"]
    return found


def countless(found: dict[Any, Any]) -> dict[Any, Any]:
    """Without what depends on the caches and drafts of a router."""
    usage = {name: found["usage"][name] for name in ("prompt_tokens", "completion_tokens")}
    return found | {"usage": usage}


@pytest.mark.parametrize("case", CASES)
async def test_a_stream_goes_on_elsewhere_as_if_nothing_had_been(case: str) -> None:
    body, rng = body_of(CASES[case]), random.Random(case)
    async with two_routers() as routers:
        whole = await stream(routers[0], body)
        expected = countless(joined([event for event, _ in whole]))
        assert expected[0]["role"] == "assistant"
        marked = [number for number, (_, event_id) in enumerate(whole) if event_id]
        assert marked[-1] == len(whole) - 1, "the last event has one as well"
        for cut in {marked[0], marked[-1], *rng.sample(marked, min(4, len(marked)))}:
            begun, last_id = [event for event, _ in whole[: cut + 1]], whole[cut][1]
            rest = await stream(routers[1], body, last_id)
            middle = rng.choice([number for number, (_, one) in enumerate(rest) if one])
            again = await stream(routers[0], body, rest[middle][1])
            for parts in (rest, rest[: middle + 1] + again):
                found = joined([*begun, *(event for event, _ in parts)])
                assert countless(found) == expected, cut


@pytest.mark.parametrize("speculation", [{"k": 0}, {"k": 3}, {"enabled": False}, {}])
async def test_text_that_the_client_has_is_made_again_in_few_passes(
    speculation: dict[str, Any],
) -> None:
    """Its k is for what is new; a client that only says that it knows the text gains nothing."""
    fields = {"temperature": 1, "seed": 106, "max_tokens": 200, "ignore_eos": True}
    body = body_of(fields | {"speculation": speculation})
    async with two_routers() as (one, other):
        whole = await stream(one, body)
        events = [event for event, _ in whole]
        expected = joined(events)[0]["text"]
        cut = 2 * len(whole) // 3
        last_id = whole[cut][1]
        known = joined([*events[: cut + 1], events[-1]])[0]["text"]
        num_known = int(last_id.rpartition("/")[2].split("-")[0])
        for said, most_passes in ((known, 200 - num_known + 15), ("A wrong one. " * 9, 200)):
            rest = await stream(other, resumed(body, said), last_id)
            assert (
                joined([*events[: cut + 1], *(event for event, _ in rest)])[0]["text"] == expected
            )
            assert rest[-1][0]["metrics"]["rounds"]["num_rounds"] <= most_passes
            drafts = rest[-1][0]["metrics"]["speculative_decoding"]
            num_right = drafts["num_accepted_draft_tokens_by"]["prediction"]
            assert num_right >= 0.9 * num_known if said == known else num_right < 8
            if said != known and speculation in ({"k": 0}, {"enabled": False}):
                assert drafts["num_draft_tokens"] <= 160, "a few drafts show that it knows nothing"


async def test_a_completion_goes_on_too_with_what_it_echoes() -> None:
    body = {"model": "demo", "prompt": "Once upon", "echo": True, "seed": 4, "max_tokens": 30}
    async with two_routers() as (one, other):
        answer = await one.post("/v1/completions", json=body | {"stream": True})
        whole = list(blocks_of(answer.text))
        texts = [event["choices"][0]["text"] for event, _ in whole]
        cut = len(whole) // 2
        headers = {"last-event-id": whole[cut][1]}
        answer = await other.post("/v1/completions", json=body | {"stream": True}, headers=headers)
        rest = [event["choices"][0]["text"] for event, _ in blocks_of(answer.text)]
    assert "".join(texts[: cut + 1] + rest) == "".join(texts)
    assert "".join(texts).startswith("Once upon")


async def test_what_cannot_go_on_is_refused_by_name() -> None:
    body = body_of({"temperature": 1})
    async with two_routers() as (one, other):
        whole = await stream(one, body)
        last_id = whole[len(whole) // 2][1]

        async def refused(last_id: str, path: str = "chat/completions", **fields: Any) -> Any:
            headers = {"last-event-id": last_id}
            answer = await other.post(f"/v1/{path}", json=body | fields, headers=headers)
            return answer.status_code, answer.json()["error"]["param"], answer.json()["error"]

        head, _, _ = last_id.rpartition("/")
        huge = f"{head}/{'9' * 5000}-1-1-a"
        for bad in ("7", last_id + "x", last_id.replace("/", "-"), "a" * 70_000, huge):
            status, param, error = await refused(bad)
            assert (status, param) == (400, "Last-Event-ID"), error
        status, param, _ = await refused(last_id, stream=False, stream_options=None)
        assert (status, param) == (400, "stream")
        status, param, _ = await refused(last_id, seed=5)
        assert (status, param) == (400, "seed")
        status, param, error = await refused(last_id, n=2)
        assert (status, param) == (400, "Last-Event-ID")
        assert "1 choices" in error["message"]
        status, param, error = await refused(last_id, temperature=0.2)
        assert (status, error["code"]) == (409, "stream_parted"), "another text"
        status, _, error = await refused(last_id, max_tokens=1)
        assert (status, error["code"]) == (409, "stream_parted"), "a shorter one"
        asked = {"model": "demo", "input": "hi", "stream": True}
        answer = await other.post("/v1/responses", json=asked, headers={"last-event-id": last_id})
        assert answer.status_code == 400
        assert "/v1/responses" in answer.json()["error"]["message"]


async def test_a_stream_that_hides_lengths_has_no_ids() -> None:
    options = {"stream_options": {"include_usage": True, "include_obfuscation": True}}
    async with demo_http() as client:
        found = await stream(client, body_of(options))
    assert {event_id for _, event_id in found} == {""}


async def test_a_program_reads_on_through_broken_connections() -> None:
    body = body_of({"temperature": 1, "seed": 11, "max_tokens": 60})
    cuts = (900, 20, 2500, NEW_PROXY)
    async with demo_over_http() as target, cutting(target.root_url, *cuts) as broken:
        wholes = []
        for url in (target.root_url, broken):
            read = events(f"{url}/v1/chat/completions", body)
            wholes.append(await asyncio.to_thread(list, read))
    expected, found = (countless(joined(one)) for one in wholes)
    assert found | {"heads": expected["heads"]} == expected
    assert len(found["heads"]) == 1


async def test_a_program_does_not_wait_for_a_router_that_is_gone_without_a_word() -> None:
    body = body_of({"temperature": 0, "max_tokens": 30})
    async with (
        demo_over_http() as target,
        cutting(target.root_url, 900, silently=True) as lost,
    ):
        url = f"{lost}/v1/chat/completions"
        found, expected = [
            countless(joined(await asyncio.to_thread(lambda: list(events(url, body, silence_s=2)))))
            for _ in range(2)  # the second is not cut
        ]
    assert found | {"heads": expected["heads"]} == expected


async def test_a_program_gives_up_a_service_that_does_not_come_back() -> None:
    body = body_of({"temperature": 0, "max_tokens": 30})
    async with demo_over_http() as target, cutting(target.root_url, 900, *[1] * 50) as broken:
        read = events(f"{broken}/v1/chat/completions", body, goes_on_s=1.0)
        with pytest.raises((OSError, EOFError, http.client.HTTPException)):
            await asyncio.to_thread(list, read)


def test_a_refusal_by_a_service_that_knows_the_route_is_final() -> None:
    assert is_passing(404, "Path '/v1/chat/completions' not found.")
    assert not is_passing(404, '{"error": {"message": "no such model"}}')
    passing = [status for status in (400, 409, 429, 500, 503) if is_passing(status, "")]
    assert passing == [429, 500, 503]


async def test_a_program_is_told_what_does_not_pass_by() -> None:
    async with demo_over_http() as target:
        url = f"{target.root_url}/v1/chat/completions"
        for wrong, status in (({"model": "other"}, 404), ({"temperature": 9}, 400)):
            with pytest.raises(Refused, match=r"other|temperature") as caught:
                await asyncio.to_thread(list, events(url, body_of(wrong)))
            assert caught.value.status == status
    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(list, events(url, body_of({})))
