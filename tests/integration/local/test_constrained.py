"""Every constrained answer that ends by itself obeys, and is the same with and without drafts."""

from __future__ import annotations

import asyncio
import json

import pytest

from loadtest.report.prompts import demo_prompts as held_out_prompts
from models.protocol.errors import UnsupportedGrammar
from models.protocol.messages import Grammar
from tests.cases.constraint import CONSTRAINTS, check_obeys
from tests.harness.local import (
    DEMO,
    LocalService,
    demo_grammar_host,
    demo_tokenizer,
    local_service,
    make_request,
)


async def answer(
    service: LocalService, name: str, grammar: Grammar, k: int, temperature: float
) -> tuple[list[int], str, str]:
    request = make_request(
        name,
        held_out_prompts(1, seed=17)[0],
        k=k,
        temperature=temperature,
        seed=5,
        max_tokens=160,
        eos_ids=list(demo_tokenizer().eos_ids),
        grammar=grammar,
    )
    detokenizer = demo_tokenizer().detokenizer()
    ids, finished, text = await service.generate(request, detokenizer)
    assert finished.has_grammar
    return ids, finished.finish_reason, text


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_answers_obey_their_constraint_and_drafts_do_not_change_them(
    temperature: float,
) -> None:
    ended = []
    async with local_service(
        DEMO / "target", DEMO / "draft", grammar_host=demo_grammar_host(), kv_cache_tokens=16384
    ) as service:
        answers: dict[int, list[tuple[list[int], str, str]]] = {}
        for k in (0, 1, 8):
            answers[k] = await asyncio.gather(
                *(
                    answer(service, f"{name}-{k}", grammar, k, temperature)
                    for name, grammar in CONSTRAINTS.items()
                )
            )
        for (name, grammar), plain, *drafted in zip(
            CONSTRAINTS.items(), *answers.values(), strict=True
        ):
            assert drafted == [plain, plain], name
            _, finish_reason, text = plain
            if finish_reason == "stop":
                ended.append(name)
                check_obeys(grammar, text)
            else:
                assert finish_reason == "length", name
    print(f"temperature {temperature}: {len(ended)} of {len(CONSTRAINTS)} ended by themselves")
    assert len(ended) >= len(CONSTRAINTS) * 3 // 4, sorted(set(CONSTRAINTS) - set(ended))


@pytest.mark.slow
@pytest.mark.parametrize(
    "bad",
    [
        Grammar(kind="json_schema", text='{"type": "nonsense"}'),
        Grammar(kind="regex", text="a(?=b)"),
        Grammar(kind="choice", text="[]"),
        # Compiles, and breaks within the text.
        Grammar(kind="regex", text=r"(?:(?:[a-z ]{1,20}){1,20}){1,20}\."),
    ],
    ids=["schema", "regex", "choice", "midway"],
)
async def test_a_bad_grammar_fails_one_request_and_frees_it(bad: Grammar) -> None:
    async with local_service(
        DEMO / "target", DEMO / "draft", grammar_host=demo_grammar_host()
    ) as service:
        with pytest.raises(UnsupportedGrammar):
            await answer(service, "bad", bad, 2, 0.0)
        _, finish_reason, text = await answer(service, "good", CONSTRAINTS["schema-const"], 2, 0.0)
        assert finish_reason == "stop"
        assert json.loads(text)["kind"] == "point"
        assert await service.freed()
