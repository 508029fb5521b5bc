"""A choice is drawn from the law of whole answers; masked token by token it is not.

A mask commits to a first token by how likely that token is, whatever can follow it under the list;
the law of answers weighs what follows as well.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch
from scipy import stats
from transformers import LlamaForCausalLM

from models.protocol.messages import Grammar
from router.types import Delta, GenerationRequest, SpeculationSettings
from tests.cases.choices.lists import enumerated, normalised
from tests.harness.local import (
    DEMO,
    LocalService,
    demo_grammar_host,
    demo_tokenizer,
    local_service,
    make_request,
)

NUM_DRAWS = 400
CHOICES = ("red", "blue", "green", "yellow", "red and blue", "a red one")
QUESTION = "Tell me a colour."


@cache
def prompt_ids() -> tuple[int, ...]:
    return tuple(demo_tokenizer().encode_chat([{"role": "user", "content": QUESTION}]))


@cache
def choice_ids() -> tuple[tuple[int, ...], ...]:
    found = [demo_tokenizer().encode_answer(choice, ()) for choice in CHOICES]
    assert None not in found
    return tuple(tuple(ids or ()) for ids in found)


@cache
def law(dtype: torch.dtype = torch.bfloat16) -> list[float]:
    """The probabilities of the choices among each other, by transformers, a choice at a time."""
    model: Any = LlamaForCausalLM.from_pretrained(DEMO / "target", dtype=dtype)

    def of(ids: list[int]) -> list[float]:
        with torch.inference_mode():
            logits = model(torch.tensor([ids])).logits[0, -1].double()
        return torch.log_softmax(logits, dim=0).tolist()

    return normalised(enumerated(prompt_ids(), choice_ids(), demo_tokenizer().eos_ids, of))


def asked(seed: int, name: str = "", **changes: Any) -> GenerationRequest:
    request = make_request(
        f"{name}{seed}",
        prompt_ids(),
        temperature=1.0,
        seed=seed,
        eos_ids=demo_tokenizer().eos_ids,
        max_tokens=24,
        enabled=False,
    )
    return dataclasses.replace(request, **({"choices": choice_ids()} | changes))


async def text_of(service: LocalService, request: GenerationRequest) -> str:
    _, end, text = await service.generate(request, demo_tokenizer().detokenizer())
    assert end.finish_reason == "stop"
    return text


async def counts(service: LocalService, **changes: Any) -> list[int]:
    found: Counter[str] = Counter()
    for first in range(0, NUM_DRAWS, 50):
        requests = [asked(seed, **changes) for seed in range(first, first + 50)]
        found.update(await asyncio.gather(*(text_of(service, one) for one in requests)))
    assert set(found) <= set(CHOICES)
    return [found[choice] for choice in CHOICES]


def p_value(found: list[int]) -> float:
    """Of the draws under the law; choices that are rare there count together."""
    expected = [p * NUM_DRAWS for p in law()]
    common = [i for i, count in enumerate(expected) if count >= 5]
    rare = [i for i in range(len(expected)) if i not in common]
    observed = [found[i] for i in common] + ([sum(found[i] for i in rare)] if rare else [])
    wanted = [expected[i] for i in common] + ([sum(expected[i] for i in rare)] if rare else [])
    return float(stats.chisquare(observed, wanted).pvalue)


async def test_exact_choices_follow_the_law_and_masked_ones_do_not() -> None:
    grammar = Grammar(kind="choice", text=json.dumps(CHOICES))
    async with local_service(
        DEMO / "target", None, grammar_host=demo_grammar_host(), block_size=16
    ) as service:
        exact = await counts(service)
        masked = await counts(service, name="masked-", choices=(), grammar=grammar)
        assert await service.freed()
    assert p_value(exact) > 1e-3, (exact, law())
    assert p_value(masked) < 1e-9, (masked, law())


async def test_a_seed_gives_one_choice_alone_and_in_any_batch() -> None:
    seeds = range(12)
    async with local_service(DEMO / "target", DEMO / "draft", block_size=16) as service:
        alone = [await text_of(service, asked(seed, "alone-")) for seed in seeds]
        assert len(set(alone)) > 1
        # With streams beside them, and other lists, on the same pages.
        streams = [
            service.generate(dataclasses.replace(asked(seed, "stream-"), choices=()))
            for seed in range(4)
        ]
        others = [
            text_of(service, asked(seed, "other-", choices=choice_ids()[:3])) for seed in seeds
        ]
        together = [text_of(service, asked(seed, "together-")) for seed in seeds]
        _, _, found = await asyncio.gather(
            asyncio.gather(*streams), asyncio.gather(*others), asyncio.gather(*together)
        )
        assert list(found) == alone
        assert await service.freed()
    async with local_service(DEMO / "target", None, kv_cache_tokens=1024, block_size=64) as small:
        assert [await text_of(small, asked(seed, "small-")) for seed in seeds] == alone


async def test_all_terms_of_speculation_give_the_same_choice() -> None:
    async with local_service(DEMO / "target", DEMO / "draft") as service:
        found = set()
        for name, enabled, k in (("off", False, None), ("k0", True, 0), ("k4", True, 4)):
            speculation = SpeculationSettings(enabled=enabled, num_speculative_tokens=k)
            request = asked(3, name, speculation=speculation)
            _, end, text = await service.generate(request, demo_tokenizer().detokenizer())
            assert end.speculation.num_draft_tokens == 0
            found.add(text)
        assert len(found) == 1


async def test_weights_in_the_answer_are_those_of_the_law() -> None:
    """In float32: in bfloat16 CPUs round differently, by up to 0.03 of a weight."""
    async with local_service(DEMO / "target", None, dtype="float32") as service:
        deltas = service.generator.generate(asked(1), demo_tokenizer().detokenizer())
        (delta,) = [event async for event in deltas if isinstance(event, Delta)]
    assert normalised(delta.choice_logprobs) == pytest.approx(law(torch.float32), abs=1e-3)


def test_special_tokens_in_a_choice_are_text() -> None:
    tokenizer = demo_tokenizer()
    for text in ("<|end|>", "a<|end|>b", "\n", " é", "🐻 in"):
        ids = tokenizer.encode_answer(text, ())
        assert ids is not None
        assert not any(map(tokenizer.is_special, ids)), text
        assert tokenizer.decode(ids) == text
