"""Whoever drafts, the text is the target's: real engines, greedy and seeded, drafts that die.

Random tiny models: their greedy text falls into loops, which is where prompt lookup has most to
say, and draft and target disagree often.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from loadtest.report.prompts import demo_prompts as held_out_prompts
from models.protocol.messages import Grammar
from router.limits import SessionLimits, SpeculationLimits
from router.types import Delta, Finished, GenerationRequest
from tests.cases.grammar import TEN_SCHEMAS
from tests.harness.local import (
    DEMO,
    IdDetokenizer,
    LocalService,
    demo_grammar_host,
    demo_tokenizer,
    local_service,
    make_request,
)

LOOKUP = SpeculationLimits(
    prompt_lookup_min=1, prompt_lookup_max=4, suffix_decoding_max_tree_depth=0
)
SUFFIX = SpeculationLimits()
FREE = {"ngram": LOOKUP, "suffix": SUFFIX}
# Drafts that come, come too late, or never come: what fills in must not depend on it.
IN_TIME, TOO_LATE = SessionLimits(draft_ms=20_000), SessionLimits(draft_ms=1)
PROMPTS = ([7, 8, 9, 7, 8], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], list(range(40, 80)) * 2)


def request(
    name: str, prompt: list[int], temperature: float, **wanted: object
) -> GenerationRequest:
    return make_request(
        name,
        prompt,
        temperature=temperature,
        seed=11,
        max_tokens=60,
        **wanted,  # type: ignore[arg-type]
    )


async def texts(service: LocalService, temperature: float, **wanted: object) -> list[list[int]]:
    """One text for each prompt, all at once."""
    name = "-".join(str(value) for value in wanted.values())
    outcomes = await asyncio.gather(
        *(
            service.generate(request(f"{name}-{temperature}-{i}", prompt, temperature, **wanted))
            for i, prompt in enumerate(PROMPTS)
        )
    )
    return [ids for ids, _, _ in outcomes]


async def expected(path: str, temperature: float) -> list[list[int]]:
    async with local_service(path, None) as service:  # type: ignore[arg-type]
        return await texts(service, temperature, k=0)


@pytest.mark.parametrize("free", FREE)
@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "seeded"])
async def test_a_free_drafter_alone(tiny_target: str, temperature: float, free: str) -> None:
    plain = await expected(tiny_target, temperature)
    async with local_service(tiny_target, None, speculation=FREE[free]) as service:  # type: ignore[arg-type]
        for k in (1, 4, 8, None):
            assert await texts(service, temperature, k=k) == plain
        _, finished, _ = await service.generate(request("counted", PROMPTS[2], 0.0, k=4))
        assert finished.speculation.num_drafted_by[free] > 0
        assert await service.freed()


@pytest.mark.parametrize("free", FREE)
@pytest.mark.parametrize("limits", [IN_TIME, TOO_LATE], ids=["in-time", "too-late"])
@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "seeded"])
async def test_a_draft_model_with_a_free_drafter_beside_it(
    tiny_target: str, tiny_draft: str, temperature: float, limits: SessionLimits, free: str
) -> None:
    plain = await expected(tiny_target, temperature)
    drafters: tuple[str | None, ...] = (None, "draft_model", free)
    async with local_service(
        tiny_target,  # type: ignore[arg-type]
        tiny_draft,  # type: ignore[arg-type]
        speculation=FREE[free],
        limits=limits,
    ) as service:
        for drafter in drafters:
            for k in (0, 3, None):
                assert await texts(service, temperature, drafter=drafter, k=k) == plain
        assert await service.freed()


@pytest.mark.parametrize("lookup_max", [0, 4], ids=["plain", "filled-in"])
async def test_a_draft_that_dies_mid_stream(
    tiny_target: str, tiny_draft: str, lookup_max: int
) -> None:
    [_, _, plain] = await expected(tiny_target, 1.0)
    async with local_service(
        tiny_target,  # type: ignore[arg-type]
        tiny_draft,  # type: ignore[arg-type]
        speculation=SpeculationLimits(
            prompt_lookup_max=lookup_max, suffix_decoding_max_tree_depth=0
        ),
    ) as service:
        assert service.draft_pool is not None
        ids: list[int] = []
        async for event in service.generator.generate(
            request("s", PROMPTS[2], 1.0, k=3), IdDetokenizer()
        ):
            if isinstance(event, Delta):
                ids.extend(event.token_ids)
                if len(ids) >= 20:
                    service.draft_pool.fail("killed")
            else:
                finished: Finished = event
        assert ids == plain
        drafted_by = finished.speculation.num_drafted_by
        if lookup_max == 0:
            assert "ngram" not in drafted_by
        else:
            assert drafted_by["ngram"] > 0
        assert await service.freed()


async def test_lookup_under_a_grammar_proposes_what_may_be_illegal_and_changes_no_text() -> None:
    """It knows no grammar; the target refuses what its mask forbids."""
    [prompt] = held_out_prompts(1, seed=17, kind="extraction")
    eos_ids = demo_tokenizer().eos_ids
    grammar = Grammar(kind="json_schema", text=json.dumps(TEN_SCHEMAS["nested"]))
    async with local_service(
        DEMO / "target", None, speculation=LOOKUP, grammar_host=demo_grammar_host()
    ) as service:
        answers = [
            await service.generate(
                request(f"k{k}", prompt, 1.0, k=k, grammar=grammar, eos_ids=eos_ids)
            )
            for k in (0, 1, 5, None)
        ]
        assert await service.freed()
    texts = [ids for ids, _, _ in answers]
    assert texts[1:] == texts[:-1]
    assert answers[2][1].speculation.num_drafted_by["ngram"] > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "seeded"])
async def test_repeated_text_goes_on_behind_the_draft_models(temperature: float) -> None:
    """The demo pair, in chains: each is counted, and answers of one salt help each other."""
    prompts = held_out_prompts(4, seed=17, kind="extraction")
    eos_ids = demo_tokenizer().eos_ids

    async def answers(service: LocalService, name: str, k: int | None) -> list[list[int]]:
        outcomes = await asyncio.gather(
            *(
                service.generate(request(f"{name}{i}", prompt, temperature, k=k, eos_ids=eos_ids))
                for i, prompt in enumerate(prompts)
            )
        )
        for _, finished, _ in outcomes:
            drafted_by.update(finished.speculation.num_drafted_by)
            accepted_by.update(finished.speculation.num_accepted_by)
        return [ids for ids, _, _ in outcomes]

    drafted_by, accepted_by = Counter[str](), Counter[str]()
    async with local_service(DEMO / "target", None) as service:
        plain = await answers(service, "plain", 0)
    async with local_service(DEMO / "target", DEMO / "draft", speculation=SUFFIX) as service:
        for number in range(2):
            assert await answers(service, f"chain{number}-", None) == plain
        assert await answers(service, "fixed-", 3) == plain
        assert await service.freed()
    assert min(drafted_by["draft_model"], drafted_by["suffix"]) > 0
    # The second time the answers are known.
    assert accepted_by["suffix"] > 0.5 * drafted_by["suffix"]
