"""Guesses for the draft model change no text, and save draft passes where text repeats."""

from __future__ import annotations

import asyncio
import json

import pytest

from loadtest.report.prompts import demo_prompts
from models.protocol.messages import Grammar
from router.limits import SessionLimits, SpeculationLimits
from router.types import Finished
from tests.cases.grammar import TEN_SCHEMAS
from tests.harness.local import (
    DEMO,
    LocalService,
    demo_grammar_host,
    demo_tokenizer,
    local_service,
    make_request,
)

OFF, ON = (SpeculationLimits(suffix_decoding_for_draft=is_on) for is_on in (False, True))
IN_TIME = SessionLimits(draft_ms=20_000)
# Their greedy text falls into loops, where what followed before mostly follows again.
PROMPTS = ([7, 8, 9, 7, 8], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], list(range(40, 80)) * 2)


async def answers(
    service: LocalService, temperature: float, k: int | None
) -> list[tuple[list[int], Finished]]:
    outcomes = await asyncio.gather(
        *(
            service.generate(
                make_request(
                    f"{k}-{i}", prompt, k=k, max_tokens=60, temperature=temperature, seed=3
                )
            )
            for i, prompt in enumerate(PROMPTS)
        )
    )
    return [(ids, finished) for ids, finished, _ in outcomes]


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "seeded"])
async def test_guesses_change_no_text(
    tiny_target: str, tiny_draft: str, temperature: float
) -> None:
    texts = []
    for speculation in (OFF, ON):
        async with local_service(
            tiny_target,  # type: ignore[arg-type]
            tiny_draft,  # type: ignore[arg-type]
            speculation=speculation,
            limits=IN_TIME,
        ) as service:
            for k in (0, 5, None):
                texts.append([ids for ids, _ in await answers(service, temperature, k)])
            assert await service.freed()
    assert all(text == texts[0] for text in texts)


async def test_right_guesses_save_draft_passes(tiny_target: str) -> None:
    """A question asked again: what was answered before is what the draft model says again."""
    num_passes, stats = {}, {}
    for name, speculation in {"off": OFF, "on": ON}.items():
        async with local_service(
            tiny_target,  # type: ignore[arg-type]
            tiny_target,  # type: ignore[arg-type]  # the draft is always right: k tokens a round
            speculation=speculation,
            limits=IN_TIME,
        ) as service:
            assert service.draft is not None
            for turn in ("first", "again"):
                before = service.draft.load().num_passes
                _, finished, _ = await service.generate(
                    make_request(turn, PROMPTS[0], k=6, max_tokens=200)
                )
                num_passes[name] = service.draft.load().num_passes - before
                stats[name] = finished.speculation
    assert stats["off"].num_guess_tokens == stats["off"].num_right_guess_tokens == 0
    assert 0 < stats["on"].num_right_guess_tokens <= stats["on"].num_guess_tokens
    assert num_passes["on"] < num_passes["off"]


async def test_guesses_under_a_grammar() -> None:
    schema = json.dumps(TEN_SCHEMAS["nested"])
    grammar = Grammar(kind="json_schema", text=schema)
    prompts = demo_prompts(3, kind="extraction")
    texts = []
    for speculation in (OFF, ON):
        async with local_service(
            DEMO / "target",
            DEMO / "draft",
            grammar_host=demo_grammar_host(),
            speculation=speculation,
            limits=IN_TIME,
        ) as service:
            for k in (5, None):
                outcomes = await asyncio.gather(
                    *(
                        service.generate(
                            make_request(
                                f"{k}-{i}",
                                prompt,
                                k=k,
                                grammar=grammar,
                                temperature=0.7,
                                seed=i,
                                eos_ids=demo_tokenizer().eos_ids,
                            )
                        )
                        for i, prompt in enumerate(prompts)
                    )
                )
                texts.append([ids for ids, _, _ in outcomes])
    assert all(text == texts[0] for text in texts)
