"""Requests in every way of looking ahead, and their answers beside the reference's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from models.grammar.compiler import CompiledGrammar
from models.protocol.messages import Grammar
from models.rewards.registry import Rewards
from router.types import Finished, GenerationRequest, LookaheadSettings
from tests.cases.lookahead.reference import Reference
from tests.harness.local import LocalService, make_request

EOS_IDS = (0, 1)
EVERY_STATE = {"accepted", "low_acceptance", "low_reward"}
_AT_ONCE = 16
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # of look-aheads, of sampling
    "cdlh": ({"method": "cdlh"}, {}),
    "cdlh that commits roll-outs": ({"method": "cdlh", "commit": "rollout"}, {}),
    "cdlh, sampled": ({"method": "cdlh", "rollout": "sampled", "seed": 5}, {"temperature": 0.8}),
    "cdsl, hard, greedy": ({"accept_threshold": 0.5, "reward_threshold": 0.3}, {}),
    "cdsl, hard, sampled": ({"accept_threshold": 0.25}, {"temperature": 0.7}),
    "cdsl, speculative sampling": (
        {"accept_threshold": 0.5, "rollout": "sampled"},
        {"temperature": 0.9, "verification": "rejection"},
    ),
    "cdsl that commits gains": (
        {"commit": "gain", "accept_threshold": 0.2, "reward_threshold": 1.0},
        {},
    ),
    "cdsl, plain": ({"generation": "plain", "accept_threshold": 0.0}, {}),
    "cdsl that keeps all": ({"accept_threshold": 0.0, "reward_threshold": 0.0}, {}),
}


@dataclass(frozen=True)
class Compared:
    """A request, what both answered, and the states that both visited."""

    way: str
    request: GenerationRequest
    ids: list[int]
    finished: Finished


def prompts(count: int, vocab_size: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randint(2, vocab_size, (4 + number % 5,), generator=generator).tolist()
        for number in range(count)
    ]


def request_of(
    number: int, prompt: Sequence[int], reward: Mapping[str, Any], text_of: Any, **fields: Any
) -> tuple[str, GenerationRequest]:
    """A request by number, each in another way; `fields` are those of `make_request`."""
    way = list(WAYS)[number % len(WAYS)]
    terms, sampling = WAYS[way]
    request = make_request(
        f"r{number}", prompt, seed=number, eos_ids=EOS_IDS, **(fields | sampling)
    )
    options: dict[str, Any] = {"method": "cdsl", "length": 3 + number % 3, "candidates": 3} | terms
    settings = LookaheadSettings(reward=json.dumps(reward), text_of=text_of, **options)
    return way, replace(request, lookahead=settings)


async def compared(
    service: LocalService,
    asked: Sequence[tuple[str, GenerationRequest]],
    reference: Reference,
    grammars: Mapping[Grammar | None, CompiledGrammar | None],
) -> list[Compared]:
    """All answers, several at once, which are the reference's and have its counts."""
    found, rewards = list[Compared](), Rewards()
    for some in (asked[start : start + _AT_ONCE] for start in range(0, len(asked), _AT_ONCE)):
        answers = await asyncio.gather(*(service.generate(request) for _, request in some))
        for (way, request), (ids, finished, _) in zip(some, answers, strict=True):
            assert request.lookahead is not None
            reward = rewards.make(json.loads(request.lookahead.reward))
            expected = reference.answer(request, reward, grammars[request.grammar])
            assert ids == expected, (way, request.request_id)
            _check_counts(finished, reference, way)
            found.append(Compared(way, request, ids, finished))
    return found


def states_by_way(answers: Sequence[Compared]) -> dict[str, set[str]]:
    states: dict[str, set[str]] = {}
    for one in answers:
        assert one.finished.lookahead is not None
        states.setdefault(one.way, set()).update(one.finished.lookahead.states)
    return states


def _check_counts(finished: Finished, reference: Reference, way: str) -> None:
    stats = finished.lookahead
    assert stats is not None
    assert stats.states == reference.states, way
    assert stats.num_draft_steps == reference.num_draft_steps, way
    assert stats.num_rollouts == reference.num_rollouts, way
    assert stats.score == pytest.approx(reference.final.score), way
    assert stats.is_met == reference.final.is_met, way
