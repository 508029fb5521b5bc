"""Long bodies: refused by their size first, and never at the cost of other streams."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import sys
import time
from typing import Any

import httpx
import pytest

from deployments.api.bodies import parse
from deployments.api.history.content import MAX_PARTS
from deployments.api.history.message import MAX_MESSAGES
from deployments.api.requests import prepare_completions, prepare_turn
from deployments.api.schemas.requests import ChatCompletionRequest, CompletionRequest
from deployments.api.schemas.strict_fields import MAX_FIELDS
from models.protocol.errors import ContextTooLong, InvalidRequest, UnsupportedGrammar
from tests.fakes.http import ScriptedGenerator, served_model
from tests.harness.http_clients import client_of

# What no machine takes for a step of the loop; the code that this is about took seconds.
LONGEST_GAP_S = 0.5


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "tiny"} | fields).encode()


def messages(item: bytes, times: int) -> bytes:
    return b'{"model": "tiny", "messages": [' + b",".join([item] * times) + b"]}"


CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
WORDS = "The old bear walked home, 17 times. "
USER = b'{"role": "user", "content": "%s"}'
BODIES = {
    "text": (TEXT, body(prompt=WORDS * 27_000), "prompt"),
    "ids": (TEXT, body(prompt=[1] * 330_000), "prompt"),
    "empty-messages": (CHAT, messages(b"{}", 330_000), "messages"),
    "messages": (CHAT, messages(USER % b"hi", 30_000), "messages"),
    "fields": (TEXT, body(prompt="a", **{f"f{i}": i for i in range(70_000)}), None),
    "choice": (
        TEXT,
        body(prompt="a", structured_outputs={"choice": [1] * 330_000}),
        "structured_outputs.choice[0]",
    ),
    "value": (TEXT, body(prompt="a", temperature=[1] * 330_000), "temperature"),
    "chat-text": (CHAT, messages(USER % (b"a " * 480_000), 1), "messages"),
    "specials": (CHAT, messages(USER % (b"<|end|>" * 140_000), 1), "messages"),
}


async def refusals(
    path: str, content: bytes, times: int, **limits: Any
) -> tuple[list[httpx.Response], float]:
    """The answers to so many requests at once, and how long the event loop stood still.

    The time is what this process computed meanwhile: a busy machine does not make it longer.
    """
    longest_s = 0.0

    async def watch() -> None:
        nonlocal longest_s
        while True:
            began_s = time.process_time()
            await asyncio.sleep(0.001)
            longest_s = max(longest_s, time.process_time() - began_s)

    options: dict[str, Any] = {"model": served_model(**limits), "body_limit_bytes": 2_000_000}
    async with client_of(ScriptedGenerator(), **options) as client:
        watching = asyncio.create_task(watch())
        asked = [client.post(path, content=content) for _ in range(times)]
        answers = await asyncio.gather(*asked)
        await asyncio.sleep(0.01)
        watching.cancel()
    return answers, longest_s


@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize(("path", "content", "param"), BODIES.values(), ids=BODIES)
async def test_a_megabyte_is_refused_while_the_loop_goes_on(path, content, param, times):
    assert 650_000 < len(content) < 1_200_000
    answers, longest_s = await refusals(path, content, times)
    for answer in answers:
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, param)
        assert len(error["message"]) < 500
    assert longest_s < LONGEST_GAP_S


async def test_what_must_be_tokenised_does_not_stop_the_loop():
    content = body(prompt=" ".join(map(str, range(100_000))))  # might fit, by its length
    began_s = time.process_time()
    [answer], longest_s = await refusals(TEXT, content, 1, max_model_len=200_000)
    took_s = time.process_time() - began_s
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert longest_s < max(took_s / 3, 0.3)


def refused(schema: type[Any], content: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(content, schema)
    return caught.value


@pytest.mark.parametrize(
    ("content", "param", "limit", "value"),
    [
        (messages(USER % b"a", MAX_MESSAGES + 1), "messages", MAX_MESSAGES, MAX_MESSAGES + 1),
        (messages(b"{}", 5000), "messages", MAX_MESSAGES, 5000),
        *(
            (
                body(messages=[message | {"content": [{"type": "text", "text": "a"}] * 4097}]),
                "messages[0].content",
                MAX_PARTS,
                4097,
            )
            for message in (
                {"role": "user"},
                {"role": "assistant"},
                {"role": "tool", "tool_call_id": "c"},
            )
        ),
        (body(messages=[{f"f{i}": 1 for i in range(200)}]), "messages[0]", MAX_FIELDS, 200),
        (body(**{f"f{i}": 1 for i in range(200)}), None, MAX_FIELDS, 201),
        (body(speculation={f"f{i}": 1 for i in range(200)}), "speculation", MAX_FIELDS, 200),
        (
            body(
                response_format={
                    "type": "json_schema",
                    "json_schema": {f"f{i}": 1 for i in range(200)},
                }
            ),
            "response_format.json_schema",
            MAX_FIELDS,
            200,
        ),
    ],
)
def test_sizes_have_limits_by_name(content, param, limit, value):
    error = refused(ChatCompletionRequest, content)
    assert error.param == param
    assert f"at most {limit} " in error.message
    assert f"got {value}" in error.message


def test_as_much_as_the_limits_allow_is_taken():
    parts = [{"type": "text", "text": "a"}] * MAX_PARTS
    content = body(messages=[{"role": "user", "content": parts}] * 2)
    assert len(parse(content, ChatCompletionRequest).messages) == 2
    many = parse(messages(USER % b"a", MAX_MESSAGES), ChatCompletionRequest)
    assert len(many.messages) == MAX_MESSAGES


def test_what_cannot_fit_is_refused_by_its_length_before_it_is_tokenised(monkeypatch):
    model = served_model()

    def never(*args: Any, **options: Any) -> Any:
        raise AssertionError("tokenised")

    monkeypatch.setattr(type(model.tokenizer), "_encoded", never)
    text = parse(body(prompt="é" * 50_000), CompletionRequest)
    chat = parse(messages(USER % (b"a" * 100_000), 1), ChatCompletionRequest)
    for prepare, request, param in (
        (prepare_completions, text, "prompt"),
        (prepare_turn, chat, "messages"),
    ):
        with pytest.raises(ContextTooLong) as caught:
            prepare(request, model, "r1")
        assert caught.value.param == param
        assert caught.value.code == "context_length_exceeded"
        assert f"{param}: this model's maximum context length is 200 tokens" in caught.value.message
        assert re.search(r"of 1000\d\d bytes has at least \d{4,}", caught.value.message)


@pytest.mark.parametrize("prompt", ["a", 50_000 * "é"])
def test_bad_json_says_where(prompt):
    error = refused(CompletionRequest, body(prompt=prompt)[:-1] + b",}")
    assert error.code == "invalid_json"
    assert re.search(r"line 1 column \d+" if len(prompt) == 1 else r"\(byte \d+\)", error.message)


def test_a_schema_nested_too_deeply_is_refused():
    nested = '{"not": ' * 400 + "{}" + "}" * 400
    request = parse(
        f'{{"model": "tiny", "prompt": "a", "structured_outputs": {{"json": {nested}}}}}'.encode(),
        CompletionRequest,
    )
    deep = sys.getrecursionlimit()

    def prepare(depth: int) -> None:
        if depth:
            prepare(depth - 1)
        else:
            prepare_completions(request, served_model(), "r1")

    with pytest.raises(UnsupportedGrammar, match="nested too deeply"):
        prepare(deep - 300 - len(inspect.stack(0)))
