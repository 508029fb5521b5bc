"""Served greedy text is that of `transformers.generate` on the same float32 checkpoint.

A position counts as a mismatch only where the reference's two best logits are more than 1e-4
apart; both counts are printed. The whole path is real, in one process: router loop, engines.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from local_service import DEMO, LocalService, local_service, make_request
from transformers import AutoModelForCausalLM

from loadtest.prompts import demo_prompts as held_out_prompts
from router.limits import SpeculationLimits

NUM_PROMPTS = 50
NUM_TOKENS = 40
NUM_LOOKUP_PROMPTS = 12
NEAR_TIE = 1e-4


@dataclass(frozen=True)
class Reference:
    prompt_ids: list[int]
    token_ids: list[int]
    margins: list[float]  # distance of the two best logits, per token


@pytest.fixture(scope="module")
def references() -> list[Reference]:
    model = AutoModelForCausalLM.from_pretrained(DEMO / "target", dtype=torch.float32)
    results = []
    for prompt_ids in held_out_prompts(NUM_PROMPTS):
        output = model.generate(
            torch.tensor([prompt_ids]),
            attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.long),
            do_sample=False,
            max_new_tokens=NUM_TOKENS,
            min_new_tokens=NUM_TOKENS,
            eos_token_id=None,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
        )
        top = torch.cat(output.logits).topk(2, dim=-1).values
        token_ids = output.sequences[0, len(prompt_ids) :].tolist()
        results.append(Reference(prompt_ids, token_ids, (top[:, 0] - top[:, 1]).tolist()))
    return results


async def serve_all(
    service: LocalService, references: list[Reference], k: int | None, at_once: int
) -> list[list[int]]:
    places = asyncio.Semaphore(at_once)

    async def one(index: int, reference: Reference) -> list[int]:
        async with places:
            request = make_request(
                f"k{k}-{at_once}-{index}",
                reference.prompt_ids,
                k=k,
                enabled=k != 0,
                max_tokens=NUM_TOKENS,
            )
            ids, _, _ = await service.generate(request)
            return ids

    return await asyncio.gather(*(one(i, reference) for i, reference in enumerate(references)))


def count_differences(references: list[Reference], served: list[list[int]]) -> tuple[int, int]:
    """(mismatches, differences excused as near ties); what follows a difference is not compared."""
    mismatches = near_ties = 0
    for reference, ids in zip(references, served, strict=True):
        for expected, got, margin in zip(reference.token_ids, ids, reference.margins, strict=True):
            if expected != got:
                mismatches += margin > NEAR_TIE
                near_ties += margin <= NEAR_TIE
                break
    return mismatches, near_ties


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_served_text_is_that_of_generate(
    references: list[Reference], capsys: pytest.CaptureFixture[str]
) -> None:
    async with local_service(DEMO / "target", DEMO / "draft", dtype="float32") as service:
        for at_once in (1, 8):
            for k in (0, 1, 3, 5, 8, None):
                served = await serve_all(service, references, k, at_once)
                mismatches, near_ties = count_differences(references, served)
                name = "adaptive" if k is None else k
                with capsys.disabled():
                    print(
                        f"\nk={name} at_once={at_once}: {mismatches} mismatches and {near_ties} "
                        f"near ties in {len(served)} texts of {NUM_TOKENS} tokens"
                    )
                assert mismatches == 0
        assert await service.freed()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("draft", [None, DEMO / "draft"], ids=["alone", "filling-in"])
async def test_prompt_lookup_changes_no_text(
    references: list[Reference], draft: Path | None
) -> None:
    chosen = references[:NUM_LOOKUP_PROMPTS]
    lookup = SpeculationLimits(prompt_lookup_max=4)
    async with local_service(
        DEMO / "target", draft, dtype="float32", speculation=lookup
    ) as service:
        for at_once, k in ((1, 5), (8, None)):
            served = await serve_all(service, chosen, k, at_once)
            assert count_differences(chosen, served)[0] == 0


def test_the_comparison_sees_a_wrong_token() -> None:
    reference = Reference([1], [5, 6, 7], [1.0, 1e-5, 1.0])
    assert count_differences([reference], [[5, 6, 8]]) == (1, 0)
    assert count_differences([reference], [[5, 9, 8]]) == (0, 1)
    assert count_differences([reference], [[5, 6, 7]]) == (0, 0)
