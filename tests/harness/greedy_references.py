"""Greedy texts by `transformers.generate` in float32, and texts compared to them.

A position counts as a mismatch only where the reference's two best logits are more than 1e-4
apart; what follows a difference is not compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from tests.harness.local import LocalService, make_request

NEAR_TIE = 1e-4


@dataclass(frozen=True)
class Reference:
    prompt_ids: list[int]
    token_ids: list[int]
    margins: list[float]  # distance of the two best logits, per token


def generated(folder: Path, prompts: Sequence[list[int]], num_tokens: int) -> list[Reference]:
    """`num_tokens` for each prompt, one prompt at a time; ends of text do not end it."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    results = []
    for prompt_ids in prompts:
        output = model.generate(
            torch.tensor([prompt_ids]),
            attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.long),
            do_sample=False,
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            eos_token_id=None,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
        )
        top = torch.cat(output.logits).topk(2, dim=-1).values
        token_ids = output.sequences[0, len(prompt_ids) :].tolist()
        results.append(Reference(prompt_ids, token_ids, (top[:, 0] - top[:, 1]).tolist()))
    return results


async def served_texts(
    service: LocalService, references: list[Reference], k: int | None, at_once: int
) -> list[list[int]]:
    """Ask the service for the text of each reference, so many at once; k None: chosen live."""
    places = asyncio.Semaphore(at_once)

    async def one(index: int, reference: Reference) -> list[int]:
        async with places:
            request = make_request(
                f"k{k}-{at_once}-{index}",
                reference.prompt_ids,
                k=k,
                enabled=k != 0,
                max_tokens=len(reference.token_ids),
            )
            ids, _, _ = await service.generate(request)
            return ids

    return await asyncio.gather(*(one(i, reference) for i, reference in enumerate(references)))


def count_differences(references: list[Reference], served: list[list[int]]) -> tuple[int, int]:
    """(mismatches, differences excused as near ties)."""
    mismatches = near_ties = 0
    for reference, ids in zip(references, served, strict=True):
        for expected, got, margin in zip(reference.token_ids, ids, reference.margins, strict=True):
            if expected != got:
                mismatches += margin > NEAR_TIE
                near_ties += margin <= NEAR_TIE
                break
    return mismatches, near_ties
