"""Turns token ids into text as they arrive, however the bytes of a character are cut.

Works on bytes, not on decoded windows: each id stands for bytes, an incremental UTF-8 decoder puts
them together. So it is O(1) per token, and invalid bytes cannot make it hold back for ever. Knows
the two decoders that causal language models use. They are byte-level BPE (GPT-2, Llama 3, Qwen) and
SentencePiece-like ones with byte fallback (Llama 2, Mistral, Gemma). The result equals the full
decode of `tokenizers`, with one exception. If byte-fallback tokens form no valid UTF-8, that one
replaces the whole run of byte tokens, valid characters included. This one replaces only the invalid
part.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers


class IncrementalDetokenizer:
    """Text of one session as its tokens arrive; holds back the bytes of incomplete characters."""

    def __init__(self, bytes_of: ByteTable, *, continues: bool) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip_space = bytes_of.strips_first_space and not continues

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that these further tokens complete."""
        raw = b"".join([self._bytes_of[token_id] for token_id in token_ids])
        if self._strip_space and raw:
            self._strip_space = False
            raw = raw.removeprefix(b" ")
        return self._decoder.decode(raw)

    def flush(self) -> str:
        """Return a replacement character for bytes still held back, if any."""
        return self._decoder.decode(b"", final=True)


class ByteTable(dict[int, bytes]):
    """Token id to bytes, filled as ids are met. Special and unknown ids have none.

    Attributes:
        strips_first_space: a text loses the space its first token starts with.

    Raises:
        ValueError: the tokenizer's decoder is of another kind.
    """

    def __init__(self, backend: tokenizers.Tokenizer, special_ids: frozenset[int]) -> None:
        super().__init__()
        self._backend = backend
        self._special_ids = special_ids
        steps = _decoder_steps(backend)
        kinds = {step["type"] for step in steps}
        self._is_byte_level = "ByteLevel" in kinds
        self._has_byte_tokens = "ByteFallback" in kinds
        self._space = "" if self._is_byte_level else _space_symbol(steps)
        self.strips_first_space = any(
            step["type"] == "Strip"
            or (step["type"] == "Metaspace" and step["prepend_scheme"] != "never")
            for step in steps
        )

    def __missing__(self, token_id: int) -> bytes:
        raw = b"" if token_id in self._special_ids else self._compute(token_id)
        self[token_id] = raw
        return raw

    def _compute(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id)
        if token is None:  # beyond the vocabulary: models pad theirs
            return b""
        if self._is_byte_level:
            try:
                return bytes(_BYTE_OF_CHAR[char] for char in token)
            except KeyError:  # an added token, written as it is
                return token.encode()
        if self._has_byte_tokens and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return token.replace(self._space, " ").encode()


_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's mapping: printable bytes stand for themselves, others for characters from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return alphabet


_BYTE_OF_CHAR = _byte_alphabet()


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    if backend.decoder is None:
        raise ValueError("tokenizer.json: no decoder; ByteLevel or Metaspace is needed")
    decoder: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    steps: list[dict[str, Any]] = decoder.get("decoders", [decoder])
    return steps


def _space_symbol(steps: Sequence[Mapping[str, Any]]) -> str:
    for step in steps:
        if step["type"] == "Metaspace":
            return str(step["replacement"])
        if step["type"] == "Replace" and step["content"] == " ":
            return str(step["pattern"]["String"])
    kinds = ", ".join(step["type"] for step in steps)
    raise ValueError(f"tokenizer.json: decoder {kinds} is not supported; ByteLevel or Metaspace is")
