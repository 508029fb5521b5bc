"""Schemas, tokenizers and random walks for the tests of grammars and of the constraint service."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from models.grammar.compiler import GrammarCompiler, VocabularyInfo
from models.grammar.state import CompiledGrammar
from models.protocol.messages import Grammar
from tests.cases.tokenizers import byte_level

EOS_IDS = (0, 1)  # two of them, as chat models have
PADDED_VOCAB_SIZE = 640  # beyond the tokenizer's, as checkpoints are often padded

_SAMPLE = (
    '{"name": "Anna", "age": 31, "tags": ["a", "b"], "city": "K\u00f6ln", "ok": true, '
    '"items": [{"id": 1, "price": 2.50}], "none": null, "date": "2024-01-02"}'
)

TEN_SCHEMAS: dict[str, dict[str, Any]] = {
    "nested": {
        "type": "object",
        "properties": {
            "user": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 8},
                    "address": {
                        "type": "object",
                        "properties": {"zip": {"type": "integer"}, "home": {"type": "boolean"}},
                        "required": ["zip", "home"],
                        "additionalProperties": False,
                    },
                },
                "required": ["name", "address"],
                "additionalProperties": False,
            }
        },
        "required": ["user"],
        "additionalProperties": False,
    },
    "enum": {"enum": ["red", "green", 3, None, {"deep": [True]}, "re"]},
    "ranges": {
        "type": "object",
        "properties": {
            "small": {"type": "integer", "minimum": -5, "maximum": 17},
            "ratio": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
            "even": {"type": "integer", "multipleOf": 2, "minimum": 0, "maximum": 1000},
        },
        "required": ["small", "ratio", "even"],
        "additionalProperties": False,
    },
    "array": {
        "type": "array",
        "items": {"type": "array", "items": {"type": "integer", "maximum": 99}, "maxItems": 2},
        "minItems": 2,
        "maxItems": 4,
    },
    "ref": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "null"},
                    "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                },
                "required": ["value", "next"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    "unicode": {
        "type": "object",
        "properties": {
            "gr\u00f6\u00dfe": {"enum": ["\u00e4\u00f6\u00fc", "\u65e5\u672c", "\U0001f600"]},
            "\u540d\u524d": {"type": "string", "minLength": 1, "maxLength": 6},
        },
        "required": ["gr\u00f6\u00dfe", "\u540d\u524d"],
        "additionalProperties": False,
    },
    "const": {
        "type": "object",
        "properties": {"kind": {"const": "point"}, "at": {"const": [1, 2.5, {"a": '"q"'}]}},
        "required": ["kind", "at"],
        "additionalProperties": False,
    },
    "any_of": {
        "anyOf": [
            {"type": "string", "maxLength": 4},
            {"type": "integer", "minimum": 10},
            {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]},
        ]
    },
    "strings": {
        "type": "object",
        "properties": {
            "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
            "note": {"type": "string", "minLength": 2, "maxLength": 5},
            "when": {"type": "string", "format": "date-time"},
            "id": {"type": "string", "format": "uuid"},
        },
        "required": ["code", "note", "when", "id"],
        "additionalProperties": False,
    },
    "optional": {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "minimum": 0, "maximum": 9},
            "b": {"type": "boolean"},
            "c": {"type": ["string", "null"], "maxLength": 3},
        },
        "required": ["b"],
        "additionalProperties": False,
    },
}

# A hundred bytes within every limit that is checked beforehand: the numbers that are a multiple
# of one of these need an automaton of 3001 * 3011 * 3019 states.
NEVER_COMPILES = {"anyOf": [{"type": "integer", "multipleOf": n} for n in (3001, 3011, 3019)]}


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer as text and ready to use, with what a grammar compiler needs to know of it."""

    tokenizer: Tokenizer
    vocab_size: int
    eos_ids: tuple[int, ...]

    def compiler(self, **limits: Any) -> GrammarCompiler:
        info = VocabularyInfo(self.tokenizer.to_str(), self.vocab_size, self.eos_ids)
        return GrammarCompiler(info, **limits)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: list[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False)
        return text


def small_tokenizer() -> Tokenizer:
    """Byte-level BPE with some merges and three special tokens, ids 0..2."""
    return byte_level([_SAMPLE] * 20, ["<|end|>", "<|im_end|>", "<|pad|>"])


def small_vocabulary() -> Vocabulary:
    return Vocabulary(small_tokenizer(), PADDED_VOCAB_SIZE, EOS_IDS)


def json_schema(schema: object) -> Grammar:
    return Grammar(kind="json_schema", text=json.dumps(schema))


def allowed(row: bytes) -> list[int]:
    """Ids whose bit is set."""
    bits = int.from_bytes(row, "little")
    return [i for i in range(bits.bit_length()) if bits >> i & 1]


def random_text(
    grammar: CompiledGrammar, vocabulary: Vocabulary, rng: random.Random, max_tokens: int = 400
) -> list[int]:
    """Random allowed tokens until the text may end; from 40 tokens on closers come first."""
    closing = {i for i in range(vocabulary.vocab_size) if _closes(vocabulary, i)}
    state = grammar.start()
    ids: list[int] = []
    while len(ids) < max_tokens:
        choices = allowed(state.row())
        texts = [i for i in choices if i not in vocabulary.eos_ids]
        can_end = len(texts) < len(choices)
        if can_end and (not texts or len(ids) >= 40 or rng.random() < 0.3):
            return ids
        closers = [i for i in texts if i in closing]
        token = rng.choice(closers if closers and len(ids) >= 40 else texts)
        if not state.advance(token):
            raise RuntimeError(f"the mask allows {token}, the matcher does not, after {ids}")
        ids.append(token)
    raise RuntimeError(f"no end within {max_tokens} tokens: {vocabulary.decode(ids)}")


def _closes(vocabulary: Vocabulary, token: int) -> bool:
    return vocabulary.decode([token]).strip() in {'"', "}", "]", '"}', '"]', "null", "true"}
