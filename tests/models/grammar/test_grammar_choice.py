"""Choices: exactly one of the list, whatever characters it has and however they begin alike."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from models.grammar.compiler import GrammarCompiler
from models.protocol.messages import Grammar
from tests.cases.constraint import FIVE_CHOICES
from tests.cases.grammar import EOS_IDS, Vocabulary, random_text
from tests.cases.rules import refusal


def choice(choices: object) -> Grammar:
    return Grammar(kind="choice", text=json.dumps(choices))


@pytest.mark.parametrize("name", FIVE_CHOICES)
def test_each_choice_and_nothing_else(taken: Callable[..., list[str]], name: str) -> None:
    choices = FIVE_CHOICES[name]
    texts = list(choices)
    for text in choices:
        texts += [text[:-1], text + text[0], text.upper(), " " + text, text + "\n"]
    assert taken(choice(choices), texts) == [text for text in texts if text in choices]


@pytest.mark.parametrize(
    ("choices", "part"),
    [
        ([], "0 choices, there must be 1 to 1024"),
        ([f"c{i}" for i in range(1025)], "1025 choices, there must be 1 to 1024"),
        (["a", "b", "a"], "[2]: the same as [0]"),
        (["a", ""], "[1]: a choice must not be empty"),
        (["a", 3], "must be a list of strings"),
        ("a", "must be a list of strings"),
        (["a", "x" * 4097], "[1]: 4097 bytes, the limit is 4096"),
        ([f"{i:04}" * 1000 for i in range(9)], "36000 bytes, the limit is 32768"),
        (["a\ud800"], "[0]: a lone surrogate is not text"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusals_name_limit_and_place(
    compiler: GrammarCompiler, choices: object, part: str
) -> None:
    assert part in refusal(compiler, choice(choices))


@pytest.mark.parametrize("text", ["", "[", "[" * 60_000], ids=len)
def test_text_that_is_no_json_is_refused(compiler: GrammarCompiler, text: str) -> None:
    assert "not JSON" in refusal(compiler, Grammar(kind="choice", text=text))


@pytest.mark.parametrize(
    "choices",
    [
        [f"{i:04}" * 8 for i in range(1024)],
        ["ab" * 2048, "ba" * 2048, *(f"{i:03}" * 1300 for i in range(6))],
        ["a" * i for i in range(1, 250)],
    ],
    ids=["many", "long", "prefixes"],
)
def test_every_choice_of_the_largest_lists_can_be_written(
    vocabulary: Vocabulary, compiler: GrammarCompiler, choices: list[str]
) -> None:
    # All texts of a list share one lexer: the sum of them must stay below its limits.
    compiled = compiler.compile(choice(choices))
    for text in choices:
        state = compiled.start()
        for token in vocabulary.encode(text):
            state.row()
            assert state.advance(token)
        assert state.is_complete


def test_a_choice_may_spell_a_special_token(
    vocabulary: Vocabulary, compiler: GrammarCompiler
) -> None:
    """It is text all the same: no mask has the special token, and every mask has a token."""
    choices = ["<|pad|>", "a<|end|>b", "<|im_end|>"]
    compiled = compiler.compile(choice(choices))
    special = {vocabulary.tokenizer.token_to_id("<|pad|>"), *EOS_IDS}
    for seed in range(20):
        ids = random_text(compiled, vocabulary, random.Random(seed))
        assert vocabulary.decode(ids) in choices
        assert not special & set(ids)
    alone = random_text(compiler.compile(choice(["<|pad|>"])), vocabulary, random.Random(0))
    assert vocabulary.decode(alone) == "<|pad|>"
