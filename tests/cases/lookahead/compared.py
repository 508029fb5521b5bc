"""Requests in every way of looking ahead, and their answers beside those of a reference."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from models.grammar.state import CompiledGrammar
from models.rewards.registry import Rewards
from models.rewards.reward import Scored
from router.types import Finished, GenerationRequest, LookaheadSettings
from tests.cases.lookahead.gain_reference import GainReference
from tests.cases.lookahead.reference import PaperReference
from tests.cases.lookahead.texts import Models, Texts
from tests.harness.local import LocalService, make_request

EOS_IDS = (0, 1)
EVERY_STATE = {"accepted", "low_acceptance", "low_reward"}
REFERENCES: dict[str, type[Texts]] = {"paper": PaperReference, "gain": GainReference}
_AT_ONCE = 16
TERMS: dict[str, Any] = {
    "length": 4,
    "candidates": 4,
    "accept_threshold": 0.5,
    "reward_threshold": 0.5,
    "commit": "token",
}
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # of look-aheads, of sampling
    "cdlh": ({"method": "cdlh"}, {}),
    "cdlh that commits roll-outs": ({"method": "cdlh", "commit": "rollout"}, {}),
    "cdlh that commits gains": ({"method": "cdlh", "commit": "gain"}, {}),
    "cdlh, sampled": ({"method": "cdlh", "rollout": "sampled", "seed": 5}, {"temperature": 0.8}),
    "cdsl, hard, greedy": ({"accept_threshold": 0.2, "reward_threshold": 0.3}, {}),
    "cdsl, hard, sampled": ({"accept_threshold": 0.25}, {"temperature": 0.7}),
    "cdsl, speculative sampling": (
        {"accept_threshold": 0.25, "rollout": "sampled"},
        {"temperature": 0.9, "verification": "rejection"},
    ),
    "cdsl that commits gains": (
        {"commit": "gain", "accept_threshold": 0.0, "reward_threshold": 0.1, "length": 6},
        {"temperature": 1.2, "verification": "rejection"},  # more of a draft stands
    ),
    "cdsl, plain": ({"generation": "plain", "accept_threshold": 0.0}, {}),
    "cdsl that keeps all": ({"accept_threshold": 0.0, "reward_threshold": 0.0}, {}),
    "cdsl that keeps what stands": ({"accept_threshold": 0.25, "reward_threshold": 0.0}, {}),
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


class Disagreement(AssertionError):
    """The service decided otherwise than the reference."""


@dataclass(frozen=True)
class Expected:
    """A reference's answer, and its counts."""

    ids: list[int]
    states: Counter[str]
    num_draft_steps: int
    num_rollouts: int
    final: Scored


@dataclass(frozen=True)
class Question:
    """A request in one way, and what its reference says to it."""

    way: str
    request: GenerationRequest
    expected: Expected


def request_of(
    number: int,
    prompt: Sequence[int],
    reward: Mapping[str, Any],
    text_of: Any,
    acceptance: str,
    **fields: Any,
) -> tuple[str, GenerationRequest]:
    """A request by number, each in another way; `fields` are those of `make_request`."""
    way = list(WAYS)[number % len(WAYS)]
    terms, sampling = WAYS[way]
    request = make_request(
        f"r{number}", prompt, seed=number, eos_ids=EOS_IDS, **(fields | sampling)
    )
    options: dict[str, Any] = {
        "method": "cdsl",
        "length": 3 + number % 3,
        "candidates": 3,
        "acceptance": acceptance,
    }
    options = TERMS | options | terms
    settings = LookaheadSettings(reward=json.dumps(reward), text_of=text_of, **options)
    return way, replace(request, lookahead=settings)


def question_of(
    way: str, request: GenerationRequest, models: Models, grammar: CompiledGrammar | None = None
) -> Question:
    """The request with what the reference of its rule answers."""
    assert request.lookahead is not None
    reference = REFERENCES[request.lookahead.acceptance](models, EOS_IDS)
    reward = Rewards().make(json.loads(request.lookahead.reward))
    ids = reference.answer(request, reward, grammar)
    counts = reference.num_draft_steps, reference.num_rollouts
    return Question(way, request, Expected(ids, reference.states, *counts, reference.final))


async def compared(service: LocalService, questions: Sequence[Question]) -> list[Compared]:
    """All answers, several at once.

    Raises:
        Disagreement: one is not the reference's, or has not its counts.
    """
    found = list[Compared]()
    for start in range(0, len(questions), _AT_ONCE):
        some = questions[start : start + _AT_ONCE]
        answers = await asyncio.gather(*(service.generate(one.request) for one in some))
        for question, (ids, finished, _) in zip(some, answers, strict=True):
            expected = question.expected
            told = _counts(finished)
            wanted = _wanted(expected)
            if ids != expected.ids or told != wanted:
                name = f"{question.way}, {question.request.request_id}"
                raise Disagreement(f"{name}: {ids}, {told}; {expected.ids}, {wanted}")
            found.append(Compared(question.way, question.request, ids, finished))
    return found


def states_by_way(answers: Sequence[Compared]) -> dict[str, set[str]]:
    states: dict[str, set[str]] = {}
    for one in answers:
        assert one.finished.lookahead is not None
        states.setdefault(one.way, set()).update(one.finished.lookahead.states)
    return states


def _counts(finished: Finished) -> list[object]:
    stats = finished.lookahead
    assert stats is not None
    counts = [dict(stats.states), stats.num_draft_steps, stats.num_rollouts]
    return [*counts, round(stats.score, 9), stats.is_met]


def _wanted(expected: Expected) -> list[object]:
    counts = [dict(expected.states), expected.num_draft_steps, expected.num_rollouts]
    return [*counts, round(expected.final.score, 9), expected.final.is_met]
