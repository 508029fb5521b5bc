"""The service decides what the papers' pseudo-code decides, for 200 prompts and every option."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cases.lookahead.compared import (
    EOS_IDS,
    EVERY_STATE,
    WAYS,
    compared,
    prompts,
    request_of,
    states_by_way,
)
from tests.cases.lookahead.pair import write_pair
from tests.cases.lookahead.reference import Reference
from tests.harness.local import local_service
from tests.harness.rewards.workers import grammar_host, reward_workers

VOCAB_SIZE = 60  # a draft's truncated distribution is all of it
NUM_PROMPTS = 200

CONCEPTS = {"kind": "concepts", "concepts": ["7", "21", "33"]}
NONE_OF_THESE = {"kind": "words", "forbidden": [str(token) for token in range(2, 60, 5)]}
BOUNDED = {
    "kind": "weighted",
    "parts": [
        {"weight": 2.0, "reward": {"kind": "words", "required": ["9"], "forbidden": ["5", "50"]}},
        {"reward": {"kind": "length", "min": 6, "max": 9}},
    ],
}
REWARDS = (NONE_OF_THESE, CONCEPTS, BOUNDED)


def text_of(ids: Sequence[int]) -> str:
    return "".join(f"{token_id} " for token_id in ids)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_decisions_are_those_of_the_reference(tmp_path: Path) -> None:
    pair = write_pair(tmp_path, VOCAB_SIZE)
    asked = [
        request_of(number, prompt, REWARDS[number // len(WAYS) % 3], text_of, max_tokens=9)
        for number, prompt in enumerate(prompts(NUM_PROMPTS, VOCAB_SIZE))
    ]
    async with local_service(
        *pair,
        dtype="float32",
        grammar_host=grammar_host(),
        rewards=reward_workers(),
        block_size=16,
    ) as service:
        answers = await compared(service, asked, Reference(*pair, EOS_IDS), {None: None})
        assert await service.freed()
    states = states_by_way(answers)
    assert states["cdsl, hard, greedy"] == EVERY_STATE, "the pair does not visit every state"
    assert states["cdsl, speculative sampling"] == EVERY_STATE
    # At r_t = 0 all is kept but what would lose the constraint.
    assert states["cdsl that keeps all"] == {"accepted", "low_reward"}
