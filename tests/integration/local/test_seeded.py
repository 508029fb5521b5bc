"""A seed gives one text: for every k, any drafter, speculation off, alone and among others.

In bfloat16, as served. It holds because engines on a CPU compute the same logits for the same
prefix however it was batched, and because all draw with noise that depends on the position alone.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from loadtest.report.prompts import demo_prompts as held_out_prompts
from router.limits import SpeculationLimits
from tests.cases.tiny_llama import write_tiny_llama
from tests.harness.local import (
    DEMO,
    VOCAB_SIZE,
    LocalService,
    demo_tokenizer,
    local_service,
    make_request,
)

NUM_TOKENS = 40
SEEDS = (1, 2**63 + 11)


async def text(
    service: LocalService,
    name: str,
    prompt: list[int],
    seed: int,
    k: int | None,
    *,
    enabled: bool = True,
) -> list[int]:
    request = make_request(
        name,
        prompt,
        k=k,
        enabled=enabled,
        temperature=1.0,
        seed=seed,
        max_tokens=NUM_TOKENS,
        eos_ids=list(demo_tokenizer().eos_ids),
    )
    ids, _, _ = await service.generate(request)
    return ids


async def among_others(
    service: LocalService, prompts: list[list[int]], seed: int, k: int | None
) -> list[int]:
    texts = await asyncio.gather(
        *(
            text(service, f"among-{seed}-{k}-{i}", prompt, seed + i, k if i == 0 else i % 4)
            for i, prompt in enumerate(prompts)
        )
    )
    return texts[0]


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_seed_gives_one_text(tmp_path: Path) -> None:
    prompts = held_out_prompts(8, seed=21, kind="story")  # the most open of its tasks
    async with local_service(DEMO / "target", None) as service:
        assert service.target.load().num_blocks > 0
        expected = {
            (seed, i): await text(service, f"plain-{seed}-{i}", prompts[i], seed, 0)
            for seed in SEEDS
            for i in range(3)
        }
    assert len({tuple(ids) for ids in expected.values()}) == len(expected), "seeds change texts"

    async with local_service(DEMO / "target", DEMO / "draft") as service:
        for (seed, i), ids in expected.items():
            off = await text(service, f"off-{seed}-{i}", prompts[i], seed, None, enabled=False)
            assert off == ids
            for k in (0, 1, 3, 5, 8, None):
                assert await text(service, f"{seed}-{i}-{k}", prompts[i], seed, k) == ids
        for seed in SEEDS:
            for k in (0, 4, None):
                assert await among_others(service, prompts, seed, k) == expected[seed, 0]

    other_draft = write_tiny_llama(
        tmp_path, seed=5, vocab_size=VOCAB_SIZE, hidden_size=32, num_hidden_layers=1
    )
    async with local_service(DEMO / "target", other_draft) as service:
        for (seed, i), ids in expected.items():
            assert await text(service, f"other-{seed}-{i}", prompts[i], seed, 4) == ids

    for depth in (0, 24):  # prompt lookup; suffix decoding, which knows the earlier answers
        lookup = SpeculationLimits(suffix_decoding_max_tree_depth=depth)
        async with local_service(DEMO / "target", None, speculation=lookup) as service:
            for (seed, i), ids in expected.items():
                for k in (4, None):
                    name = f"free-{depth}-{seed}-{i}-{k}"
                    assert await text(service, name, prompts[i], seed, k) == ids
    async with local_service(
        DEMO / "target", DEMO / "draft", speculation=SpeculationLimits()
    ) as service:
        for (seed, i), ids in expected.items():
            assert await text(service, f"chain-{seed}-{i}", prompts[i], seed, None) == ids


@pytest.mark.slow
async def test_truncated_sampling_is_seeded_too() -> None:
    prompt = held_out_prompts(1, seed=3, kind="story")[0]
    async with local_service(DEMO / "target", DEMO / "draft") as service:
        texts = []
        for k in (0, 2, 5):
            request = make_request(
                f"k{k}", prompt, k=k, temperature=1.3, top_p=0.9, top_k=40, seed=9, max_tokens=60
            )
            texts.append((await service.generate(request))[0])
    assert texts[0] == texts[1] == texts[2]
