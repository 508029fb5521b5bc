"""The least number of tokens of a text: never more than it has, and no bound where none is sure."""

from __future__ import annotations

import random
import unicodedata
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from models.text.tokenizer import Tokenizer
from tests.cases.tokenizers import byte_level
from tests.models.text.test_detokenizer import sentencepiece_like

CORPUS = [
    "The old bear walked home. He was happy;      it rained 1234 times! \u00c5ngstr\u00f6m"
] * 20


def trained(**parts: Any) -> tokenizers.Tokenizer:
    backend = byte_level(CORPUS, ["<|end|>"])
    for name, part in parts.items():
        setattr(backend, name, part)
    return backend


SPLIT = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Split(tokenizers.Regex(r" ?\w+|\s+"), "isolated"),
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
)
BOUNDED = {
    "byte-level": Tokenizer(trained(), {}),
    "split": Tokenizer(trained(pre_tokenizer=SPLIT), {}),
    "nfc": Tokenizer(trained(normalizer=normalizers.NFC()), {}),
    "sentence-piece": Tokenizer(sentencepiece_like(), {}),
}


@pytest.mark.parametrize("name", BOUNDED)
@given(
    st.text(max_size=60)
    | st.text("\u0390\u03b9\u0308\u0301\u1fbe\u212b\u1100\u1161\u11a8 e", max_size=60)
)
def test_no_text_has_fewer(name, text):
    tokenizer = BOUNDED[name]
    for written in (text, unicodedata.normalize("NFD", text)):
        least = tokenizer.least_tokens(len(written.encode()))
        assert least <= len(tokenizer.encode(written))


@pytest.mark.parametrize("name", BOUNDED)
def test_the_bound_says_something(name):
    tokenizer = BOUNDED[name]
    words = random.Random(0).choices(["bear", "home", "old", "1234", "     "], k=5000)
    num_bytes = len(" ".join(words).encode())
    assert tokenizer.least_tokens(num_bytes) > 200
    assert tokenizer.least_tokens(0) == 0
    assert tokenizer.least_tokens(1) == 1


def with_added(token: AddedToken) -> tokenizers.Tokenizer:
    backend = trained()
    backend.add_special_tokens([token])
    return backend


def without_bytes() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    backend.decoder = decoders.ByteLevel()
    return backend


@pytest.mark.parametrize(
    "backend",
    [
        with_added(AddedToken("<|x|>", rstrip=True, special=True)),
        with_added(AddedToken("<|x|>", lstrip=True, special=True)),
        trained(normalizer=normalizers.NFKC()),
        trained(normalizer=normalizers.Strip()),
        trained(normalizer=normalizers.Replace(" ", "")),
        trained(pre_tokenizer=pre_tokenizers.Split(" ", "removed")),
        trained(pre_tokenizer=pre_tokenizers.Whitespace()),
        without_bytes(),
    ],
    ids=["rstrip", "lstrip", "nfkc", "strip", "replace", "removed", "whitespace", "no-bytes"],
)
def test_there_is_no_bound_where_text_may_vanish(backend):
    assert Tokenizer(backend, {}).least_tokens(10**9) == 0
