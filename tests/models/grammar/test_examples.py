"""The examples of the grammar page, on the demo pair: other parsers read what was written."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import sqlite3
from collections.abc import Callable
from email.headerregistry import Address
from pathlib import Path

import jsonschema
import pytest

from models.grammar.rules.ebnf import is_ebnf
from models.protocol.messages import Grammar
from tests.harness.local import (
    DEMO,
    LocalService,
    demo_grammar_host,
    demo_tokenizer,
    local_service,
    make_request,
)

PAGE = Path(__file__).parents[3] / "models" / "grammar" / "README.md"
EXAMPLE = re.compile(r"^([^\n]+):\n\n```(regex|ebnf|lark|json)\n(.*?)^```$", re.M | re.S)
TASKS = {
    "E-mail, a `regex`": "What is the e-mail address of Imogen?",
    "Phone, a `grammar`": "What is the phone number of Imogen?",
    "A subset of SQL, a `grammar`": "Find all orders of Imogen.",
    "A Python function, a `grammar`": "Write a Python function that adds two numbers.",
    "A function call, a `structural_tag`": "Add 3 and 4.",
}


def examples() -> dict[str, Grammar]:
    kinds = {"json": "structural_tag"}
    return {
        name: Grammar(kind=kinds.get(kind, kind), text=text.rstrip("\n"))  # type: ignore[arg-type]
        for name, kind, text in EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))
    }


def read_email(text: str) -> None:
    assert Address(addr_spec=text).domain.endswith((".com", ".org", ".net"))


def read_phone(text: str) -> None:
    country, area, number = text.removeprefix("+").split(" ")
    assert len(area) == 3
    assert 4 <= len(number) <= 6
    assert all(part.isdecimal() for part in (country, area, number))


def read_sql(text: str) -> None:
    tables = sqlite3.connect(":memory:")
    tables.execute("CREATE TABLE orders (customer, item, quantity, price)")
    assert sqlite3.complete_statement(text)
    tables.execute(text)


def read_python(text: str) -> None:
    [function] = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    assert isinstance(function.body[0], ast.Return)


def read_call(text: str) -> None:
    head, _, rest = text.partition(">")
    tag = json.loads(examples()["A function call, a `structural_tag`"].text)
    [content] = [t["content"] for t in tag["format"]["tags"] if t["begin"] == head + ">"]
    jsonschema.validate(json.loads(rest.removesuffix("</call>")), content["json_schema"])


READERS: dict[str, Callable[[str], None]] = dict(
    zip(TASKS, (read_email, read_phone, read_sql, read_python, read_call), strict=True)
)


def test_every_example_is_tried_and_in_the_notation_it_says() -> None:
    found = examples()
    assert set(found) == set(TASKS)
    for grammar in found.values():
        if grammar.kind in ("ebnf", "lark"):
            assert is_ebnf(grammar.text) == (grammar.kind == "ebnf")


async def answer(service: LocalService, name: str, k: int, temperature: float, seed: int) -> str:
    chat = [{"role": "user", "content": TASKS[name]}]
    request = make_request(
        f"{name}-{k}-{temperature}-{seed}",
        demo_tokenizer().encode_chat(chat),
        k=k,
        temperature=temperature,
        seed=seed,
        max_tokens=200,
        eos_ids=demo_tokenizer().eos_ids,
        grammar=examples()[name],
    )
    _, finished, text = await service.generate(request, demo_tokenizer().detokenizer())
    assert finished.finish_reason == "stop", (name, text)
    return text


@pytest.mark.timeout(300)
async def test_other_parsers_read_every_answer_and_drafts_move_none() -> None:
    asked = [(name, *way) for name in TASKS for way in ((0.0, 1), (0.8, 1), (0.8, 2))]
    async with local_service(
        DEMO / "target", DEMO / "draft", grammar_host=demo_grammar_host(), kv_cache_tokens=32768
    ) as service:
        answers = {
            k: await asyncio.gather(
                *(answer(service, name, k, heat, seed) for name, heat, seed in asked)
            )
            for k in (0, 4)
        }
    assert answers[4] == answers[0]
    for (name, *_), text in zip(asked, answers[0], strict=True):
        READERS[name](text)
        print(f"{name}: {text!r}")
