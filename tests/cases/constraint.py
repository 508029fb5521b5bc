"""Twenty schemas, eight patterns and five lists of choices, and what a finished text must obey."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema

from models.protocol.messages import Grammar
from tests.cases.grammar import TEN_SCHEMAS, json_schema

_FORMATS = jsonschema.Draft202012Validator.FORMAT_CHECKER


def _object(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


_MORE_SCHEMAS: dict[str, dict[str, Any]] = {
    "formats": _object(
        {
            "day": {"type": "string", "format": "date"},
            "hour": {"type": "string", "format": "time"},
            "mail": {"type": "string", "format": "email", "maxLength": 24},
            "host": {"type": "string", "format": "ipv4"},
            "key": {"type": "string", "format": "uuid"},
        }
    ),
    "tuple": {
        "type": "array",
        "prefixItems": [{"enum": ["N", "S"]}, {"type": "integer"}, {"type": "boolean"}],
        "items": False,
        "minItems": 3,
    },
    "nullable": _object(
        {
            "a": {"type": ["integer", "null"], "minimum": 0, "maximum": 50},
            "b": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 4}]},
            "c": {"enum": [None, "x"]},
        }
    ),
    "steps": _object(
        {
            "price": {"type": "number", "minimum": 0, "maximum": 20, "multipleOf": 0.25},
            "dozen": {"type": "integer", "minimum": -120, "maximum": 120, "multipleOf": 12},
            "cold": {"type": "number", "exclusiveMaximum": -1.5, "minimum": -40},
        }
    ),
    "tree": {
        "$defs": {
            "tree": _object(
                {
                    "leaf": {"type": "boolean"},
                    "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
                },
                required=["leaf"],
            )
        },
        "$ref": "#/$defs/tree",
    },
    "map": {
        "type": "object",
        "properties": {"id": {"type": "integer", "minimum": 1, "maximum": 99}},
        "patternProperties": {"^x_[a-z]{1,4}$": {"type": "boolean"}},
        "additionalProperties": {"type": "null"},
        "required": ["id"],
    },
    "long_enum": _object(
        {"code": {"enum": [f"{word}-{i}" for i in range(150) for word in ("item", "it", "kit")]}}
    ),
    "escaped_keys": _object(
        {
            'say "hi"': {"const": 'tab\tand "quote"'},
            "back\\slash": {"const": "line\nbreak"},
            "": {"enum": ["\u2028", "/", "\u00e9\U0001f600"]},
        }
    ),
    "events": {
        "type": "array",
        "minItems": 1,
        "maxItems": 3,
        "items": {
            "anyOf": [
                _object({"kind": {"const": "click"}, "x": {"type": "integer", "maximum": 9}}),
                _object(
                    {"kind": {"const": "key"}, "key": {"type": "string", "pattern": "^[a-z]$"}}
                ),
            ]
        },
    },
    "all_of": {
        "allOf": [
            {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3}}},
            {"properties": {"n": {"maximum": 7}, "s": {"type": "string", "maxLength": 3}}},
        ],
        "required": ["n", "s"],
    },
}

TWENTY_SCHEMAS = TEN_SCHEMAS | _MORE_SCHEMAS

EIGHT_PATTERNS: dict[str, str] = {
    "date": r"^\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])$",
    "phone": r"(?a)\(\d{3}\) \d{3}-\d{4}",
    "words": r"(?:[A-Z][a-z]{1,8})(?: [a-z]{1,8}){0,3}\.",
    "yes_no": r"(?i)yes|no|maybe",
    "hex": r"#(?P<code>[0-9a-fA-F]{6}|[0-9a-fA-F]{3})",
    "quoted": r'"(?:[^"\\]|\\.){0,12}?"',
    "unicode": r"[\u00e4\u00f6\u00fc\u00df]{2,4}|\u65e5\u672c+|[\U0001f600-\U0001f64f]{1,2}",
    "lines": r"(?:- \w{1,6}\n){1,3}(?:- \w{1,6})",
}

FIVE_CHOICES: dict[str, list[str]] = {
    "words": ["positive", "negative", "neutral"],
    "prefixes": ["a", "ab", "abc", "b", "abcd efg"],
    "special": [
        'say "hi"',
        "a|b",
        "(x)*",
        "\\d+",
        "/re/",
        "line\nbreak",
        "\t",
        "nul\x00",
        "{}",
        "$",
    ],
    "unicode": [
        "stra\u00dfe",
        "\u65e5\u672c",
        "\u65e5\u672c\u8a9e",
        "\U0001f600",
        "e\u0301",
        "\u00e9",
    ],
    "many": [f"{word} number {i}" for i in range(250) for word in ("item", "part", "it", "i")],
}

CONSTRAINTS: dict[str, Grammar] = {
    **{f"schema-{name}": json_schema(schema) for name, schema in TWENTY_SCHEMAS.items()},
    **{f"regex-{name}": Grammar(kind="regex", text=p) for name, p in EIGHT_PATTERNS.items()},
    **{
        f"choice-{name}": Grammar(kind="choice", text=json.dumps(choices))
        for name, choices in FIVE_CHOICES.items()
    },
    "json_object": Grammar(kind="json_object", text=""),
}


def check_obeys(grammar: Grammar, text: str) -> None:
    """Check a whole text with tools that know nothing of the matcher.

    Raises:
        AssertionError, jsonschema.ValidationError: it does not obey.
    """
    match grammar.kind:
        case "json_schema":
            schema = json.loads(grammar.text)
            jsonschema.validate(
                json.loads(text),
                schema,
                cls=jsonschema.Draft202012Validator,
                format_checker=_FORMATS,
            )
        case "json_object":
            assert isinstance(json.loads(text), dict), text
        case "regex":
            assert re.fullmatch(grammar.text, text), (grammar.text, text)
        case "choice":
            assert text in json.loads(grammar.text), text
