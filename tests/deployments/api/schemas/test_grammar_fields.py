"""Constraints over HTTP: what is asked for, and how refusals name it."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from models.protocol.errors import UnsupportedGrammar
from models.protocol.grammars import GrammarChecked
from models.protocol.messages import Grammar, Sampling
from tests.deployments.api.asking import post, refusal
from tests.fakes.http import BODIES, CHAT, ScriptedGenerator
from tests.harness.http_clients import events_of, openai_client

BOTH = pytest.mark.parametrize(("path", "body"), BODIES.items(), ids=["chat", "text"])
MESSAGES: Any = CHAT["messages"]


@pytest.mark.parametrize("error_at", [0, 1], ids=["first", "later"])
@pytest.mark.parametrize(
    ("constraint", "field"),
    [
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "object"}},
                }
            },
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "json_object"}}, "response_format.type"),
        ({"structured_outputs": {"json": {"type": "object"}}}, "structured_outputs.json"),
        ({"structured_outputs": {"json_object": True}}, "structured_outputs.json_object"),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag"),
        ({"response_format": {"type": "structural_tag", "format": {}}}, "response_format"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@BOTH
async def test_a_refused_grammar_names_the_field_as_the_client_spelt_it(
    path, body, constraint, field, error_at
):
    generator = ScriptedGenerator(error=UnsupportedGrammar("position 3: no"), error_at=error_at)
    answer = await post(path, body | constraint, generator)
    stream = await post(path, body | constraint | {"stream": True}, generator)
    assert answer.status_code == 400
    assert stream.status_code == (200 if error_at else 400)
    told = events_of(stream.text)[-1] if error_at else stream.json()
    for error in (answer.json()["error"], told["error"]):
        assert error["message"] == f"{field}: position 3: no"
        assert error["param"] == field
        assert error["code"] == "unsupported_grammar"
    assert generator.closed == 2


def test_the_openai_client_sends_every_field():
    generator = ScriptedGenerator(texts=['{"a"', ": 1}"])
    with openai_client(generator) as client:
        answer = client.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            presence_penalty=0.5,
            frequency_penalty=-0.5,
            response_format={"type": "json_object"},
            extra_body={
                "min_p": 0.05,
                "repetition_penalty": 1.1,
                "speculation": {"verification": "rejection", "drafter": "ngram"},
            },
        )
        client.completions.create(
            model="tiny",
            prompt="hi",
            extra_body={
                "structured_outputs": {"choice": ["yes", "no"], "choice_sampling": "masked"}
            },
        )
        with pytest.raises(openai.BadRequestError, match=r"structured_outputs\.regex") as caught:
            client.chat.completions.create(
                model="tiny",
                messages=MESSAGES,
                extra_body={"structured_outputs": {"regex": 5}},
            )
    assert json.loads(answer.choices[0].message.content or "") == {"a": 1}
    assert caught.value.param == "structured_outputs.regex"
    chat, text = generator.requests
    assert chat.grammar == Grammar(kind="json_object", text="")
    assert text.grammar == Grammar(kind="choice", text='["yes", "no"]')
    assert chat.sampling == Sampling(
        seed=chat.sampling.seed,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        min_p=0.05,
        repetition_penalty=1.1,
        verification="rejection",
    )
    assert chat.speculation.drafter == "ngram"


@pytest.mark.parametrize(
    ("outputs", "param", "part"),
    [
        (
            {"regex": "a", "whitespace_pattern": " ?"},
            "structured_outputs.whitespace_pattern",
            "only allowed with json and json_object (got regex)",
        ),
        (
            {"grammar": "a", "disable_additional_properties": True},
            "structured_outputs.disable_additional_properties",
            "(got grammar)",
        ),
        (
            {"json": {}, "whitespace_pattern": " ?", "disable_any_whitespace": True},
            "structured_outputs.whitespace_pattern",
            "not allowed with disable_any_whitespace",
        ),
    ],
)
@BOTH
async def test_options_that_do_not_fit_are_refused_by_name(path, body, outputs, param, part):
    error = await refusal(path, body | {"structured_outputs": outputs})
    assert error["param"] == param
    assert part in error["message"]


@pytest.mark.parametrize(
    ("field", "owner"),
    [("json_schema", "json_schema"), ("format", "structural_tag"), ("triggers", "structural_tag")],
)
async def test_a_format_takes_only_its_own_fields(field, owner):
    value = {"json_schema": {"name": "x", "schema": {}}, "format": {}, "triggers": ["<a"]}[field]
    body = CHAT | {"response_format": {"type": "json_object", field: value}}
    error = await refusal("/v1/chat/completions", body)
    assert error["param"] == f"response_format.{field}"
    assert f"only allowed with type '{owner}'" in error["message"]


async def test_a_text_is_compared_without_generation():
    async def checker(grammar: Grammar, text: str) -> GrammarChecked:
        assert grammar == Grammar(kind="regex", text="a+b")
        may_end = text == "aab"
        return GrammarChecked(session_id="s", num_bytes=2, may_end=may_end, expected=["a", "b"])

    generator = ScriptedGenerator()
    body = {"structured_outputs": {"regex": "a+b"}, "model": "tiny"}
    stops, short = [
        await post("/v1/grammar/check", body | {"text": text}, generator, check_grammar=checker)
        for text in ("aac", "aa")
    ]
    assert stops.json() == {
        "object": "grammar.check",
        "valid": False,
        "num_bytes": 2,
        "stops_at": 2,
        "may_end": False,
        "expected": ["a", "b"],
        "loosened": [],
    }
    assert short.json()["stops_at"] is None
    assert not generator.requests


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({}, 400, "structured_outputs"),
        ({"response_format": {"type": "text"}}, 400, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "text": 3}, 400, "text"),
        ({"structured_outputs": {"regex": "a"}, "text": "a" * 65_537}, 400, "text"),
        ({"structured_outputs": {"regex": "a"}, "text": "\u00e4" * 40_000}, 400, "text"),
        ({"structured_outputs": {"regex": "a"}, "model": "other"}, 404, "model"),
        ({"structured_outputs": {"regex": "a"}, "more": 1}, 400, "more"),
        ({"structured_outputs": {"regex": "a"}}, 400, "structured_outputs.regex"),
    ],
)
async def test_what_cannot_be_compared_is_refused_by_name(fields, status, param):
    async def checker(grammar: Grammar, text: str) -> GrammarChecked:
        raise UnsupportedGrammar("position 0: no")

    answer = await post("/v1/grammar/check", {"text": "a"} | fields, check_grammar=checker)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
