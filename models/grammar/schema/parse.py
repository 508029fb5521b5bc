"""Reads a schema's text and checks it: the values of its keywords, and the limits.

The compiler has limits of its own. The checks here answer the common ways to exceed them within
microseconds. The answer names the place, the limit and the value. A keyword with a value that JSON
schema does not know is refused here too. The compiler would not name its place.

Sources: JSON Schema 2020-12, validation 6; drafts 3 to 7 in `drafts`, which has run before.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NoReturn

from models.grammar.limits import JsonValue, Schema, SchemaLimits, json_path, refuse
from models.grammar.schema.complaints import Complaints
from models.grammar.schema.places import SCHEMAS, Places, children, path_of

TYPES = ("null", "boolean", "object", "array", "number", "string", "integer")
_MAX_SHOWN = 60  # characters of a value in a refusal
_MAX_COUNT = 2**63 - 1


def parse_json(text: str, limits: SchemaLimits) -> Schema:
    """Return the schema as an object; the boolean schema `true` becomes `{}`.

    Raises:
        UnsupportedGrammar: not JSON, not a schema, or too deep.
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
    return value


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


# --- values ---------------------------------------------------------------------------------------


def _number(value: JsonValue) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isinstance(value, int) or math.isfinite(value) else None


def _is_number(value: JsonValue) -> bool:
    return _number(value) is not None


def _is_count(value: JsonValue) -> bool:
    number = _number(value)
    return number is not None and number == int(number) and 0 <= number <= _MAX_COUNT


def _is_positive(value: JsonValue) -> bool:
    number = _number(value)
    return number is not None and number > 0


def _is_type(value: JsonValue) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


def _is_names(value: JsonValue) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_text(value: JsonValue) -> bool:
    return isinstance(value, str)


def _is_map(value: JsonValue) -> bool:
    return isinstance(value, dict)


def _is_list(value: JsonValue) -> bool:
    return isinstance(value, list) and bool(value)


def _is_flag(value: JsonValue) -> bool:
    return isinstance(value, bool)


def _are_names_by_name(value: JsonValue) -> bool:
    return isinstance(value, dict) and all(map(_is_names, value.values()))


_COUNT = (_is_count, "a whole number from 0 to 2^63")
_NUMBER = (_is_number, "a number")
_TEXT = (_is_text, "a text")
_MAP = (_is_map, "an object of schemas by name")
_LIST = (_is_list, "a list of one or more schemas")
_VALUES: dict[str, tuple[Callable[[JsonValue], bool], str]] = {
    "type": (_is_type, f"one or several of {', '.join(TYPES)}"),
    "enum": (_is_list, "a list of one or more values"),
    "required": (_is_names, "a list of names"),
    "dependentRequired": (_are_names_by_name, "an object of lists of names"),
    "dependencies": (_is_map, "an object of schemas or lists of names"),
    **dict.fromkeys(("pattern", "format", "$ref", "$dynamicRef", "$anchor"), _TEXT),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _COUNT),
    **dict.fromkeys(("minProperties", "maxProperties", "minContains", "maxContains"), _COUNT),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _NUMBER),
    "multipleOf": (_is_positive, "a number above 0"),
    "uniqueItems": (_is_flag, "true or false"),
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas"), _MAP),
    **dict.fromkeys(("$defs", "definitions"), _MAP),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _LIST),
}


# A log may name these of a schema.
KEYWORDS = frozenset(_VALUES) | frozenset(SCHEMAS) | {"schema", "$recursiveRef", "const"}


def check_values(schema: Schema, places: Places, complaints: Complaints) -> None:
    """Refuse keywords whose values JSON schema does not know.

    Raises:
        UnsupportedGrammar: with the place, what may stand there and what does.
    """
    for path, inner in list(places.walk(schema)):
        for keyword, value in inner.items():
            is_right, what = _VALUES.get(keyword, (None, ""))
            if is_right is not None and not is_right(value):
                with complaints.taken():
                    refuse(f"must be {what} (got {shown(value)})", path=path + json_path(keyword))
        if "x-guidance" in inner:
            with complaints.taken():
                refuse("is not a JSON schema keyword", path=f"{path}['x-guidance']")
        for below, child in children(inner):
            if not isinstance(child, dict | bool):
                with complaints.taken():
                    refuse(
                        f"must be an object or a boolean (got {shown(child)})",
                        path=path + path_of(below)[1:],
                    )


def shown(value: JsonValue) -> str:
    """Write a value for a refusal, which has no room for a long one."""
    text = json.dumps(value, ensure_ascii=False)[: 4 * _MAX_SHOWN]
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


# --- limits ---------------------------------------------------------------------------------------


@dataclass
class _Sums:
    num_properties: int = 0
    num_enum_values: int = 0
    seen: dict[str, set[int]] = field(default_factory=dict)  # by what the limit is of


def check_limits(
    schema: Schema, limits: SchemaLimits, places: Places, complaints: Complaints
) -> None:
    """Refuse what is over a limit.

    Raises:
        UnsupportedGrammar: with the place, the limit and the value.
    """
    sums = _Sums()
    for path, inner in list(places.walk(schema)):
        with complaints.taken():
            _check_sizes(path, inner, sums, limits)
        with complaints.taken():
            _check_sum(path, inner, "multipleOf", sums, limits.max_multiple_of)
        for keyword in ("minItems", "maxItems"):
            with complaints.taken():
                _check_sum(path, inner, keyword, sums, limits.max_items)


def _check_sizes(path: str, inner: Schema, sums: _Sums, limits: SchemaLimits) -> None:
    sums.num_properties += _size(inner.get("properties")) + _size(inner.get("patternProperties"))
    sums.num_enum_values += _size(inner.get("enum"))
    if sums.num_properties > limits.max_properties:
        refuse(
            f"more than {limits.max_properties} properties in the schema, which is the limit",
            path=path,
        )
    if sums.num_enum_values > limits.max_enum_values:
        refuse(
            f"{sums.num_enum_values} enum values so far, the limit is {limits.max_enum_values}",
            path=f"{path}.enum",
        )


def _check_sum(path: str, inner: Schema, keyword: str, sums: _Sums, limit: int) -> None:
    """Add a number's digits to those seen in the schema, and refuse too high a sum."""
    value = inner.get(keyword)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    digits = Decimal(repr(value)).normalize()
    number = abs(int(digits.scaleb(-min(int(digits.as_tuple().exponent), 0))))
    seen = sums.seen.setdefault("items" if keyword.endswith("Items") else keyword, set())
    if number in seen:
        return
    total = sum(seen) + number
    if total > limit:
        others = "" if not seen else f", with the others in the schema {total},"
        refuse(f"{keyword} {value}{others} is over the limit of {limit}", path=f"{path}.{keyword}")
    seen.add(number)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits} is out of the range of numbers")
    return number


def _size(value: JsonValue) -> int:
    return len(value) if isinstance(value, dict | list) else 0


def _json_type(value: JsonValue) -> str:
    if value is None:
        return "null"
    if isinstance(value, list):
        return "an array"
    return "a string" if isinstance(value, str) else "a number"
