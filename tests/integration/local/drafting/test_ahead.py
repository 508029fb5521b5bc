"""Drafts ahead change no text, also beside others, under grammars and with free drafters."""

from __future__ import annotations

import asyncio
import json

import pytest

from loadtest.report.prompts import demo_prompts
from models.protocol.messages import Grammar
from router.limits import SpeculationLimits
from tests.cases.grammar import TEN_SCHEMAS
from tests.harness.local import (
    DEMO,
    NO_LOOKUP,
    answers,
    demo_grammar_host,
    demo_tokenizer,
    local_service,
    make_request,
)

AHEAD = {"draft_ahead": 9}


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "seeded"])
@pytest.mark.parametrize("free", [NO_LOOKUP, SpeculationLimits()], ids=["alone", "suffix behind"])
async def test_drafts_ahead_change_no_text(temperature: float, free: SpeculationLimits) -> None:
    texts, num_ahead = [], 0
    for speculation in (free, free.model_copy(update=AHEAD)):
        async with local_service(
            DEMO / "target",
            DEMO / "draft",
            speculation=speculation,
        ) as service:
            for k in (0, 5, None):
                found = await answers(service, demo_prompts(3, kind="story"), temperature, k)
                texts.append([ids for ids, _ in found])
                counts = [finished.speculation.num_ahead_tokens for _, finished in found]
                num_ahead += sum(counts)
                assert speculation.draft_ahead or not any(counts)
            assert await service.freed()
    assert all(text == texts[0] for text in texts)
    assert num_ahead > 0


async def test_texts_under_a_grammar_are_drafted_in_turn_beside_those_ahead() -> None:
    grammar = Grammar(kind="json_schema", text=json.dumps(TEN_SCHEMAS["nested"]))
    order, story = (demo_prompts(1, kind=kind)[0] for kind in ("extraction", "story"))
    texts = []
    for speculation in (NO_LOOKUP, NO_LOOKUP.model_copy(update=AHEAD)):
        async with local_service(
            DEMO / "target",
            DEMO / "draft",
            grammar_host=demo_grammar_host(),
            speculation=speculation,
        ) as service:
            eos_ids = demo_tokenizer().eos_ids
            held, free = await asyncio.gather(
                service.generate(
                    make_request("held", order, k=4, grammar=grammar, eos_ids=eos_ids)
                ),
                service.generate(make_request("free", story, k=4)),
            )
            texts.append((held[0], free[0]))
            assert held[1].speculation.num_ahead_tokens == 0
            assert (free[1].speculation.num_ahead_tokens > 0) is (speculation.draft_ahead > 0)
    assert texts[0] == texts[1]
