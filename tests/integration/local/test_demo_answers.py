"""The shipped pair does what the README shows: orders become the right records, code is code."""

from __future__ import annotations

import ast
import asyncio
import json
import random
from typing import Any

import pytest

from models.demo.data.extraction import make_extraction
from models.demo.data.mixture import Mixture
from models.protocol.messages import Grammar
from tests.harness.local import (
    DEMO,
    LocalService,
    demo_grammar_host,
    demo_tokenizer,
    local_service,
    make_request,
)

NUM_ORDERS = 100
TYPES = {str: "string", int: "integer", float: "number"}


def schema_of(record: dict[str, Any]) -> dict[str, Any]:
    """The schema a client would send for such a record."""
    return {
        "type": "object",
        "properties": {key: {"type": TYPES[type(value)]} for key, value in record.items()},
        "required": list(record),
        "additionalProperties": False,
    }


async def answer(
    service: LocalService,
    name: str,
    messages: list[dict[str, str]],
    schema: dict[str, Any] | None = None,
) -> str:
    grammar = None
    if schema is not None:
        grammar = Grammar(kind="json_schema", text=json.dumps(schema))
    request = make_request(
        name,
        demo_tokenizer().encode_chat(messages),
        max_tokens=300,
        eos_ids=demo_tokenizer().eos_ids,
        grammar=grammar,
    )
    _, finished, text = await service.generate(request, demo_tokenizer().detokenizer())
    assert finished.finish_reason == "stop", name
    return text


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_orders_become_the_right_records(capsys: pytest.CaptureFixture[str]) -> None:
    mixture = Mixture.load(None, held_out=True)
    rng = random.Random(2026)
    chats = [make_extraction(rng, mixture.pools, True, "order") for _ in range(NUM_ORDERS)]
    places = asyncio.Semaphore(8)

    async def fields_right(index: int) -> tuple[int, int]:
        chat = chats[index]
        wanted = json.loads(chat.answer)
        messages = [{"role": role, "content": content} for role, content in chat.turns[:-1]]
        async with places:
            text = await answer(service, f"order-{index}", messages, schema_of(wanted))
        got = json.loads(text)
        return sum(got[key] == value for key, value in wanted.items()), len(wanted)

    async with local_service(
        DEMO / "target", DEMO / "draft", grammar_host=demo_grammar_host()
    ) as service:
        counts = await asyncio.gather(*(fields_right(index) for index in range(NUM_ORDERS)))
    num_right = sum(right for right, _ in counts)
    num_fields = sum(fields for _, fields in counts)
    with capsys.disabled():
        print(f"\n{num_right} of {num_fields} fields exact over {NUM_ORDERS} held-out orders")
    assert num_right / num_fields >= 0.95


@pytest.mark.slow
async def test_the_readme_requests_are_answered_sensibly() -> None:
    async with local_service(DEMO / "target", DEMO / "draft") as service:

        async def ask(text: str) -> str:
            return await answer(service, text, [{"role": "user", "content": text}])

        code = ast.parse(await ask("Write a Python function that adds two numbers."))
        story = await ask("Write a short story about a dog and a ball.")
    function = code.body[0]
    assert isinstance(function, ast.FunctionDef)
    assert isinstance(function.body[-1], ast.Return)
    assert isinstance(function.body[-1].value, ast.BinOp)
    assert isinstance(function.body[-1].value.op, ast.Add)
    assert len(story.split(".")) >= 4
    assert "dog" in story
