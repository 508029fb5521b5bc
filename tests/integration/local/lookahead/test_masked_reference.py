"""Look-aheads under grammars: the service decides what the reference does, and every text obeys."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from models.grammar.host import GrammarHost
from models.protocol.messages import Grammar
from tests.cases.lookahead.compared import (
    EVERY_STATE,
    REFERENCES,
    WAYS,
    compared,
    prompts,
    question_of,
    request_of,
    states_by_way,
)
from tests.cases.lookahead.letters import VOCAB_SIZE, letters_compiler, text_of
from tests.cases.lookahead.pair import write_pair
from tests.cases.lookahead.texts import Models
from tests.harness.local import local_service
from tests.harness.rewards.workers import reward_workers

NUM_PROMPTS = 192
CHOICES = ["abba", "a cab", "12", "a", "dog 12"]
PATTERNS = (r"[a-e ]{2,7}\.", r"ca(b |d1)[a-c]{1,3}\.")  # "ca" is forced, and merges with a b
SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "maxLength": 4, "pattern": "^[a-d 1]+$"},
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["a", "n"],
    "additionalProperties": False,
}
GRAMMARS = (
    Grammar(kind="json_schema", text=json.dumps(SCHEMA)),
    *(Grammar(kind="regex", text=pattern) for pattern in PATTERNS),
    Grammar(kind="choice", text=json.dumps(CHOICES)),
)
HAS_CAB = {"kind": "words", "required": ["cab"], "forbidden": ["dd"]}
BOUNDED = {
    "kind": "weighted",
    "parts": [
        {"weight": 2.0, "reward": {"kind": "words", "required": ["12"]}},
        {"reward": {"kind": "length", "min": 2, "max": 4}},
    ],
}


def check_obeys(grammar: Grammar | None, text: str) -> None:
    assert grammar is not None
    if grammar.kind == "json_schema":
        value = json.loads(text)
        assert re.fullmatch("[a-d 1]{1,4}", value["a"]), text
        assert 0 <= value["n"] <= 99, text
        assert value.keys() == {"a", "n"}
    elif grammar.kind == "regex":
        assert re.fullmatch(grammar.text, text), text
    else:
        assert text in CHOICES


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("acceptance", REFERENCES)
async def test_masked_decisions_are_those_of_the_reference(tmp_path: Path, acceptance: str) -> None:
    pair, compiler = write_pair(tmp_path, VOCAB_SIZE), letters_compiler()
    models, grammars = Models(*pair), {one: compiler.compile(one) for one in GRAMMARS}
    asked = []
    for number, prompt in enumerate(prompts(NUM_PROMPTS, VOCAB_SIZE)):
        turn = number // len(WAYS)
        grammar = GRAMMARS[turn % len(GRAMMARS)]
        way, request = request_of(
            number,
            prompt,
            (HAS_CAB, BOUNDED)[turn // len(GRAMMARS) % 2],
            text_of,
            acceptance,
            grammar=grammar,
            max_tokens=8 if number % 9 == 0 else 24,
        )
        asked.append(question_of(way, request, models, grammars[grammar]))
    async with local_service(
        *pair,
        dtype="float32",
        grammar_host=GrammarHost(compiler),
        rewards=reward_workers(),
        block_size=16,
    ) as service:
        answers = await compared(service, asked)
        assert await service.freed()
    ended = [one for one in answers if one.finished.finish_reason == "stop"]
    for one in ended:
        check_obeys(one.request.grammar, text_of(one.ids))
    assert 0.8 * NUM_PROMPTS < len(ended) < NUM_PROMPTS
    states = states_by_way(answers)
    for way in ("cdsl, hard, greedy", "cdsl, speculative sampling"):
        assert states[way] == EVERY_STATE | {"forced"}, "the pair does not visit every state"
    # At r_t = 0 all is kept; by the rule of gains not what would lose the constraint.
    rejected = {"low_reward"} if acceptance == "gain" else set()
    assert states["cdsl that keeps all"] == {"accepted", "forced"} | rejected
