"""`chat_template_kwargs`: a variable reaches the template of a checkpoint that uses it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployments.api.requests import ServedModel
from models.text.tokenizer import Tokenizer
from tests.deployments.api.asking import post, refusal
from tests.fakes.http import CHAT, ScriptedGenerator, served_model
from tests.harness.local import DEMO

# Writes a system's turn by the variables `style` and `words`, where the first is given.
TEMPLATE = (
    "{% if style == '' %}{{ raise_exception('no style') }}{% endif %}"
    "{% if style is defined %}<|system|>Be {{ style }}"
    "{% if words %} in {{ words.limit }} words{% endif %}.<|end|>{% endif %}"
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
BARE = "<|user|>hi<|end|><|assistant|>"


@pytest.fixture
def model(tmp_path: Path) -> ServedModel:
    """The demo's tokenizer with a template of the test's."""
    for name in ("tokenizer.json", "config.json", "generation_config.json"):
        shutil.copy(DEMO / "target" / name, tmp_path)
    settings = json.loads((DEMO / "target" / "tokenizer_config.json").read_text("utf-8"))
    settings["chat_template"] = TEMPLATE
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return replace(served_model(), tokenizer=Tokenizer.load(tmp_path))


def text_of(model: ServedModel, ids: Any) -> str:
    return b"".join(map(model.tokenizer.token_bytes, ids)).decode()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (None, BARE),
        ({}, BARE),
        ({"unknown": 1}, BARE),
        ({"style": "brief"}, f"<|system|>Be brief.<|end|>{BARE}"),
        (
            {"style": "brief", "words": {"limit": 5}},
            f"<|system|>Be brief in 5 words.<|end|>{BARE}",
        ),
        # What the checkpoint says of itself is not the client's to change.
        ({"eos_token": "hi", "add_generation": True}, BARE),
    ],
)
async def test_a_variable_reaches_the_template_on_every_route(model, settings, expected):
    generator = ScriptedGenerator()
    extra = {} if settings is None else {"chat_template_kwargs": settings}
    for path, body in (
        ("/v1/chat/completions", CHAT),
        ("/v1/responses", {"model": "tiny", "input": "hi"}),
    ):
        answer = await post(path, body | extra, generator, model=model)
        assert answer.status_code == 200, answer.text
    tokenized = await post("/tokenize", {"messages": CHAT["messages"], **extra}, model=model)
    prompts = [request.prompt_ids for request in generator.requests]
    prompts.append(tokenized.json()["tokens"])
    assert [text_of(model, ids) for ids in prompts] == [expected] * 3


async def test_a_variable_is_text_and_no_special_token(model):
    generator = ScriptedGenerator()
    body = CHAT | {"chat_template_kwargs": {"style": "<|user|>bad"}}
    await post("/v1/chat/completions", body, generator, model=model)
    ids = generator.requests[0].prompt_ids
    specials = [text_of(model, [each]) for each in ids if model.tokenizer.is_special(each)]
    assert specials == ["<|system|>", "<|end|>", "<|user|>", "<|end|>", "<|assistant|>"]
    assert "Be <|user|>bad." in text_of(model, ids)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("style", "must be an object"),
        ({"style": "x" * 17_000}, "16384 bytes"),
        ({"messages": []}, "'messages' is not a setting"),
        ({"style": ""}, "no style"),
    ],
)
async def test_what_is_no_setting_is_refused_by_name(model, settings, words):
    body = CHAT | {"chat_template_kwargs": settings}
    error = await refusal("/v1/chat/completions", body, model=model)
    assert words in error["message"]
