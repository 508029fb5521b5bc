"""Details tell how each draft token was tested; p and q are recomputed with transformers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache

import pytest
import torch
from transformers import LlamaForCausalLM

from models.protocol.messages import Grammar, Verification
from models.protocol.parts import DraftTest
from router.types import Delta, GenerationRequest, RoundDetails, TokenOrigin
from tests.harness.distribution_engines import distribution_checkpoint
from tests.harness.local import (
    DEMO,
    NO_LOOKUP,
    IdDetokenizer,
    LocalService,
    demo_grammar_host,
    demo_tokenizer,
    local_service,
    make_request,
)

PROMPT = (3, 9, 4, 11, 2)
K = 3


@cache
def model(name: str) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(distribution_checkpoint(name), dtype=torch.float32)


def probability(name: str, prefix: Sequence[int], token: int, temperature: float) -> float:
    """What transformers gives a token after a prefix."""
    with torch.inference_mode():
        logits = model(name)(torch.tensor([list(prefix)])).logits[0, -1]
    return float(torch.softmax(logits.double() / temperature, dim=0)[token])


async def told(
    service: LocalService, request: GenerationRequest
) -> tuple[list[int], list[tuple[int, RoundDetails]], list[TokenOrigin]]:
    """Tokens of a request, its rounds with the number of tokens before each, tokens' origins."""
    wanted = dataclasses.replace(request.speculation, details=True)
    ids: list[int] = []
    rounds: list[tuple[int, RoundDetails]] = []
    origins: list[TokenOrigin] = []
    request = dataclasses.replace(request, speculation=wanted)
    async for event in service.generator.generate(request, IdDetokenizer()):
        if isinstance(event, Delta):
            assert event.details is not None
            rounds.append((len(ids), event.details.round))
            origins += event.details.origins
            ids += event.token_ids
    return ids, rounds, origins


def check_test(test: DraftTest, prefix: list[int], temperature: float, rule: Verification) -> None:
    p = probability("target", prefix, test.token, temperature)
    assert test.target_prob == pytest.approx(p, abs=2e-5)
    if rule == "coupled":
        assert test.draft_prob is test.noise is None
        return
    q = probability("draft", prefix, test.token, temperature)
    assert test.draft_prob == pytest.approx(q, abs=2e-5)
    assert test.noise is not None
    assert 0.0 < test.noise < 1.0
    if test.is_accepted is not None:
        assert test.is_accepted == (test.noise * (test.draft_prob or 0.0) < test.target_prob)


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
async def test_each_draft_token_is_told_as_it_was_tested_and_the_text_is_the_same(
    rule: Verification,
) -> None:
    verdicts: set[bool | None] = set()
    async with local_service(
        distribution_checkpoint("target"),
        distribution_checkpoint("draft"),
        dtype="float32",
        speculation=NO_LOOKUP,
        max_model_len=64,
    ) as service:
        for seed in range(6):
            request = make_request(
                f"{rule}-{seed}", PROMPT, k=K, seed=seed, max_tokens=24, temperature=0.8,
                verification=rule,
            )  # fmt: skip
            ids, rounds, _ = await told(service, request)
            if rule == "coupled":  # by the other a text depends on when drafts come
                again = dataclasses.replace(request, request_id=f"plain-{rule}-{seed}")
                assert (await service.generate(again))[0] == ids
            for num_before, each in rounds:
                prefix = [*PROMPT, *ids[:num_before]]
                for test in each.tests:
                    check_test(test, prefix, 0.8, rule)
                    prefix.append(test.token)
                    verdicts.add(test.is_accepted)
                accepted = [test.token for test in each.tests if test.is_accepted]
                assert ids[num_before : num_before + len(accepted)] == accepted
                drafted = sum(segment.num_tokens for segment in each.segments)
                assert len(each.tests) == drafted
    assert verdicts == {True, False, None}


async def test_greedy_decoding_has_all_of_its_probability_on_one_token() -> None:
    async with local_service(
        distribution_checkpoint("target"),
        distribution_checkpoint("draft"),
        dtype="float32",
        speculation=NO_LOOKUP,
        max_model_len=64,
    ) as service:
        _, rounds, _ = await told(service, make_request("greedy", PROMPT, k=K, max_tokens=40))
    tests = [test for _, each in rounds for test in each.tests if test.is_accepted is not None]
    assert {test.target_prob for test in tests} == {0.0, 1.0}
    assert all((test.target_prob == 1.0) == test.is_accepted for test in tests)


async def test_under_a_grammar_each_token_says_how_many_were_allowed() -> None:
    tokenizer = demo_tokenizer()
    digits = [t for t in range(4096) if tokenizer.decode([t]) in set("0123456789")]
    async with local_service(
        DEMO / "target", DEMO / "draft", grammar_host=demo_grammar_host(), speculation=NO_LOOKUP
    ) as service:
        request = make_request(
            "digit",
            tokenizer.encode("A number:"),
            k=K,
            eos_ids=tokenizer.eos_ids,
            grammar=Grammar(kind="regex", text="[0-9]"),
        )
        ids, _, origins = await told(service, request)
    assert ids[0] in digits
    assert origins[0].num_allowed == len(digits)
