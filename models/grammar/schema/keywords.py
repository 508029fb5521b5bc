"""Writes keywords that the compiler does not know as some that it does, which mean the same.

A keyword that cannot be written so stays as it is, and the compiler refuses it by name. The
examples are of objects that declare `a` and `b`:

| keyword | written as |
|---|---|
| `dependentRequired: {a: [b]}` | any of: no `a`; both |
| `dependentSchemas: {a: S}` | any of: no `a`; `a` and S |
| `dependencies` | the two above |
| `if` about values of `a`, which is an enum | any of: those values and `then`; others and `else` |
| `not` of types, of `required`, of nothing at all | the other types; no such name; nothing |
| `propertyNames` of patterns, lengths, enums | names of undeclared properties as patterns |
| `unevaluatedProperties`, `unevaluatedItems` | `additionalProperties`, `items`, beside no others |
| `uniqueItems` of a small enum | all lists, one by one |

Source: JSON Schema 2020-12, core 10 and 11, validation 6.
"""

from __future__ import annotations

import itertools
import json
import re

from models.grammar.limits import JsonValue, Schema, json_path, refuse
from models.grammar.schema.complaints import Complaints
from models.grammar.schema.places import Places
from models.grammar.schema.rewrite import also

_MAX_DEPENDENCIES = 6  # dependencies of one object: each doubles its shapes
_MAX_LISTS = 1_000  # that `uniqueItems` becomes
_COUNTS = (
    *("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"),
    *("minContains", "maxContains"),
)
UNENFORCED = "cannot be enforced in this form"
# Keywords that the compiler does not know, unless they were written as something else.
_UNKNOWN = (
    *("not", "if", "contains", "uniqueItems", "propertyNames", "unevaluatedItems"),
    *("unevaluatedProperties", "dependentRequired", "dependentSchemas", "dependencies"),
    *("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"),
)
_ABOUT = {"title", "description", "$comment", "default", "examples"}
_TYPES = ("null", "boolean", "number", "string", "array", "object")
# The unevaluated part depends on which of these hold.
_APPLICATORS = ("allOf", "anyOf", "oneOf", "not", "if", "$ref", "$dynamicRef", "dependentSchemas")
_ITEM_APPLICATORS = (*_APPLICATORS, "contains")


def expand(schema: Schema, places: Places, complaints: Complaints) -> None:
    """Rewrite `schema`, in place.

    Raises:
        UnsupportedGrammar: more dependencies on one object than can be served, or a keyword that
            stays and that the compiler does not know.
    """
    for path, inner in reversed(list(places.walk(schema))):
        _take_whole_numbers(inner)
        _take_unevaluated(inner)  # before anything that it depends on is taken away
        _drop_what_says_nothing(inner)
        _take_names(inner)
        _take_unique(inner)
        _take_not(inner)
        _take_conditions(inner)
        with complaints.taken():
            _take_dependencies(path, inner)
        # The compiler finds the one it comes to, if it does, unless refusals are gathered.
        for keyword in _UNKNOWN if complaints.gathers else ():
            if keyword in inner:
                with complaints.taken():
                    refuse(UNENFORCED, path=path + json_path(keyword))


def _take_whole_numbers(inner: Schema) -> None:
    for keyword in _COUNTS:
        value = inner.get(keyword)
        if isinstance(value, float) and value.is_integer():
            inner[keyword] = int(value)


def _drop_what_says_nothing(inner: Schema) -> None:
    if "if" not in inner:
        inner.pop("then", None)
        inner.pop("else", None)
    elif "then" not in inner and "else" not in inner:
        inner.pop("if")
    is_any_number = inner.get("minContains") == 0 and "maxContains" not in inner
    if "contains" not in inner or is_any_number:
        for keyword in ("contains", "minContains", "maxContains"):
            inner.pop(keyword, None)
    if inner.get("uniqueItems") is False or inner.get("maxItems") in (0, 1):
        inner.pop("uniqueItems", None)
    if inner.get("propertyNames") in (True, {}, {"type": "string"}):
        inner.pop("propertyNames")
    if inner.get("not") is False:
        inner.pop("not")


def _take_unevaluated(inner: Schema) -> None:
    for keyword, same, others in (
        ("unevaluatedProperties", "additionalProperties", _APPLICATORS),
        ("unevaluatedItems", "items", _ITEM_APPLICATORS),
    ):
        if keyword in inner and not any(other in inner for other in others):
            value = inner.pop(keyword)
            inner.setdefault(same, value)


def _take_names(inner: Schema) -> None:
    names = inner.get("propertyNames")
    pattern = _pattern_of(names)
    declared = inner.get("properties", {})
    if names is False and isinstance(declared, dict):
        del inner["propertyNames"]
        also(inner, {"maxProperties": 0})
        return
    if pattern is None or "patternProperties" in inner or not isinstance(declared, dict):
        return
    try:
        fits = re.compile(pattern).search
    except re.error:
        return
    others = inner.get("additionalProperties", True)
    if others not in (True, {}) and any(map(fits, declared)):
        return  # a pattern would bind the declared names too
    del inner["propertyNames"]
    # A name is declared and does not fit, or is required alone.
    required = inner.get("required")
    for name in [*declared, *(required if isinstance(required, list) else [])]:
        if isinstance(name, str) and not fits(name):
            inner.setdefault("properties", {})
            inner["properties"][name] = False  # type: ignore[index,call-overload]  # a dict
    inner["patternProperties"] = {pattern: others}
    inner["additionalProperties"] = False


def _pattern_of(names: JsonValue) -> str | None:
    """Return a pattern for the names that a schema allows; None if it does more than that."""
    if not isinstance(names, dict):
        return None
    asked = {key: value for key, value in names.items() if key not in ("type", "$comment")}
    if names.get("type", "string") != "string" or len(asked) == 0:
        return None
    if set(asked) == {"pattern"} and isinstance(asked["pattern"], str):
        return asked["pattern"]
    values = asked.get("enum", [asked["const"]] if "const" in asked else None)
    if len(asked) == 1 and isinstance(values, list):
        texts = [value for value in values if isinstance(value, str)]
        return f"^(?:{'|'.join(map(re.escape, texts))})$" if texts else None
    if set(asked) <= {"minLength", "maxLength"}:
        low, high = asked.get("minLength", 0), asked.get("maxLength", "")
        return f"^(?:.|\\s){{{low},{high}}}$" if all(_is_count(v) for v in asked.values()) else None
    return None


def _is_count(value: JsonValue) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 10_000


def _take_unique(inner: Schema) -> None:
    """Write all lists of distinct values, if there are few of them."""
    items = inner.get("items")
    if inner.get("uniqueItems") is not True or not isinstance(items, dict):
        return
    values = _distinct(items.get("enum"))
    beside = set(inner) - {"uniqueItems", "items", "minItems", "maxItems", "type"} - _ABOUT
    if not values or beside or set(items) - {"enum", "type"} - _ABOUT or "type" in items:
        return
    least, most = inner.get("minItems", 0), inner.get("maxItems", len(values))
    if inner.get("type") != "array" or not _is_count(least) or not _is_count(most):
        return
    assert isinstance(least, int)
    assert isinstance(most, int)
    lists: list[JsonValue] = []
    for length in range(least, min(most, len(values)) + 1):
        for chosen in itertools.permutations(values, length):
            lists.append(list(chosen))
            if len(lists) > _MAX_LISTS:
                return
    if lists:
        for keyword in ("uniqueItems", "items", "minItems", "maxItems", "type"):
            inner.pop(keyword, None)
        inner["enum"] = lists


def _distinct(values: JsonValue) -> list[JsonValue]:
    if not isinstance(values, list):
        return []
    return list({_key(value): value for value in values}.values())


def _key(value: JsonValue) -> str:
    """Write a value so that equal ones are written alike: 1 is 1.0 and not true."""
    return json.dumps(json.loads(json.dumps(value), parse_float=_number), sort_keys=True)


def _number(digits: str) -> int | float:
    number = float(digits)
    return int(number) if number.is_integer() else number


def _take_not(inner: Schema) -> None:
    denied = inner.get("not")
    if denied in (True, {}):
        del inner["not"]
        also(inner, False)
        return
    if not isinstance(denied, dict):
        return
    if set(denied) == {"type"}:
        types = denied["type"] if isinstance(denied["type"], list) else [denied["type"]]
        if all(name in _TYPES for name in types):
            del inner["not"]
            also(inner, {"type": [name for name in _TYPES if name not in types]})
    elif set(denied) == {"required"} and isinstance(denied["required"], list):
        names = denied["required"]
        if names and all(isinstance(name, str) for name in names):
            del inner["not"]
            shapes: list[JsonValue] = [
                {"type": "object", "properties": {str(name): False}} for name in names
            ]
            also(inner, shapes[0] if len(shapes) == 1 else {"anyOf": shapes})


def _take_conditions(inner: Schema) -> None:
    """Write a condition on one property, if all of its values are known."""
    condition, declared = inner.get("if"), inner.get("properties")
    if not isinstance(condition, dict) or not isinstance(declared, dict):
        return
    asked = condition.get("properties")
    if set(condition) - {"properties", "required", "type"} or not isinstance(asked, dict):
        return
    if inner.get("type") != "object" or condition.get("type", "object") != "object":
        return
    if len(asked) != 1:
        return
    [(name, value)] = asked.items()
    required = condition.get("required", [])
    known, wanted = _values(declared.get(name)), _values(value)
    if known is None or wanted is None or required not in ([], [name]):
        return
    wanted_keys = set(map(_key, wanted))
    met: list[JsonValue] = [one for one in known if _key(one) in wanted_keys]
    unmet: list[JsonValue] = [one for one in known if _key(one) not in wanted_keys]
    # The condition holds without the property, unless it asks for it.
    branches: list[JsonValue] = []
    for values, then, needs_name in (
        (met, inner.get("then", True), bool(required)),
        (unmet, inner.get("else", True), not required),
    ):
        if values or not needs_name:
            shape: Schema = {"properties": {name: {"enum": values} if values else False}}
            if needs_name:
                shape["required"] = [name]
            branches.append({"allOf": [shape, then]})
    for keyword in ("if", "then", "else"):
        inner.pop(keyword, None)
    also(inner, {"anyOf": branches})


def _values(schema: JsonValue) -> list[JsonValue] | None:
    if not isinstance(schema, dict):
        return None
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) and values else None


def _take_dependencies(path: str, inner: Schema) -> None:
    found: list[tuple[str, JsonValue]] = []
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        value = inner.get(keyword)
        if isinstance(value, dict):
            found += value.items()
            del inner[keyword]
    if len(found) > _MAX_DEPENDENCIES:
        refuse(
            f"{len(found)} dependencies on one object, the limit is {_MAX_DEPENDENCIES}", path=path
        )
    for name, then in found:
        shape: JsonValue = {"required": [name, *then]} if isinstance(then, list) else then
        if isinstance(then, list) and not all(isinstance(one, str) for one in then):
            refuse("must be a list of names", path=f"{path}.dependencies{json_path(name)}")
        present: list[JsonValue] = [{"type": "object", "required": [name]}, shape]
        also(inner, {"anyOf": [{"properties": {name: False}}, {"allOf": present}]})
