"""Streams that break and go on at another router: the same text, nothing twice, nothing lost."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import zlib
from array import array
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from deployments.api.writing.resuming import Begun, Place
from deployments.streams import KnownIds, Refused, add_ids, events, is_passing, resumed
from tests.harness.cutting import NEW_PROXY, cutting
from tests.harness.local import demo_grammar_host, demo_http, demo_tokenizer
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


def ids_of(events: Sequence[Event]) -> KnownIds:
    known: KnownIds = {}
    for event in events:
        add_ids(known, event)
    return known


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
            of["ids"] = of.get("ids", []) + choice.get("token_ids", [])
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


@pytest.mark.parametrize("has_ids", [False, True], ids=["made again", "ids"])
@pytest.mark.parametrize("case", CASES)
async def test_a_stream_goes_on_elsewhere_as_if_nothing_had_been(case: str, has_ids: bool) -> None:
    body = body_of(CASES[case] | {"return_token_ids": has_ids})
    rng = random.Random(f"{case} {has_ids}")
    async with two_routers() as routers:
        whole = await stream(routers[0], body)
        expected = countless(joined([event for event, _ in whole]))
        assert expected[0]["role"] == "assistant"
        marked = [number for number, (_, event_id) in enumerate(whole) if event_id]
        assert marked[-1] == len(whole) - 1, "the last event has one as well"
        for cut in {marked[0], marked[-1], *rng.sample(marked, min(4, len(marked)))}:
            begun, last_id = [event for event, _ in whole[: cut + 1]], whole[cut][1]
            rest = await stream(routers[1], resumed(body, ids_of(begun)), last_id)
            middle = rng.choice([number for number, (_, one) in enumerate(rest) if one])
            known = ids_of([*begun, *(event for event, _ in rest[: middle + 1])])
            again = await stream(routers[0], resumed(body, known), rest[middle][1])
            for parts in (rest, rest[: middle + 1] + again):
                found = joined([*begun, *(event for event, _ in parts)])
                assert countless(found) == expected, cut


@pytest.mark.parametrize("speculation", [{"k": 0}, {"k": 3}, {"enabled": False}, {}])
async def test_tokens_that_the_client_has_are_not_made_again(speculation: dict[str, Any]) -> None:
    fields = {"temperature": 1, "seed": 106, "max_tokens": 200, "ignore_eos": True}
    body = body_of(fields | {"speculation": speculation, "return_token_ids": True})
    async with two_routers() as (one, other):
        whole = await stream(one, body)
        cut = 2 * len(whole) // 3
        begun, last_id = [event for event, _ in whole[: cut + 1]], whole[cut][1]
        known = ids_of(begun)
        rest = [event for event, _ in await stream(other, resumed(body, known), last_id)]
    assert countless(joined([*begun, *rest])) == countless(joined([event for event, _ in whole]))
    assert rest[-1]["metrics"]["rounds"]["num_rounds"] <= 200 - len(known[0]) + 2
    assert rest[-1]["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] >= 15


async def test_a_text_by_the_rejection_rule_goes_on_too_with_its_tokens() -> None:
    """It is another text each time, so it cannot be made again."""
    rejection = {"verification": "rejection", "k": 3}
    fields = {"temperature": 1, "seed": 3, "speculation": rejection, "return_token_ids": True}
    body = body_of(fields | {"max_tokens": 40, "ignore_eos": True})
    async with two_routers() as (one, other):
        whole = await stream(one, body)
        marked = [number for number, (_, event_id) in enumerate(whole) if event_id]
        for cut in (marked[len(marked) // 2], marked[-2]):
            begun, last_id = [event for event, _ in whole[: cut + 1]], whole[cut][1]
            rest = await stream(other, resumed(body, ids_of(begun)), last_id)
            found = joined([*begun, *(event for event, _ in rest)])
            assert found["usage"]["completion_tokens"] == len(found[0]["ids"]) == 40
            assert found[0]["reason"] == "length"


@pytest.mark.parametrize("case", ["greedy", "stop", "schema", "tools", "choices", "logprobs"])
async def test_answers_have_the_ids_of_their_tokens(case: str) -> None:
    body = body_of(CASES[case] | {"seed": 8, "return_token_ids": True})
    tokenizer = demo_tokenizer()
    async with demo_http(grammar_host=demo_grammar_host()) as client:
        streamed = [event for event, _ in await stream(client, body)]
        fields = {"stream": False, "stream_options": None}
        whole = (await client.post("/v1/chat/completions", json=body | fields)).json()
    choices = whole["choices"]
    assert ids_of(streamed) == {choice["index"]: choice["token_ids"] for choice in choices}
    prompts = [event["prompt_token_ids"] for event in streamed if "prompt_token_ids" in event]
    assert prompts == [whole["prompt_token_ids"]] * len(choices)
    assert len(prompts[0]) == whole["usage"]["prompt_tokens"]
    for choice in choices:
        if text := choice["message"]["content"]:  # not of a call, which is written otherwise
            assert tokenizer.decode(choice["token_ids"]).startswith(text)
    assert sum(len(one["token_ids"]) for one in choices) == whole["usage"]["completion_tokens"]


async def test_completions_have_the_ids_of_each_prompt_and_choice() -> None:
    prompts = ["Once upon", "The dog"]
    body = {"model": "demo", "prompt": prompts, "n": 2, "seed": 4, "max_tokens": 12, "echo": True}
    body |= {"return_token_ids": True}
    async with demo_http() as client:
        whole = (await client.post("/v1/completions", json=body)).json()["choices"]
        answer = await client.post("/v1/completions", json=body | {"stream": True})
    events = [event for event, _ in blocks_of(answer.text)]
    assert ids_of(events) == {choice["index"]: choice["token_ids"] for choice in whole}
    firsts = {
        choice["index"]: choice["prompt_token_ids"]
        for event in events
        for choice in event["choices"]
        if "prompt_token_ids" in choice
    }
    assert firsts == {choice["index"]: choice["prompt_token_ids"] for choice in whole}
    assert firsts[0] == firsts[1] != firsts[2] == firsts[3]


@pytest.mark.parametrize("has_ids", [False, True], ids=["made again", "ids"])
async def test_each_choice_of_several_prompts_goes_on_behind_its_tokens(has_ids: bool) -> None:
    """Behind the first event all choices but one have no tokens, so no list."""
    body: dict[str, Any] = {"model": "demo", "prompt": ["Once upon", "The dog"], "n": 2, "seed": 4}
    body |= {"max_tokens": 40, "echo": True, "stream": True, "return_token_ids": has_ids}
    async with two_routers() as (one, other):
        answer = await one.post("/v1/completions", json=body)
        whole = list(blocks_of(answer.text))
        marked = [number for number, (_, event_id) in enumerate(whole) if event_id]
        for cut in (marked[0], marked[len(marked) // 2], marked[-2]):
            begun = [event for event, _ in whole[: cut + 1]]
            headers = {"last-event-id": whole[cut][1]}
            asked = resumed(body, ids_of(begun))
            answer = await other.post("/v1/completions", json=asked, headers=headers)
            events = [*begun, *(event for event, _ in blocks_of(answer.text))]
            expected = [event for event, _ in whole]
            assert texts_of(events) == texts_of(expected), answer.text
            assert texts_of(events)[0].startswith("Once upon")
            assert ids_of(events) == ids_of(expected)


def texts_of(events: Sequence[Event]) -> dict[int, str]:
    found: dict[int, str] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        found[choice["index"]] = found.get(choice["index"], "") + choice["text"]
    return found


async def test_ids_that_are_not_those_of_the_stream_are_refused_by_name() -> None:
    body = body_of({"temperature": 0, "return_token_ids": True})
    async with two_routers() as (one, other):
        whole = await stream(one, body)
        cut = len(whole) // 2
        last_id, ids = whole[cut][1], ids_of([event for event, _ in whole[: cut + 1]])[0]

        async def refused(sent: Any, last_id: str = last_id, **fields: Any) -> str:
            headers = {"last-event-id": last_id} if last_id else {}
            asked = body | {"resume_token_ids": sent} | fields
            answer = await other.post("/v1/chat/completions", json=asked, headers=headers)
            error = answer.json()["error"]
            assert answer.status_code == 400, error
            assert error["param"].startswith("resume_token_ids"), error
            return str(error["message"])

        assert f"choice's {len(ids)} tokens" in await refused([ids[:-1]])
        assert "with checksum" in await refused([[ids[0] + 1, *ids[1:]]])
        assert "at most 1 lists" in await refused([ids, ids])
        assert "1024" in await refused([ids] * 1025)
        assert "Last-Event-ID" in await refused([ids], "")
        assert "must be a list of token ids" in await refused([["a"]])
        assert "outside the vocabulary" in await refused([[2**40] * len(ids)])
        schema = {"type": "json_schema", "json_schema": {"name": "o", "schema": SCHEMA}}
        assert "breaks the grammar" in await refused([ids], response_format=schema)


def begun_with(ids: list[int], num_chars: int) -> str:
    checksum = zlib.crc32(array("q", ids).tobytes())
    return str(Begun("chatcmpl-x", 1, 1, (Place(len(ids), num_chars, 0, checksum),)))


async def test_ids_that_the_model_would_not_write_part_from_its_text() -> None:
    ids = [5] * 60  # the last of them are made again
    async with demo_http() as client:
        asked = body_of({"temperature": 0, "resume_token_ids": [ids]})
        headers = {"last-event-id": begun_with(ids, 60)}
        answer = await client.post("/v1/chat/completions", json=asked, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "stream_parted")


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
    cuts = (1500, 20, 2500, NEW_PROXY)
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
        cutting(target.root_url, 1500, silently=True) as lost,
    ):
        url = f"{lost}/v1/chat/completions"
        found, expected = [
            countless(joined(await asyncio.to_thread(lambda: list(events(url, body, silence_s=2)))))
            for _ in range(2)  # the second is not cut
        ]
    assert found | {"heads": expected["heads"]} == expected


async def test_a_program_gives_up_a_service_that_does_not_come_back() -> None:
    body = body_of({"temperature": 0, "max_tokens": 30})
    async with demo_over_http() as target, cutting(target.root_url, 1500, *[1] * 50) as broken:
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
