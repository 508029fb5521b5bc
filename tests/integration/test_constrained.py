"""Under a schema every answer that ends by itself parses and validates, with and without drafts."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import jsonschema
import pytest
from grammar_cases import TEN_SCHEMAS
from local_service import (
    DEMO,
    LocalService,
    demo_grammar_host,
    demo_tokenizer,
    local_service,
    make_request,
)

from loadtest.prompts import demo_prompts as held_out_prompts
from models.errors import UnsupportedGrammar
from models.messages import Grammar


async def answer(
    service: LocalService, name: str, schema: dict[str, Any], k: int, temperature: float
) -> tuple[list[int], str, str]:
    request = make_request(
        name,
        held_out_prompts(1, seed=17)[0],
        k=k,
        temperature=temperature,
        seed=5,
        max_tokens=160,
        eos_ids=list(demo_tokenizer().eos_ids),
        grammar=Grammar(kind="json_schema", text=json.dumps(schema)),
    )
    detokenizer = demo_tokenizer().detokenizer()
    ids, finished, text = await service.generate(request, detokenizer)
    return ids, finished.finish_reason, text


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_answers_obey_their_schema(temperature: float) -> None:
    num_ended = 0
    async with local_service(
        DEMO / "target", DEMO / "draft", grammar_host=demo_grammar_host()
    ) as service:
        for k in (0, 4):
            answers = await asyncio.gather(
                *(
                    answer(service, f"{name}-{k}", schema, k, temperature)
                    for name, schema in TEN_SCHEMAS.items()
                )
            )
            for (name, schema), (_, finish_reason, text) in zip(
                TEN_SCHEMAS.items(), answers, strict=True
            ):
                if finish_reason == "stop":
                    num_ended += 1
                    jsonschema.validate(json.loads(text), schema)
                else:
                    assert finish_reason == "length", name
        assert num_ended >= 10, f"only {num_ended} of 20 answers ended by themselves"


@pytest.mark.slow
async def test_drafts_do_not_change_a_constrained_text() -> None:
    async with local_service(
        DEMO / "target", DEMO / "draft", grammar_host=demo_grammar_host()
    ) as service:
        for name in ("nested", "strings", "ranges"):
            texts = [
                (await answer(service, f"{name}-{k}", TEN_SCHEMAS[name], k, 1.0))[0]
                for k in (0, 1, 4, 8)
            ]
            assert texts[1:] == texts[:-1], name


@pytest.mark.slow
async def test_a_bad_schema_fails_one_request_and_frees_it() -> None:
    async with local_service(
        DEMO / "target", DEMO / "draft", grammar_host=demo_grammar_host()
    ) as service:
        with pytest.raises(UnsupportedGrammar):
            await answer(service, "bad", {"type": "nonsense"}, 2, 0.0)
        _, finish_reason, text = await answer(service, "good", TEN_SCHEMAS["const"], 2, 0.0)
        assert finish_reason == "stop"
        assert json.loads(text)["kind"] == "point"
        assert await service.freed()
