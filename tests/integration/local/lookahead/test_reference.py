"""The service decides what the papers' pseudo-code decides, for 200 prompts and every option.

So it does by the rule of gains, whose reference is one of its own. Either comparison notices a
service whose rule is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.cases.lookahead.compared import (
    EVERY_STATE,
    REFERENCES,
    WAYS,
    Disagreement,
    Question,
    compared,
    prompts,
    question_of,
    request_of,
    states_by_way,
)
from tests.cases.lookahead.mutants import MUTANTS
from tests.cases.lookahead.pair import write_pair
from tests.cases.lookahead.texts import Models
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
MANY = {"kind": "words", "required": [str(token) for token in range(2, 60, 2)]}
REWARDS = (NONE_OF_THESE, CONCEPTS, BOUNDED, MANY)


def text_of(ids: Sequence[int]) -> str:
    return "".join(f"{token_id} " for token_id in ids)


Questions = Callable[[str], list[Question]]  # by the rule of acceptance


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_pair(tmp_path_factory.mktemp("pair"), VOCAB_SIZE)


@pytest.fixture(scope="module")
def questions(pair: tuple[Path, Path]) -> Questions:
    models = Models(*pair)

    @cache
    def of(acceptance: str) -> list[Question]:
        requests = (
            request_of(
                number,
                prompt,
                REWARDS[number // len(WAYS) % len(REWARDS)],
                text_of,
                acceptance,
                max_tokens=9,
            )
            for number, prompt in enumerate(prompts(NUM_PROMPTS, VOCAB_SIZE))
        )
        return [question_of(way, request, models) for way, request in requests]

    return of


def serving(pair: tuple[Path, Path]) -> Any:
    return local_service(
        *pair,
        dtype="float32",
        grammar_host=grammar_host(),
        rewards=reward_workers(),
        block_size=16,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("acceptance", REFERENCES)
async def test_decisions_are_those_of_the_reference(
    pair: tuple[Path, Path], questions: Questions, acceptance: str
) -> None:
    asked = questions(acceptance)
    async with serving(pair) as service:
        answers = await compared(service, asked)
        assert await service.freed()
    states = states_by_way(answers)
    for way in ("cdsl, hard, greedy", "cdsl, speculative sampling"):
        assert states[way] == EVERY_STATE, "the pair does not visit every state"
    # At r_t = 0 all is kept; by the rule of gains not what would lose the constraint.
    rejected = {"low_reward"} if acceptance == "gain" else set()
    assert states["cdsl that keeps all"] == {"accepted"} | rejected
    assert states["cdsl that keeps what stands"] == {"accepted", "low_acceptance"} | rejected


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("acceptance", MUTANTS)
async def test_a_rule_with_one_thing_broken_is_another_than_the_reference(
    pair: tuple[Path, Path],
    questions: Questions,
    acceptance: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = [one for one in questions(acceptance) if one.way.startswith("cdsl")]
    survivors = []
    async with serving(pair) as service:
        for mutant in MUTANTS[acceptance]:
            with monkeypatch.context() as patch:
                mutant(patch)
                try:
                    await compared(service, asked)
                except Disagreement:
                    continue
            survivors.append(mutant.__name__)
    assert survivors == []
