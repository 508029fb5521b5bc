"""Refuses by name what must not reach a grammar's compiler. Standard library only.

The compiler has limits of its own (fuel, states, items) and the constraint child has a deadline
and a memory limit; the checks here exist so that the common ways to exceed them end in a
sentence that names the field, the place in the schema, the limit and the value, in microseconds.
They also close places where llguidance 1.9 is lenient and would serve something else than was
asked for: the array form of `items`, boolean `exclusiveMinimum`, options in `x-guidance`.

Places are written as JSON paths: `$.properties.age.multipleOf`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import NoReturn

from models.protocol.errors import UnsupportedGrammar
from models.protocol.messages import MAX_DRAFT_TOKENS, Grammar

# What a grammar is called in messages.
NOUNS = {
    "json_schema": "schema",
    "json_object": "schema",
    "regex": "pattern",
    "choice": "list of choices",
    "lark": "grammar",
    "ebnf": "grammar",
    "structural_tag": "structural tag",
}

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]
Schema = dict[str, JsonValue]

MAPS_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
LISTS_OF_SCHEMAS = ("anyOf", "allOf", "oneOf", "prefixItems", "items")
SCHEMAS = (
    *("items", "additionalProperties", "additionalItems", "unevaluatedProperties", "not", "if"),
    *("unevaluatedItems", "then", "else", "contains", "propertyNames", "contentSchema"),
)
_PLAIN_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*")


@dataclass(frozen=True)
class SchemaLimits:
    """Bounds on one schema. Generous for tool schemas; the worst allowed compiles in ~0.3 s."""

    max_schema_bytes: int = 65_536
    max_depth: int = 48  # JSON nesting; llguidance itself stops at 128
    max_properties: int = 1_000  # over the whole schema; compile time grows with the square
    max_enum_values: int = 5_000  # over the whole schema
    # Sums over the distinct values of the whole schema, because each costs as much as it is high:
    # digits of multipleOf (10,000: 20 ms, 2 MB; 1,000,000: 11 s, 400 MB), bounds of arrays
    # (900 of 90,000: 1.6 s, 90 MB).
    max_multiple_of: int = 10_000
    max_items: int = 1_000_000


@dataclass(frozen=True)
class RegexLimits:
    """Bounds on one regular expression."""

    max_pattern_bytes: int = 4096
    max_repeat: int = 10_000  # of one quantifier
    max_expanded: int = 100_000  # characters of the pattern with its repeats written out
    max_depth: int = 48  # groups within groups


@dataclass(frozen=True)
class ChoiceLimits:
    """Bounds on one list of choices.

    Every byte is a state of the lexer, which all texts under one list share: the total stays
    below `ParserLimits.max_lexer_states`.
    """

    max_choices: int = 1024
    max_choice_bytes: int = 4096  # of UTF-8, each
    max_total_bytes: int = 32_768


@dataclass(frozen=True)
class RuleLimits:
    """Bounds on one grammar with rules, beside its size (`SchemaLimits.max_schema_bytes`)."""

    max_rules: int = 1_000
    max_repeat: int = 10_000  # of one part
    max_expanded: int = 100_000  # characters of what is regular, with its repeats written out
    max_depth: int = 48  # groups within groups
    max_schemas: int = 128


@dataclass(frozen=True)
class ParserLimits:
    """Work bounds of one compile or one mask, below llguidance's defaults where that is safe."""

    initial_lexer_fuel: int = 500_000  # about 10 ms
    step_lexer_fuel: int = 200_000  # about 15 ms per mask
    step_max_items: int = 50_000  # of JSON, patterns and choices, which stay far below
    # Of grammars with rules, where each may take 4 us: a mask with 50,000 took 0.2 s.
    step_max_rule_items: int = 10_000
    max_lexer_states: int = 50_000  # 1-2 kB each
    max_grammar_size: int = 200_000  # symbols


@dataclass(frozen=True)
class HostLimits:
    """Bounds of one `GrammarHost`."""

    max_cached_grammars: int = 128
    max_sessions: int = 256
    session_idle_s: float = 600.0  # a session may be dropped for another after this
    max_rows: int = MAX_DRAFT_TOKENS + 1  # per mask request


MAX_CHECKED_BYTES = 65_536  # of a text that is compared with a grammar


def refuse(message: str, *, path: str = "") -> NoReturn:
    """Raise `UnsupportedGrammar` that names the place in the grammar.

    The request field is not named: the API, which knows how the client spelt it, adds it.
    """
    raise UnsupportedGrammar(f"{path}: {message}" if path else message)


def check_size(grammar: Grammar, limits: SchemaLimits) -> None:
    """Refuse a grammar text that is too long to be sent or parsed.

    Raises:
        UnsupportedGrammar: over `max_schema_bytes`.
    """
    text = grammar.text
    num_bytes = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    if num_bytes > limits.max_schema_bytes:
        refuse(
            f"the {NOUNS[grammar.kind]} has {num_bytes} bytes, "
            f"the limit is {limits.max_schema_bytes}"
        )


def parse_schema(text: str, limits: SchemaLimits) -> Schema:
    """The schema as an object, after all checks that need no compiler.

    The boolean schema `true` comes back as `{}`.

    Raises:
        UnsupportedGrammar: not JSON, not a schema, or over a limit.
    """
    try:
        value: JsonValue = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError:
        refuse(f"the schema nests too deep, the limit is {limits.max_depth} levels")
    except ValueError as error:
        refuse(f"the schema is not JSON: {error}")
    if value is False:
        refuse("the schema 'false' allows nothing")
    if value is True:
        return {}
    if not isinstance(value, dict):
        refuse(f"the schema is {_json_type(value)}, it must be an object or a boolean")
    _check_depth(value, limits.max_depth)
    _check_keywords(value, limits)
    return value


def subschemas(schema: JsonValue, path: str = "$") -> Iterator[tuple[str, Schema]]:
    """Every object schema within `schema`, itself first, with its JSON path."""
    if not isinstance(schema, dict):
        return
    yield path, schema
    for keyword in MAPS_OF_SCHEMAS:
        inner = schema.get(keyword)
        if isinstance(inner, dict):
            for name, value in inner.items():
                yield from subschemas(value, f"{path}.{keyword}{json_path(name)}")
    for keyword in LISTS_OF_SCHEMAS:
        inner = schema.get(keyword)
        if isinstance(inner, list):
            for i, value in enumerate(inner):
                yield from subschemas(value, f"{path}.{keyword}[{i}]")
    for keyword in SCHEMAS:
        yield from subschemas(schema.get(keyword), f"{path}.{keyword}")


def locate(schema: Schema, complaint: str) -> str:
    """JSON path of the keyword the compiler's `complaint` is about; "" when it names none."""
    named = re.search(r'(?:Unimplemented|Unknown) keys: \["([^"]+)"', complaint)
    if named:
        return _first(schema, named[1], None)
    for pattern, keyword in (
        (r"^oneOf ", "oneOf"),
        (r"Invalid type: (.*)", "type"),
        (r"Unknown format: (.*)", "format"),
        (r"Resource '([^']*)", "$ref"),
        (r"Pointer '([^']*)' does not exist", "$ref"),
        (r"Anchor '([^']*)' does not exist", "$ref"),
        (r"Unsatisfiable schema: required property '([^']*)'", "required"),
        (r"regex parse error:\n    (.*)", "pattern"),
    ):
        found = re.search(pattern, complaint)
        if found:
            return _first(schema, keyword, found[1] if found.groups() else None)
    return ""


def _first(schema: Schema, keyword: str, part: str | None) -> str:
    """Path of the first `keyword` whose value contains `part` (any value when None)."""
    for path, inner in subschemas(schema):
        if keyword in inner and (part is None or part in str(inner[keyword])):
            return f"{path}{json_path(keyword)}"
    return ""


def _check_depth(schema: Schema, limit: int) -> None:
    level: list[JsonValue] = [schema]
    depth = 0
    while level:
        depth += 1
        if depth > limit:
            refuse(f"the schema nests more than {limit} levels deep, which is the limit")
        level = [
            child
            for value in level
            if isinstance(value, dict | list)
            for child in (value.values() if isinstance(value, dict) else value)
        ]


def _check_keywords(schema: Schema, limits: SchemaLimits) -> None:
    num_properties = 0
    num_enum_values = 0
    multiples: set[int] = set()
    bounds: set[int] = set()
    for path, inner in subschemas(schema):
        num_properties += _size(inner.get("properties")) + _size(inner.get("patternProperties"))
        num_enum_values += _size(inner.get("enum"))
        if num_properties > limits.max_properties:
            refuse(
                f"more than {limits.max_properties} properties in the schema, which is the limit",
                path=path,
            )
        if num_enum_values > limits.max_enum_values:
            refuse(
                f"{num_enum_values} enum values so far, the limit is {limits.max_enum_values}",
                path=f"{path}.enum",
            )
        _check_sum(path, inner, "multipleOf", multiples, limits.max_multiple_of)
        for keyword in ("minItems", "maxItems"):
            _check_sum(path, inner, keyword, bounds, limits.max_items)
        _check_lenient(path, inner)


def _check_sum(path: str, inner: Schema, keyword: str, seen: set[int], limit: int) -> None:
    """Add a number's digits to those seen in the schema, and refuse too high a sum."""
    value = inner.get(keyword)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    digits = Decimal(repr(value)).normalize()
    number = abs(int(digits.scaleb(-min(int(digits.as_tuple().exponent), 0))))
    if number in seen:
        return
    seen.add(number)
    if sum(seen) > limit:
        others = "" if len(seen) == 1 else f", with the others in the schema {sum(seen)},"
        refuse(f"{keyword} {value}{others} is over the limit of {limit}", path=f"{path}.{keyword}")


def _check_lenient(path: str, inner: Schema) -> None:
    if isinstance(inner.get("items"), list):
        refuse("an array is not a schema; use prefixItems", path=f"{path}.items")
    for keyword in ("exclusiveMinimum", "exclusiveMaximum"):
        if isinstance(inner.get(keyword), bool):
            refuse("must be a number", path=f"{path}.{keyword}")
    if "x-guidance" in inner:
        refuse("is not a JSON schema keyword", path=f"{path}['x-guidance']")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits} is out of the range of numbers")
    return number


def _size(value: JsonValue) -> int:
    return len(value) if isinstance(value, dict | list) else 0


def json_path(name: str) -> str:
    """One step of a JSON path."""
    return f".{name}" if _PLAIN_NAME.fullmatch(name) else f"[{json.dumps(name)}]"


def _json_type(value: JsonValue) -> str:
    if value is None:
        return "null"
    if isinstance(value, list):
        return "an array"
    return "a string" if isinstance(value, str) else "a number"
