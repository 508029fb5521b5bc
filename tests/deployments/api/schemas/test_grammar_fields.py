"""Constraints over HTTP: what is asked for, and how refusals name it."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from models.protocol.errors import UnsupportedGrammar
from models.protocol.messages import Grammar, Sampling
from tests.fakes.http import ScriptedGenerator
from tests.harness.http_clients import client_of, events_of, openai_client

MESSAGES: Any = [{"role": "user", "content": "hi"}]
CHAT = {"model": "tiny", "messages": MESSAGES}
TEXT = {"model": "tiny", "prompt": "hi"}
BOTH = pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)],
    ids=["chat", "text"],
)


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
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@BOTH
async def test_a_refused_grammar_names_the_field_as_the_client_spelt_it(
    path, body, constraint, field, error_at
):
    generator = ScriptedGenerator(error=UnsupportedGrammar("position 3: no"), error_at=error_at)
    async with client_of(generator) as client:
        answer = await client.post(path, json=body | constraint)
        stream = await client.post(path, json=body | constraint | {"stream": True})
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
