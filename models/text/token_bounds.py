"""Bounds from below how many tokens a text has, from its length alone.

A text that cannot fit in a context need then not be tokenised, which takes about a second per
megabyte. Every byte of a text is in some token, unless the tokenizer drops or changes text before
it cuts. Only steps that are known not to are counted on here; with any other there is no bound.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import tokenizers
from tokenizers import pre_tokenizers

# Canonical composition makes UTF-8 up to 3 times shorter (Unicode Standard Annex 15, table 11);
# one more for characters that are first replaced by others, as the Angstrom sign is.
_NFC_SHRINKS = 4
_BYTES = pre_tokenizers.ByteLevel.alphabet()  # a character for each
_BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
_LOSSLESS_STEPS = frozenset(
    {"Sequence", "ByteLevel", "Split", "Digits", "Punctuation", "Metaspace", "Prepend"}
)


def longest_token_bytes(backend: tokenizers.Tokenizer, vocab: Mapping[str, int]) -> int | None:
    """Bytes of text that one token holds at most; None: no such bound is known.

    Args:
        backend: a loaded tokenizer.
        vocab: its tokens, added ones included.
    """
    added = backend.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip for token in added):
        return None  # they swallow the spaces around them
    steps = list(_steps(backend))
    if not all(step["type"] == "NFC" or _is_lossless(step) for step in steps):
        return None
    is_byte_level = any(step["type"] == "ByteLevel" for step in steps)
    # A character that is in no token is dropped, or many such make one unknown token.
    if not all(token in vocab for token in (_BYTES if is_byte_level else _BYTE_TOKENS)):
        return None
    lengths = map(len, vocab) if is_byte_level else (len(token.encode()) for token in vocab)
    longest = max(chain(lengths, (len(token.content.encode()) for token in added)))
    return longest * (_NFC_SHRINKS if any(step["type"] == "NFC" for step in steps) else 1)


def _is_lossless(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Replace":  # SentencePiece's spaces
        return step["pattern"] == {"String": " "} and step["content"] == "\u2581"
    return step["type"] in _LOSSLESS_STEPS and step.get("behavior") != "Removed"


def _steps(backend: tokenizers.Tokenizer) -> Iterator[Mapping[str, Any]]:
    for part in (backend.normalizer, backend.pre_tokenizer):
        if part is not None:
            yield from _flat(json.loads(part.__getstate__()))


def _flat(step: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield step
    for inner in (*step.get("normalizers", ()), *step.get("pretokenizers", ())):
        yield from _flat(inner)
