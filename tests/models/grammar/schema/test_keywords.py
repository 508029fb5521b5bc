"""Keywords that are written as others: what they mean stays, and the table of all is up to date."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from models.grammar.compiler import GrammarCompiler
from tests.cases.grammar import Vocabulary, json_schema, random_text
from tests.cases.keyword_table import TABLE, all_counts, table
from tests.cases.rules import accepts, refusal

NAMES: dict[str, Any] = {"a": {"type": "boolean"}, "b": {"type": "null"}}
CLOSED: dict[str, Any] = {
    "type": "object",
    "properties": {**NAMES, "c": {"type": "null"}},
    "additionalProperties": False,
}
KIND: dict[str, Any] = {
    "type": "object",
    "properties": {"kind": {"enum": ["x", "y", "z"]}, "n": {"enum": [1, 2]}},
    "additionalProperties": False,
    "required": ["kind"],
}
IS_X: dict[str, Any] = {"properties": {"kind": {"const": "x"}}, "required": ["kind"]}
NEEDS_N: dict[str, Any] = {"required": ["n"]}
NOT_TWO: dict[str, Any] = {"properties": {"n": {"const": 1}}}

SCHEMAS: dict[str, dict[str, Any]] = {
    "dependentRequired": {**CLOSED, "dependentRequired": {"a": ["b"], "b": ["c"]}},
    "dependentSchemas": {**CLOSED, "dependentSchemas": {"a": {"required": ["c"]}}},
    "dependencies": {**CLOSED, "dependencies": {"a": ["b"], "c": {"required": ["a"]}}},
    "if and then": {**KIND, "if": IS_X, "then": NEEDS_N},
    "if, then and else": {**KIND, "if": IS_X, "then": NEEDS_N, "else": NOT_TWO},
    "if of an optional": {
        **KIND,
        "required": [],
        "if": {"properties": IS_X["properties"]},
        "then": NEEDS_N,
        "else": NOT_TWO,
    },
    "then alone": {**KIND, "then": NEEDS_N},
    "not types": {"not": {"type": ["object", "array", "string", "number"]}},
    "not required": {**CLOSED, "not": {"required": ["a"]}},
    "not both required": {**CLOSED, "not": {"required": ["a", "b"]}},
    "not false": {"type": "boolean", "not": False},
    "names by pattern": {
        "type": "object",
        "properties": {"x": {"type": "null"}},
        "propertyNames": {"pattern": "^[a-c]{1,3}$"},
        "additionalProperties": {"type": "boolean"},
        "maxProperties": 3,
    },
    "declared names by pattern": {
        "type": "object",
        "properties": {"ab": {"type": "null"}, "x": {"type": "null"}},
        "propertyNames": {"pattern": "^[a-c]{1,3}$"},
    },
    "names by length": {
        "type": "object",
        "propertyNames": {"maxLength": 2},
        "additionalProperties": {"type": "null"},
        "maxProperties": 2,
    },
    "names by enum": {
        "type": "object",
        "propertyNames": {"enum": ["a", "b.c"]},
        "additionalProperties": {"type": "null"},
        "maxProperties": 1,
    },
    "no names": {"type": "object", "propertyNames": False},
    "unevaluated": {"type": "object", "properties": NAMES, "unevaluatedProperties": False},
    "unevaluated items": {"prefixItems": [{"const": 1}], "unevaluatedItems": False},
    "unique": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True},
    "two unique": {
        "type": "array",
        "items": {"enum": [1, 2, 3, 4]},
        "minItems": 2,
        "maxItems": 2,
        "uniqueItems": True,
    },
    "unique of equal ones": {
        "type": "array",
        "items": {"enum": [1, 1.0, 2]},
        "uniqueItems": True,
    },
    "unique of one": {
        "type": "array",
        "items": {"type": "boolean"},
        "maxItems": 1,
        "uniqueItems": True,
    },
    "whole numbers": {"type": "string", "minLength": 1.0, "maxLength": 2.0},
    "any number of these": {
        "type": "array",
        "items": {"type": "null"},
        "contains": {"const": 1},
        "minContains": 0,
    },
}
VALUES: list[Any] = [True, None, 1, 2, "x", "y", [], ["a"], ["b", "a"], [1, 1], [2, 1], {}]
OBJECTS: list[Any] = [
    *({"a": True}, {"b": None}, {"c": None}, {"a": True, "b": None}, {"b": None, "c": None}),
    *({"a": True, "c": None}, {"a": True, "b": None, "c": None}, {"kind": "x"}, {"kind": "y"}),
    *({"kind": "x", "n": 1}, {"kind": "y", "n": 2}, {"kind": "z", "n": 1}, {"n": 1}, {"n": 2}),
    *({"ab": None}, {"abc": True}, {"x": None}, {"abcd": True}, {"a": None}, {"b.c": None}),
    *({"bxc": None}, {"ab": None, "c": True}, {"aa": None, "bb": None}),
]


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_keyword_keeps_its_meaning(
    vocabulary: Vocabulary, compiler: GrammarCompiler, name: str
) -> None:
    schema = SCHEMAS[name]
    compiled = compiler.compile(json_schema(schema))
    is_old = "dependencies" in schema  # the word of drafts up to 7
    kind = jsonschema.Draft7Validator if is_old else jsonschema.Draft202012Validator
    validator = kind(schema)
    num_valid = 0
    for value in [*VALUES, *OBJECTS]:
        text = json.dumps(value)
        assert accepts(compiled, vocabulary, text) == validator.is_valid(value), text
        num_valid += validator.is_valid(value)
    rng = random.Random(name)
    for _ in range(20):
        text = vocabulary.decode(random_text(compiled, vocabulary, rng))
        validator.validate(json.loads(text))
    assert num_valid or name == "whole numbers"


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"not": {"type": "integer"}}, "$.not: cannot be enforced"),
        ({"not": {"const": 1}}, "$.not: cannot be enforced"),
        ({"not": {}}, "schema is false"),
        ({"contains": {"const": 1}}, "$.contains: cannot be enforced"),
        ({"type": "array", "uniqueItems": True}, "$.uniqueItems: cannot be enforced"),
        (
            {"type": "array", "items": {"enum": list(range(9))}, "uniqueItems": True},
            "$.uniqueItems: cannot be enforced",
        ),
        ({"if": {"minimum": 3}, "then": {"maximum": 5}}, "$.if: cannot be enforced"),
        ({"propertyNames": {"format": "date"}}, "$.propertyNames: cannot be enforced"),
        (
            {
                "properties": {"ab": {"type": "null"}},
                "propertyNames": {"pattern": "^[ab]"},
                "additionalProperties": {"type": "boolean"},
            },
            "$.propertyNames: cannot be enforced",
        ),
        (
            {"anyOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
            "$.unevaluatedProperties: cannot be enforced",
        ),
        (
            {"dependentRequired": {f"a{i}": ["b"] for i in range(7)}},
            "$: 7 dependencies on one object, the limit is 6",
        ),
        (
            {"dependentRequired": {"a": [3]}},
            "$.dependentRequired: must be an object of lists of names",
        ),
    ],
)
def test_what_cannot_be_written_so_is_refused_by_name(
    compiler: GrammarCompiler, schema: dict[str, Any], reason: str
) -> None:
    assert reason in refusal(compiler, json_schema(schema))


def test_the_table_of_keywords_is_up_to_date_and_nothing_invalid_goes_through() -> None:
    counts = dict(all_counts())
    assert {keyword: one.wrong for keyword, one in counts.items() if one.wrong} == {}
    assert TABLE.read_text(encoding="utf-8") == table(counts), (
        f"python -m tests.cases.keyword_table > {TABLE}"
    )
