"""Long lists of logprobs: what one such request costs others, and how many a request may have."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest

from deployments.api.writing.chat_writer import ChatWriter
from deployments.api.writing.json_chunks import (
    SLICE_S,
    JsonItems,
    coalesced,
    in_slices,
    items_in_one,
    with_value,
)
from deployments.api.writing.text_writer import TextWriter
from deployments.api.writing.writers import AnswerHead
from models.protocol.messages import TokenLogprobs, Verdict
from models.protocol.packed_logprobs import MAX_PACKED_BYTES, pack, unpack
from router.types import Delta, Finished, ShownToken
from tests.deployments.api.asking import post
from tests.fakes.http import STATS, ScriptedGenerator, served_model, tiny_tokenizer
from tests.harness.http_clients import client_of, openai_client

TOKENIZER = tiny_tokenizer()
NUM_TOP = 20
LONG = 6_000  # prompt tokens
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
TEXT = {"model": "tiny", "prompt": "a", "max_tokens": 4}


def entry(token: int) -> TokenLogprobs:
    top = tuple(((token + 7 * i) % TOKENIZER.vocab_size, -0.1 - i / 7) for i in range(NUM_TOP))
    return TokenLogprobs(token, -1.25, NUM_TOP, top)


SHOWN = tuple(ShownToken(i, entry(i % TOKENIZER.vocab_size)) for i in range(LONG))
ENTRIES = tuple(pack(entry(i % TOKENIZER.vocab_size)) for i in range(1, LONG))


class LongLists(ScriptedGenerator):
    """All that is asked for comes with the first token."""

    async def generate(self, request: Any, detokenizer: Any) -> AsyncGenerator[Any, None]:
        self.requests.append(request)
        shown = SHOWN if request.sampling.num_logprobs >= 0 else ()
        yield Delta(
            "a", (5,), shown, ENTRIES if request.sampling.num_prompt_logprobs >= 0 else None
        )
        yield end()


def head(**fields: Any) -> AnswerHead:
    return AnswerHead(
        id="x", created=1, model="tiny", seed=1, tokenizer=TOKENIZER, prompt_lens=(LONG,), **fields
    )


def end() -> Finished:
    return Finished(
        finish_reason="length", num_prompt_tokens=LONG, num_completion_tokens=1, speculation=STATS
    )


@asynccontextmanager
async def watched_loop() -> AsyncIterator[Callable[[], float]]:
    """For how many seconds the event loop computed in one go at the longest.

    By the processor time of its thread: on a busy machine it stands still without its own fault.
    """
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            began_s = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - began_s)

    task = asyncio.create_task(watch())
    await asyncio.sleep(0)
    try:
        yield lambda: longest
    finally:
        task.cancel()


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt_logprobs": NUM_TOP, "n": 2}),
        ("/v1/chat/completions", {"prompt_logprobs": NUM_TOP}),
        ("/v1/completions", {"echo": True, "logprobs": NUM_TOP}),
        ("/v1/completions", {"echo": True, "logprobs": NUM_TOP, "stream": True}),
        ("/v1/completions", {"logprobs": NUM_TOP}),
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": NUM_TOP, "stream": True}),
    ],
    ids=["prompt", "chat-prompt", "echo", "echo-stream", "text", "chat-stream"],
)
async def test_others_run_while_a_long_list_is_written(path: str, fields: dict[str, Any]) -> None:
    """A writer that does it in one go stands still for all of the time it takes."""
    body = (CHAT if "chat" in path else TEXT | {"prompt": [5] * LONG}) | fields
    model = served_model(max_model_len=LONG + 100)
    async with (
        client_of(LongLists(), model=model, body_limit_bytes=1_000_000) as client,
        watched_loop() as longest,
    ):
        began_s = time.thread_time()
        response = await client.post(path, json=body)
        took_s = time.thread_time() - began_s
        stood_still_s = longest()
    assert response.status_code == 200
    assert len(response.content) > 3_000_000
    assert took_s > 4 * SLICE_S, "too little to see anything"
    assert stood_still_s < max(took_s / 2, 0.25)


async def test_many_long_lists_take_turns() -> None:
    """Were each to take a slice in every iteration, ten would stop the loop ten times as long."""
    iteration = 0
    done: list[tuple[int, int]] = []  # by whom and in which iteration of the loop

    async def long_work(who: int) -> None:
        def work(item: int) -> None:
            time.sleep(SLICE_S / 10)
            done.append((who, iteration))

        await in_slices(range(60), work)

    tasks = [asyncio.create_task(long_work(who)) for who in range(8)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        iteration += 1
    for number in range(iteration):
        assert len({who for who, at in done if at == number}) <= 1
    assert len({who for who, _ in done[:60]}) > 1  # none waits until another is done
    assert [sum(1 for one, _ in done if one == who) for who in range(8)] == [60] * 8


async def test_few_items_wait_for_nobody() -> None:
    taken: list[int] = []
    slow = asyncio.create_task(in_slices(range(10_000_000), lambda item: None))
    await asyncio.sleep(0)
    await in_slices(range(5), taken.append)
    assert taken == [0, 1, 2, 3, 4]
    assert not slow.done()
    slow.cancel()


async def test_choices_share_their_prompts_bytes() -> None:
    writer = TextWriter(head(num_prompt_logprobs=NUM_TOP, choices_per_prompt=4))
    for index in range(4):
        await writer.add(index, Delta("a", (5,), (), ENTRIES if index == 0 else None))
    chunks = writer.whole([end()] * 4)
    num_bytes = sum(map(len, chunks))
    held = sum({id(chunk): len(chunk) for chunk in chunks}.values())
    assert held < num_bytes / 3.9
    answer = msgspec.json.decode(b"".join(chunks))
    lists = [choice["prompt_logprobs"] for choice in answer["choices"]]
    assert all(one == lists[0] for one in lists)
    assert len(lists[0]) == LONG
    assert max(map(len, coalesced(chunks))) < 200_000


async def test_entries_are_not_kept_as_objects() -> None:
    """What is kept of a long answer is its JSON, which is a tenth of them."""
    writer = ChatWriter(head(num_logprobs=NUM_TOP))
    shown = [ShownToken(i, unpack(packed)) for i, packed in enumerate(ENTRIES[:500])]
    for token in shown:
        await writer.add(0, Delta("a", (5,), (token,)))
    del token
    alone = [ShownToken(0, shown[0].logprobs)]
    assert {sys.getrefcount(one) for one in shown} == {sys.getrefcount(one) for one in alone}
    content = msgspec.json.decode(b"".join(writer.whole([end()])))["choices"][0]["logprobs"]
    assert len(content["content"]) == 500


# --- over HTTP ------------------------------------------------------------------------------------


def test_a_client_reads_a_long_body() -> None:
    with openai_client(LongLists()) as client:
        raw = client.completions.with_raw_response.create(
            model="tiny",
            prompt="a",
            n=3,
            extra_body={"prompt_logprobs": 5},
        )
        answer = raw.parse()
    assert int(raw.headers["content-length"]) == len(raw.content) > 5_000_000
    assert raw.headers["content-type"] == "application/json"
    assert len(answer.choices) == 3
    extra = answer.choices[2].model_extra
    assert extra is not None
    assert len(extra["prompt_logprobs"]) == LONG


async def asked(path: str, body: dict[str, Any], **limits: Any) -> httpx.Response:
    generator = ScriptedGenerator()
    response = await post(path, body, generator, model=served_model(**limits))
    assert (response.status_code == 200) == bool(generator.requests)
    return response


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("body", "num_entries", "field"),
    [
        (CHAT | {"logprobs": True}, 4, "logprobs"),
        (CHAT | {"logprobs": True, "top_logprobs": 2, "n": 3}, 36, "top_logprobs"),
        (TEXT | {"logprobs": 2, "n": 2}, 24, "logprobs"),
        (TEXT | {"logprobs": 1, "prompt": ["a", "b"], "n": 2}, 32, "logprobs"),
        (TEXT | {"logprobs": 1, "echo": True, "prompt": [5] * 9}, 26, "echo"),
    ],
    ids=["chat", "chat-n", "text-n", "prompts", "echo"],
)
async def test_a_limit_on_logprobs_by_name(
    body: dict[str, Any], num_entries: int, field: str, is_stream: bool
) -> None:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    body = body | {"stream": is_stream}
    refused = await asked(path, body, max_logprob_entries=num_entries - 1)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["param"] == field
    assert error["message"].startswith(
        f"{field}: at most {num_entries - 1} logprobs (max_logprob_entries) are allowed in an "
        f"answer (got {num_entries}, of these "
    )
    if field != "echo":
        assert (await asked(path, body, max_logprob_entries=num_entries)).status_code == 200


@pytest.mark.parametrize(("n", "num_entries"), [(1, 30), (3, 90)])
async def test_prompt_logprobs_count_as_often_as_they_are_written(n: int, num_entries: int) -> None:
    body = TEXT | {"prompt": [5] * 10, "prompt_logprobs": 2, "n": n}
    refused = await asked("/v1/completions", body, max_logprob_entries=num_entries - 1)
    assert f"(got {num_entries}, of these {10 * n} positions with 3 each)" in refused.text
    assert refused.json()["error"]["param"] == "prompt_logprobs"
    assert (await asked("/v1/completions", body, max_logprob_entries=num_entries)).is_success


# --- JSON in chunks -------------------------------------------------------------------------------


def test_items_grow_and_join() -> None:
    empty, some, more = JsonItems(), JsonItems(), JsonItems()
    for item in (1, None, "ä\n"):
        some.append(item)
    more.append({"a": [0.5]})
    for parts, expected in (
        ((), []),
        ((empty,), []),
        ((empty, some), [1, None, "ä\n"]),
        ((some, empty, more), [1, None, "ä\n", {"a": [0.5]}]),
    ):
        assert msgspec.json.decode(b"[" + b"".join(items_in_one(*parts)) + b"]") == expected
    before = more.chunks
    for _ in range(20_000):
        more.append("some text")
    assert len(more.chunks) > 2
    assert b"".join(more.chunks).startswith(before[0])
    assert len(msgspec.json.decode(b"[" + b"".join(more.chunks) + b"]")) == 20_001


def test_a_text_that_looks_like_the_place_is_not_taken_for_it() -> None:
    text = '"logprobs":null \\"logprobs\\":null'
    body = msgspec.json.encode({"text": text, "logprobs": None, "choices": []})
    chunks = with_value(body, "logprobs", [b"[1,", b"2]"])
    assert msgspec.json.decode(b"".join(chunks)) == {
        "text": text,
        "logprobs": [1, 2],
        "choices": [],
    }
    with pytest.raises(ValueError, match="no prompt_logprobs of null"):
        with_value(body, "prompt_logprobs", [])


def test_coalesced_bytes_are_the_same() -> None:
    chunks = [b"a", b"", b"b" * 100_000, b"c" * 70_000, b"d", b"e"]
    gathered = coalesced(chunks)
    assert b"".join(gathered) == b"".join(chunks)
    assert [len(chunk) for chunk in gathered] == [1, 100_000, 70_000, 2]
    assert coalesced([]) == []


# --- on the way -----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_top", [0, 1, 20])
def test_an_entry_is_never_longer_than_said(num_top: int) -> None:
    longest = TokenLogprobs(2**31, -1.1, 2**31, ((2**31, -1.1),) * num_top)
    assert unpack(pack(longest)) == longest
    in_verdict = msgspec.msgpack.encode([pack(longest)])[1:]
    assert len(in_verdict) <= MAX_PACKED_BYTES * (1 + num_top)


def test_a_frame_of_logprobs_is_decoded_without_looking_into_them() -> None:
    packed = msgspec.msgpack.encode(list(ENTRIES))
    plain = msgspec.msgpack.encode([unpack(one) for one in ENTRIES])

    def best_s(kind: Any, wire: bytes) -> float:
        decoder, best = msgspec.msgpack.Decoder(kind), 9.0
        for _ in range(3):
            began_s = time.thread_time()
            decoder.decode(wire)
            best = min(best, time.thread_time() - began_s)
        return best

    told = next(field for field in msgspec.structs.fields(Verdict) if "prompt" in field.name)
    assert best_s(told.type, packed) < best_s(list[TokenLogprobs], plain) / 4
