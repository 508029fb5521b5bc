"""Look-aheads under grammars: the service decides what the reference does, and every text obeys."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from models.grammar.host import GrammarHost
from models.protocol.messages import Grammar
from models.rewards.registry import Rewards
from router.types import GenerationRequest, LookaheadSettings
from tests.cases.lookahead.letters import EOS_IDS, VOCAB_SIZE, letters_compiler, text_of
from tests.cases.lookahead.pair import write_pair
from tests.cases.lookahead.reference import Reference, check_counts
from tests.harness.local import local_service, make_request
from tests.harness.rewards.workers import reward_workers

NUM_PROMPTS = 180
AT_ONCE = 18
CHOICES = ["abba", "a cab", "12", "a", "dog 12"]
PATTERN = r"[a-e ]{2,7}\."
GRAMMARS = {
    "schema": Grammar(
        kind="json_schema",
        text=json.dumps(
            {
                "type": "object",
                "properties": {
                    "a": {"type": "string", "maxLength": 4, "pattern": "^[a-d 1]+$"},
                    "n": {"type": "integer", "minimum": 0, "maximum": 99},
                },
                "required": ["a", "n"],
                "additionalProperties": False,
            }
        ),
    ),
    "regex": Grammar(kind="regex", text=PATTERN),
    "choice": Grammar(kind="choice", text=json.dumps(CHOICES)),
}
REWARDS = (
    {"kind": "words", "required": ["cab"], "forbidden": ["dd"]},
    {
        "kind": "weighted",
        "parts": [
            {"weight": 2.0, "reward": {"kind": "words", "required": ["12"]}},
            {"reward": {"kind": "length", "min": 2, "max": 4}},
        ],
    },
)
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # of look-aheads, of sampling
    "cdlh": ({"method": "cdlh"}, {}),
    "cdlh that commits roll-outs": ({"method": "cdlh", "commits_rollout": True}, {}),
    "cdlh, sampled": ({"method": "cdlh", "rollout": "sampled", "seed": 5}, {"temperature": 0.8}),
    "cdsl, hard, greedy": ({"accept_threshold": 0.5, "reward_threshold": 0.4}, {}),
    "cdsl, hard, sampled": ({"accept_threshold": 0.25}, {"temperature": 0.7}),
    "cdsl, speculative sampling": (
        {"accept_threshold": 0.5, "rollout": "sampled", "reward_threshold": 0.4},
        {"temperature": 0.9, "verification": "rejection"},
    ),
}


def requests() -> list[tuple[str, GenerationRequest]]:
    found = []
    generator = torch.Generator().manual_seed(4)
    for number in range(NUM_PROMPTS):
        way = list(WAYS)[number % len(WAYS)]
        terms, sampling = WAYS[way]
        turn = number // len(WAYS)
        prompt = torch.randint(2, VOCAB_SIZE, (4 + number % 5,), generator=generator).tolist()
        request = make_request(
            f"r{number}",
            prompt,
            max_tokens=8 if number % 9 == 0 else 24,
            seed=number,
            eos_ids=EOS_IDS,
            grammar=list(GRAMMARS.values())[turn % len(GRAMMARS)],
            **sampling,
        )
        options: dict[str, Any] = {
            "method": "cdsl",
            "length": 3 + number % 3,
            "candidates": 3,
        } | terms
        reward = json.dumps(REWARDS[turn % len(REWARDS)])
        settings = LookaheadSettings(reward=reward, text_of=text_of, **options)
        found.append((way, replace(request, lookahead=settings)))
    return found


def check_obeys(grammar: Grammar | None, text: str) -> None:
    assert grammar is not None
    if grammar.kind == "json_schema":
        value = json.loads(text)
        assert re.fullmatch("[a-d 1]{1,4}", value["a"]), text
        assert 0 <= value["n"] <= 99, text
        assert value.keys() == {"a", "n"}
    elif grammar.kind == "regex":
        assert re.fullmatch(PATTERN, text), text
    else:
        assert text in CHOICES


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_pair(tmp_path_factory.mktemp("pair"), VOCAB_SIZE)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_masked_decisions_are_those_of_the_reference(pair: tuple[Path, Path]) -> None:
    reference, compiler, rewards = Reference(*pair, EOS_IDS), letters_compiler(), Rewards()
    grammars = {grammar: compiler.compile(grammar) for grammar in GRAMMARS.values()}
    states, ends = dict[str, set[str]](), Counter[str]()
    async with local_service(
        *pair,
        dtype="float32",
        grammar_host=GrammarHost(compiler),
        rewards=reward_workers(),
        block_size=16,
    ) as service:
        asked = requests()
        for some in (asked[start : start + AT_ONCE] for start in range(0, len(asked), AT_ONCE)):
            answers = await asyncio.gather(*(service.generate(request) for _, request in some))
            for (way, request), (ids, finished, _) in zip(some, answers, strict=True):
                assert request.lookahead is not None
                assert request.grammar is not None
                reward = rewards.make(json.loads(request.lookahead.reward))
                expected = reference.answer(request, reward, grammars[request.grammar])
                assert ids == expected, (way, request.request_id)
                check_counts(finished, reference, way)
                states.setdefault(way, set()).update(reference.states)
                ends[finished.finish_reason] += 1
                if finished.finish_reason == "stop":
                    check_obeys(request.grammar, text_of(ids))
        assert await service.freed()
    every_state = {"accepted", "low_acceptance", "low_reward"}
    assert states["cdsl, hard, greedy"] == every_state, "the pair does not visit every state"
    assert states["cdsl, speculative sampling"] == every_state
    assert ends["stop"] > 0.8 * NUM_PROMPTS
    assert ends["length"] > 0
