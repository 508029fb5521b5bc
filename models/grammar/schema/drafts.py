"""Writes what older drafts and OpenAPI 3.0 spell otherwise in the words of draft 2020-12.

The shape of a value decides, so that a schema which does not name its draft is understood too. No
draft has two meanings for one shape, but for draft 3, which must be named by `$schema`.

| written | becomes |
|---|---|
| `items: [A, B]`, `additionalItems: C` (2019-09 and before) | `prefixItems: [A, B]`, `items: C` |
| `minimum: 1, exclusiveMinimum: true` (4, OpenAPI 3.0) | `exclusiveMinimum: 1` |
| `$recursiveRef: "#"` (2019-09), in a schema without anchors | `$ref: "#"` |
| `nullable: true` beside `type` (OpenAPI 3.0), where a schema may be loosened | the type, or null |
| `required: true`, `divisibleBy`, `extends`, `disallow`, `type: "any"` (3) | what they mean |

Sources: the JSON Schema drafts 3, 4, 7 and 2019-09; OpenAPI 3.0.3, Schema Object.
"""

from __future__ import annotations

from models.grammar.limits import JsonValue, Schema
from models.grammar.schema.places import Places

_EXCLUSIVE = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))


def modernise(schema: Schema, places: Places, *, is_loose: bool) -> None:
    """Rewrite `schema`, in place. `is_loose`: null may be written where it is `nullable`."""
    is_oldest = "draft-03" in str(schema.get("$schema", ""))
    found = [inner for _, inner in places.walk(schema)]
    for inner in found:
        inner.pop("$schema", None)  # has said what it had to say
    has_anchors = any(inner.get("$recursiveAnchor") is True for inner in found[1:])
    for inner in found:
        if is_oldest:
            _take_oldest(inner)
        _take_tuples(inner)
        _take_flags(inner)
        if inner.get("$recursiveRef") == "#" and "$ref" not in inner and not has_anchors:
            inner["$ref"] = inner.pop("$recursiveRef")
        if is_loose and inner.get("nullable") is True:
            _take_null(inner)
    if not has_anchors and isinstance(schema.get("$recursiveAnchor"), bool):
        del schema["$recursiveAnchor"]


def _take_tuples(inner: Schema) -> None:
    items = inner.get("items")
    if isinstance(items, list) and "prefixItems" not in inner:
        del inner["items"]
        if items:
            inner["prefixItems"] = items
        if "additionalItems" in inner:
            inner["items"] = inner.pop("additionalItems")
    elif not isinstance(items, list):
        inner.pop("additionalItems", None)  # says nothing without a tuple


def _take_flags(inner: Schema) -> None:
    for exclusive, bound in _EXCLUSIVE:
        if inner.get(exclusive) is False:
            del inner[exclusive]
        elif inner.get(exclusive) is True and bound in inner:
            inner[exclusive] = inner.pop(bound)


def _take_null(inner: Schema) -> None:
    types = inner.get("type")
    names = types if isinstance(types, list) else [types]
    if all(isinstance(name, str) for name in names) and "null" not in names:
        inner["type"] = [*names, "null"]
        if isinstance(inner.get("enum"), list):
            inner["enum"] = [*inner["enum"], None]  # type: ignore[misc]  # a list


def _take_oldest(inner: Schema) -> None:
    declared = inner.get("properties")
    if isinstance(declared, dict):
        needed: list[JsonValue] = [
            name
            for name, value in declared.items()
            if isinstance(value, dict) and value.get("required") is True
        ]
        if needed:
            inner["required"] = needed
    if isinstance(inner.get("required"), bool):
        del inner["required"]  # the object around it has it now
    if "divisibleBy" in inner:
        inner["multipleOf"] = inner.pop("divisibleBy")
    if "extends" in inner:
        extended = inner.pop("extends")
        inner["allOf"] = extended if isinstance(extended, list) else [extended]
    _take_oldest_types(inner)


def _take_oldest_types(inner: Schema) -> None:
    if "disallow" in inner:
        denied = inner.pop("disallow")
        shapes = _shapes(denied)
        inner["not"] = shapes[0] if len(shapes) == 1 else {"anyOf": shapes}
    if "type" in inner and inner["type"] not in ("any", ["any"]):
        types = inner["type"]
        if isinstance(types, list) and not all(isinstance(name, str) for name in types):
            del inner["type"]
            inner["anyOf"] = _shapes(types)
        elif isinstance(types, list) and "any" in types:
            del inner["type"]
    else:
        inner.pop("type", None)


def _shapes(types: JsonValue) -> list[JsonValue]:
    """Draft 3's types, of which some are schemas, as schemas."""
    listed = types if isinstance(types, list) else [types]
    return [
        {} if one == "any" else {"type": one} if isinstance(one, str) else one for one in listed
    ]
