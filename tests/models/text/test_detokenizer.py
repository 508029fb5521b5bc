"""Incremental detokenising against the full decode, byte-level and SentencePiece-like."""

from __future__ import annotations

import random

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from models.text.tokenizer import Tokenizer
from tests.cases.tokenizers import byte_level

SPECIALS = ["<|end|>", "<s>"]


def trained() -> tokenizers.Tokenizer:
    lines = ["The old bear walked home. Zoë 你好, мир 🐻"] * 9
    backend = byte_level(lines, SPECIALS, vocab_size=320)
    backend.add_tokens(["<think>", "two words ö"])
    return backend


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(trained(), {})


def sentencepiece_like() -> tokenizers.Tokenizer:
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    words = ["▁", "▁the", "▁bear", "bear", "s", "t", "h", "e", "a", "▁a", "b", "r", "ö"]
    vocab = {token: index for index, token in enumerate(["<unk>", *byte_tokens, *words])}
    merges = [("t", "h")]
    vocab["th"] = len(vocab)
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens(SPECIALS)
    return backend


@pytest.mark.parametrize("seed", range(20))
def test_random_token_sequences_equal_the_full_decode(seed):
    backend = trained()
    tokenizer = Tokenizer(backend, {})
    rng = random.Random(seed)
    ids = [rng.randrange(tokenizer.vocab_size + 5) for _ in range(300)]
    detokenizer = tokenizer.detokenizer()
    pieces, at = [], 0
    while at < len(ids):
        size = rng.randint(1, 6)
        pieces.append(detokenizer.push(ids[at : at + size]))
        at += size
    text = "".join(pieces) + detokenizer.flush()
    assert text == backend.decode(ids, skip_special_tokens=True)


def test_no_incomplete_character_is_ever_emitted(tokenizer):
    text = "Zoë 你好 🐻 мир"
    backend = trained()
    ids = [backend.token_to_id(char) for char in _byte_chars(text)]
    detokenizer = tokenizer.detokenizer()
    grown = ""
    for token_id in ids:
        grown += detokenizer.push([token_id])
        assert text.startswith(grown)
    assert grown == text
    assert detokenizer.flush() == ""


def test_flush_replaces_what_never_became_a_character(tokenizer):
    backend = trained()
    detokenizer = tokenizer.detokenizer()
    assert detokenizer.push([backend.token_to_id(_byte_chars("🐻")[0])]) == ""
    assert detokenizer.flush() == "�"


def _byte_chars(text: str) -> list[str]:
    """Byte-level tokens of one byte each."""
    [(encoded, _)] = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    ).pre_tokenize_str(text)
    return list(encoded)


@pytest.mark.parametrize("text", ["the bears", "bär 🐻 the", " the", "ö你ö", ""])
def test_sentencepiece_like_text_equals_the_full_decode(text):
    backend = sentencepiece_like()
    tokenizer = Tokenizer(backend, {})
    ids = backend.encode(text, add_special_tokens=False).ids
    detokenizer = tokenizer.detokenizer()
    pushed = "".join(detokenizer.push([token_id]) for token_id in ids)
    assert pushed + detokenizer.flush() == backend.decode(ids) == text


def test_text_behind_a_prompt_keeps_its_leading_space():
    backend = sentencepiece_like()
    tokenizer = Tokenizer(backend, {})
    ids = backend.encode("the bear", add_special_tokens=False).ids
    prompt, tail = ids[:3], ids[3:]
    prompt_text = tokenizer.decode(prompt)
    assert prompt_text + tokenizer.detokenizer(prompt).push(tail) == "the bear"
    assert tokenizer.detokenizer([backend.token_to_id("<s>")]).push(ids) == "the bear"


def test_an_unknown_decoder_is_refused_by_name():
    backend = trained()
    backend.decoder = decoders.WordPiece()
    with pytest.raises(ValueError, match="WordPiece is not supported"):
        Tokenizer(backend, {})


@pytest.mark.parametrize("text", ["bear", " bear", "the bear\n", "<|end|> ö", "🐻", "a<s>b<|end|>"])
@pytest.mark.parametrize("after", [(), (80, 81)], ids=["anew", "going on"])
def test_an_answer_has_ids_that_decode_to_it(tokenizer, text, after):
    ids = tokenizer.encode_answer(text, after)
    detokenizer = tokenizer.detokenizer(after)
    assert detokenizer.push(ids) + detokenizer.flush() == text
    assert not any(tokenizer.is_special(token_id) for token_id in ids)


@pytest.mark.parametrize(
    ("text", "after", "joined"),
    [
        ("the bear", (), "▁the▁bear"),
        (" the", (), "▁▁the"),
        (" the bear", (260,), "▁the▁bear"),
        ("the bear", (260,), None),
    ],
    ids=["anew", "anew with a space", "going on", "going on without a space"],
)
def test_an_answer_goes_on_where_a_space_is_put_in_front(text, after, joined):
    backend = sentencepiece_like()
    ids = Tokenizer(backend, {}).encode_answer(text, after)
    assert joined == (None if ids is None else "".join(map(backend.id_to_token, ids)))
