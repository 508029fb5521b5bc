"""A real model, SmolLM2-135M-Instruct: its text is that of `transformers.generate`, a seed gives
one text, and it answers over HTTP. Skipped where it has not been fetched; `.ci/run` fetches it.
"""

from __future__ import annotations

import asyncio

import pytest

from loadtest.frame.prompts import read_kinds
from models.fetch.known import SMOLLM2
from models.text.tokenizer import Tokenizer
from router.limits import SpeculationLimits
from tests.harness.greedy_references import Reference, count_differences, generated, served_texts
from tests.harness.local import LocalService, local_service, make_request

NUM_PROMPTS = 40
NUM_TOKENS = 16
AT_ONCE = 8
KS = (0, 5, None)  # None: adaptive
LOOKUP = SpeculationLimits(prompt_lookup_max=4)
SEEDS = (1, 2**63 + 11)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not SMOLLM2.folder.is_dir(),
        reason=f"{SMOLLM2.name} is not fetched: python -m models.fetch {SMOLLM2.command}",
    ),
]


def chat_prompts() -> list[list[int]]:
    """Every prompt of every kind, kinds by turns, as the model is asked."""
    tokenizer = Tokenizer.load(SMOLLM2.folder)
    texts = [text for row in zip(*read_kinds().values(), strict=True) for text in row]
    return [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in texts]


@pytest.fixture(scope="module")
def references() -> list[Reference]:
    return generated(SMOLLM2.folder, chat_prompts(), NUM_TOKENS)


async def test_greedy_text_is_that_of_generate(
    references: list[Reference], capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(references) == NUM_PROMPTS
    async with local_service(SMOLLM2.folder, None, dtype="float32", speculation=LOOKUP) as service:
        for k in KS:
            served = await served_texts(service, references, k, AT_ONCE)
            mismatches, near_ties = count_differences(references, served)
            with capsys.disabled():
                print(f"\nk={k}: {mismatches} mismatches, {near_ties} near ties in {len(served)}")
            assert mismatches == 0
        few = references[:10]
        served = await served_texts(service, few, 5, at_once=1)
        assert count_differences(few, served)[0] == 0
        assert await service.freed()


async def test_a_seed_gives_one_text() -> None:
    """In bfloat16, as served: for every k, alone and among others."""
    prompts = chat_prompts()[:5]

    async def text(service: LocalService, index: int, seed: int, k: int | None) -> list[int]:
        request = make_request(
            f"{index}-{seed}-{k}",
            prompts[index],
            k=k,
            enabled=k != 0,
            temperature=0.8,
            seed=seed,
            max_tokens=NUM_TOKENS,
        )
        ids, _, _ = await service.generate(request)
        return ids

    async with local_service(SMOLLM2.folder, None, speculation=LOOKUP) as service:
        expected = {
            (index, seed): await text(service, index, seed, 0) for seed in SEEDS for index in (0, 1)
        }
        assert len({tuple(ids) for ids in expected.values()}) == len(expected)
        for (index, seed), ids in expected.items():
            for k in KS[1:]:
                assert await text(service, index, seed, k) == ids
        for k in KS:
            others = [text(service, index, 7, (0, 3, None)[index % 3]) for index in (2, 3, 4)]
            seeded = [text(service, 0, seed, k) for seed in SEEDS]
            together = await asyncio.gather(*seeded, *others)
            assert together[:2] == [expected[0, seed] for seed in SEEDS]
