"""Objects that allow names which are not declared: what is served is valid once it is parsed.

Parsed as `json.loads` does it: the last of two equal names is the one that counts.
"""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from models.grammar.compiler import GrammarCompiler
from tests.cases.grammar import Vocabulary, allowed, json_schema
from tests.cases.rules import accepts, refusal

OPEN: dict[str, dict[str, Any]] = {
    "const": {
        "type": "object",
        "properties": {"admin": {"const": False}},
        "required": ["admin"],
    },
    "typed rest": {
        "type": "object",
        "properties": {"a/b": {"const": 1}, "n\nl": {"const": 2}, "\u00e9": {"const": 3}},
        "additionalProperties": {"type": "integer"},
    },
    "quotes": {
        "type": "object",
        "properties": {'a"b': {"const": 1}, "a\\b": {"const": 2}, "\x01": {"const": 3}},
    },
    "nested": {
        "type": "object",
        "properties": {"in": {"type": "object", "properties": {"admin": {"const": False}}}},
        "additionalProperties": {"type": "object", "properties": {"admin": {"enum": [0, None]}}},
    },
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"admin": {"const": False}}},
            {"properties": {"b": {"type": "integer"}}},
        ]
    },
    "pattern": {
        "type": "object",
        "properties": {"ab": {"const": 3}},
        "patternProperties": {"^a": {"type": "integer"}},
    },
    "pattern and rest": {
        "type": "object",
        "patternProperties": {"^ad": {"const": False}},
        "additionalProperties": {"type": "integer"},
    },
    "required only": {"type": "object", "required": ["admin"], "minProperties": 2},
    "list": {
        "type": "array",
        "items": {"type": "object", "properties": {"admin": {"const": False}}},
        "maxItems": 2,
    },
}
CHAIN = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
NAMES = ["admin", "a/b", "n\nl", "\u00e9", 'a"b', "a\\b", "\x01", "ab", "in", "b", "x", ""]
VALUES = ["true", "false", "1", "3", '"s"', "null", "{}", '{"admin": true}', "[]"]


def spelt(name: str, rng: random.Random) -> str:
    """A name as JSON, with some of its characters written otherwise."""
    characters = []
    for char in name:
        ways = [json.dumps(char, ensure_ascii=False)[1:-1], f"\\u{ord(char):04x}"]
        ways += [f"\\u{ord(char):04X}"] + (["\\/"] if char == "/" else [])
        characters.append(ways[0] if rng.random() < 0.6 else rng.choice(ways))
    return '"' + "".join(characters) + '"'


def an_object(rng: random.Random, depth: int = 1) -> str:
    members = ['"admin": false'] if rng.random() < 0.5 else []
    for _ in range(rng.randint(1, 4)):
        value = an_object(rng, 0) if depth and rng.random() < 0.3 else rng.choice(VALUES)
        members.append(f"{spelt(rng.choice(NAMES), rng)}: {value}")
    return "{" + ", ".join(members) + "}"


def check(schema: dict[str, Any], text: str) -> None:
    jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("name", OPEN)
def test_no_second_spelling_of_a_name_passes(
    vocabulary: Vocabulary, compiler: GrammarCompiler, name: str
) -> None:
    schema = OPEN[name]
    compiled = compiler.compile(json_schema(schema))
    rng = random.Random(name)
    num_served = 0
    for _ in range(1000):
        text = an_object(rng)
        if name == "list":
            text = f"[{text}]"
        if accepts(compiled, vocabulary, text):
            num_served += 1
            check(schema, text)
    assert num_served > 3


@pytest.mark.parametrize("name", OPEN)
def test_walks_towards_a_second_spelling_end_in_valid_texts(
    vocabulary: Vocabulary, compiler: GrammarCompiler, name: str
) -> None:
    """The masks are asked for each token; where they allow it, the walk follows a bad text."""
    schema = OPEN[name]
    compiled = compiler.compile(json_schema(schema))
    rng = random.Random(name)
    num_ended = 0
    for _ in range(12):
        lure = vocabulary.encode(f"[{an_object(rng)}]" if name == "list" else an_object(rng))
        state = compiled.start()
        ids: list[int] = []
        for _ in range(150):
            choices = allowed(state.row())
            ends = [token for token in choices if token in vocabulary.eos_ids]
            inner = [token for token in choices if token not in ends]
            if ends and (not inner or len(ids) > 30 or rng.random() < 0.5):
                num_ended += 1
                check(schema, vocabulary.decode(ids))
                break
            wanted = [token for token in lure[len(ids) : len(ids) + 1] if token in choices]
            closers = [t for t in choices if len(ids) > 30 and vocabulary.decode([t]) in '"}]1']
            inner = [token for token in choices if token not in ends]
            token = rng.choice(wanted or closers or inner)
            assert state.advance(token)
            ids.append(token)
    assert num_ended > 3


@pytest.mark.parametrize(
    ("schema", "part"),
    [
        ({"minProperties": 2}, "$.minProperties: 2 is over the limit of 1"),
        ({"properties": {"a": {"required": ["x"], "minProperties": 3}}}, "$.properties.a.minProp"),
        ({"minProperties": 2, "additionalProperties": False, "patternProperties": {"a": {}}}, "1"),
        ({"const": "a\x01"}, "$.const: the control character U+0001"),
        ({"enum": [1, {"a": ["\x7f"]}]}, "$.enum: the control character U+007F"),
        ({"enum": [2**53 + 1]}, "$.enum: 9007199254740993 would be rounded"),
        ({"const": {"a": [-(2.0**63)]}}, "$.const: -9.223372036854776e+18 would be"),
        ({"const": 10**400}, "0... would be rounded"),
        ({"$ref": "#", "$id": "http://a/b"}, "$.$ref: every value would hold itself"),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "$.items.$ref: every value"),
        (
            {"anyOf": [CHAIN, {"allOf": [{"$ref": "#"}]}]},
            "$.anyOf[1].allOf[0].$ref: every value would hold itself",
        ),
        ({"$ref": "#a", "$defs": {"b": {"$anchor": "a", "$ref": "#a"}}}, "no text obeys it"),
        ({"$ref": "#/examples/0", "examples": [{}]}, "$.$ref: '#/examples/0' does not lead"),
        ({"items": {"$ref": "#/properties"}, "properties": {}}, "does not lead to a schema"),
        ({"$ref": "#/const/a", "const": {"a": {}}}, "does not lead to a schema"),
        ({"items": {"multipleOf": 9000}, "multipleOf": 2000}, "11000"),
        ({"multipleOf": 99.9999}, "multipleOf 99.9999 is over the limit of 10000"),
        ({"items": {"maxItems": 600_000}, "minItems": 500_000}, "1100000"),
    ],
)
def test_what_cannot_be_held_is_refused(
    compiler: GrammarCompiler, schema: dict[str, Any], part: str
) -> None:
    assert part in refusal(compiler, json_schema(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "null"}}},
        {"properties": {"a": {"type": "null"}}, "anyOf": [{"$ref": "#/properties/a"}]},
        {"anyOf": [{"type": "null"}, {"items": {"$ref": "#/anyOf/0"}}]},
        {"anyOf": [CHAIN, {"type": "null"}]},
        {"enum": [2**62, 1e23, 0.1, 3.141592653589793, 6.62607015e-34]},
        {"minProperties": 1},
        {"minProperties": 3, "required": ["a", "b"], "type": "object"},
        {"multipleOf": 0.01},
        {"anyOf": [{"multipleOf": 9000}, {"multipleOf": 9000, "minimum": 5}]},
    ],
)
def test_ordinary_uses_are_served(compiler: GrammarCompiler, schema: dict[str, Any]) -> None:
    compiler.compile(json_schema(schema))
