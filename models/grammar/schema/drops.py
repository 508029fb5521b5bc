"""Takes parts out of a schema so that it allows more and never less.

A keyword goes together with those that would mean more without it: `additionalProperties` with
`properties`, `then` with `if`. `oneOf` becomes `anyOf`. A part of `not` or `if` that allows more
would make the whole allow less, so there the whole goes. Standard library only.
"""

from __future__ import annotations

from models.grammar.limits import JsonValue, Schema
from models.grammar.schema.places import LISTS_OF_SCHEMAS, MAPS_OF_SCHEMAS, SCHEMAS, Steps
from models.grammar.schema.rewrite import also

_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
_OTHERS = ("additionalProperties", "unevaluatedProperties")
_OTHER_ITEMS = ("items", "additionalItems", "unevaluatedItems")
# Keywords that go with a keyword.
_LINKED: dict[str, tuple[str, ...]] = {
    "properties": _OTHERS,
    "patternProperties": _OTHERS,
    "prefixItems": _OTHER_ITEMS,
    "items": ("additionalItems",),
    "if": ("then", "else"),
    "then": ("if", "else"),
    "else": ("if", "then"),
    "contains": ("minContains", "maxContains"),
    "minContains": ("contains", "maxContains"),
    "maxContains": ("contains", "minContains"),
    "minimum": ("exclusiveMinimum",),
    "maximum": ("exclusiveMaximum",),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "$ref", "dependentSchemas"), _UNEVALUATED),
}
_WHOLE = ("not", "if", "contains")  # keys whose parts cannot be loosened alone
_EXCLUSIVE = ("exclusiveMinimum", "exclusiveMaximum")


def part_of(schema: Schema, steps: Steps) -> Steps:
    """Return the smallest part of `schema` around a place that can be removed."""
    inner: JsonValue = schema
    at = 0
    while at < len(steps) and isinstance(inner, dict):
        keyword = steps[at]
        if keyword in _WHOLE:
            return steps[: at + 1]
        value = inner.get(str(keyword))
        width = _width(str(keyword), value)
        if not width or at + width >= len(steps):
            return steps[: at + max(width, 1)]
        inner = value
        if width == 2:
            inner = _child(value, steps[at + 1])
        at += width
    return steps[:at]


def take_out(schema: Schema, steps: Steps) -> None:
    """Take a part out of `schema`, in place.

    Args:
        schema: the whole.
        steps: to a keyword, or to a subschema, which becomes one that allows everything; none:
            the whole.
    """
    if not steps:
        schema.clear()
        return
    owner, keys = _owner(schema, steps)
    if owner is None:
        return
    if len(keys) == 2:
        value = owner.get(str(keys[0]))
        if isinstance(value, dict) and keys[1] in value:
            value[str(keys[1])] = {}
        elif isinstance(value, list) and isinstance(keys[1], int) and keys[1] < len(value):
            value[keys[1]] = {}
        return
    _take_keyword(owner, str(keys[0]))


def _take_keyword(owner: Schema, keyword: str) -> None:
    value = owner.pop(keyword, None)
    if keyword == "oneOf" and isinstance(value, list) and value:
        also(owner, {"anyOf": value})
        return
    for linked in _LINKED.get(keyword, ()):
        # A flag of draft 4 is about the bound; a bound of its own stays.
        if linked not in _EXCLUSIVE or isinstance(owner.get(linked), bool):
            owner.pop(linked, None)


def _owner(schema: Schema, steps: Steps) -> tuple[Schema | None, Steps]:
    """Return the subschema that has the last keyword on the way, and the steps from there."""
    inner: JsonValue = schema
    at = 0
    while isinstance(inner, dict):
        keyword = str(steps[at])
        value = inner.get(keyword)
        width = _width(keyword, value)
        if not width or at + width >= len(steps):
            return inner, steps[at:][:2] if width == 2 else steps[at:][:1]
        inner = _child(value, steps[at + 1]) if width == 2 else value
        at += width
    return None, ()


def _width(keyword: str, value: JsonValue) -> int:
    """Return how many steps lead from a keyword to a schema within; 0: it has none."""
    if keyword in (*MAPS_OF_SCHEMAS, "dependencies") and isinstance(value, dict):
        return 2
    if keyword in LISTS_OF_SCHEMAS and isinstance(value, list):
        return 2
    return 1 if keyword in SCHEMAS else 0


def _child(value: JsonValue, step: str | int) -> JsonValue:
    if isinstance(value, dict):
        return value.get(str(step))
    if isinstance(value, list) and isinstance(step, int) and step < len(value):
        return value[step]
    return None
