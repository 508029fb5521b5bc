"""The service decides what the papers' pseudo-code decides, for 200 prompts and every option."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from models.rewards.registry import Rewards
from router.types import GenerationRequest, LookaheadSettings
from tests.cases.lookahead.pair import write_pair
from tests.cases.lookahead.reference import Reference, check_counts
from tests.harness.local import local_service, make_request
from tests.harness.rewards.workers import grammar_host, reward_workers

VOCAB_SIZE = 60  # a draft's truncated distribution is all of it
EOS_IDS = (0, 1)
NUM_PROMPTS = 200
AT_ONCE = 16

CONCEPTS = {"kind": "concepts", "concepts": ["7", "21", "33"]}
NONE_OF_THESE = {"kind": "words", "forbidden": [str(token) for token in range(2, 60, 5)]}
BOUNDED = {
    "kind": "weighted",
    "parts": [
        {"weight": 2.0, "reward": {"kind": "words", "required": ["9"], "forbidden": ["5", "50"]}},
        {"reward": {"kind": "length", "min": 6, "max": 9}},
    ],
}
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # of look-aheads, of sampling
    "cdlh": ({"method": "cdlh"}, {}),
    "cdlh that commits roll-outs": ({"method": "cdlh", "commits_rollout": True}, {}),
    "cdlh, sampled": ({"method": "cdlh", "rollout": "sampled", "seed": 5}, {"temperature": 0.8}),
    "cdsl, hard, greedy": ({"accept_threshold": 0.5, "reward_threshold": 0.3}, {}),
    "cdsl, hard, sampled": ({"accept_threshold": 0.25}, {"temperature": 0.7}),
    "cdsl, speculative sampling": (
        {"accept_threshold": 0.5, "rollout": "sampled"},
        {"temperature": 0.9, "verification": "rejection"},
    ),
    "cdsl, plain": ({"generation": "plain", "accept_threshold": 0.0}, {}),
    "cdsl that keeps all": ({"accept_threshold": 0.0, "reward_threshold": 0.0}, {}),
}


def text_of(ids: Sequence[int]) -> str:
    return "".join(f"{token_id} " for token_id in ids)


def requests() -> list[tuple[str, GenerationRequest]]:
    found = []
    generator = torch.Generator().manual_seed(3)
    for number in range(NUM_PROMPTS):
        way = list(WAYS)[number % len(WAYS)]
        terms, sampling = WAYS[way]
        prompt = torch.randint(2, VOCAB_SIZE, (4 + number % 5,), generator=generator).tolist()
        options: dict[str, Any] = {
            "method": "cdsl",
            "length": 3 + number % 3,
            "candidates": 3,
        } | terms
        reward = (NONE_OF_THESE, CONCEPTS, BOUNDED)[number // len(WAYS) % 3]
        request = make_request(
            f"r{number}", prompt, max_tokens=9, seed=number, eos_ids=EOS_IDS, **sampling
        )
        settings = LookaheadSettings(reward=json.dumps(reward), text_of=text_of, **options)
        found.append((way, replace(request, lookahead=settings)))
    return found


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_pair(tmp_path_factory.mktemp("pair"), VOCAB_SIZE)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_decisions_are_those_of_the_reference(pair: tuple[Path, Path]) -> None:
    reference = Reference(*pair, EOS_IDS)
    rewards, states = Rewards(), dict[str, set[str]]()
    async with local_service(
        *pair,
        dtype="float32",
        grammar_host=grammar_host(),
        rewards=reward_workers(),
        block_size=16,
    ) as service:
        asked = requests()
        for some in (asked[start : start + AT_ONCE] for start in range(0, len(asked), AT_ONCE)):
            answers = await asyncio.gather(*(service.generate(request) for _, request in some))
            for (way, request), (ids, finished, _) in zip(some, answers, strict=True):
                assert request.lookahead is not None
                reward = rewards.make(json.loads(request.lookahead.reward))
                assert ids == reference.answer(request, reward), (way, request.request_id)
                check_counts(finished, reference, way)
                states.setdefault(way, set()).update(reference.states)
        assert await service.freed()
    every_state = {"accepted", "low_acceptance", "low_reward"}
    assert states["cdsl, hard, greedy"] == every_state, "the pair does not visit every state"
    assert states["cdsl, speculative sampling"] == every_state
    assert states["cdsl that keeps all"] == {"accepted"}
