"""Places in a JSON schema: its subschemas, and what stands where after keywords were rewritten.

A place is the list of keys from the root on (`Steps`), which clients see as a JSON path:
`$.properties.age.multipleOf`. Rewriting moves subschemas about but never copies one, so each keeps
the place at which the client wrote it (`Places`). Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator

from models.grammar.limits import JsonValue, Schema, json_path

MAPS_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
LISTS_OF_SCHEMAS = ("anyOf", "allOf", "oneOf", "prefixItems", "items")
SCHEMAS = (
    *("items", "additionalProperties", "additionalItems", "unevaluatedProperties", "not", "if"),
    *("unevaluatedItems", "then", "else", "contains", "propertyNames", "contentSchema"),
)
Steps = tuple[str | int, ...]


def path_of(steps: Steps) -> str:
    """Write a place as a JSON path."""
    return "$" + "".join(
        json_path(step) if isinstance(step, str) else f"[{step}]" for step in steps
    )


def value_at(schema: JsonValue, steps: Steps) -> JsonValue:
    """Return what stands at a place; None: the steps lead nowhere."""
    for step in steps:
        if isinstance(schema, dict):
            schema = schema.get(str(step))
        elif isinstance(schema, list) and isinstance(step, int) and step < len(schema):
            schema = schema[step]
        else:
            return None
    return schema


def walk(schema: JsonValue, steps: Steps = ()) -> Iterator[tuple[Steps, Schema]]:
    """Yield every object schema within `schema`, itself first, with its place."""
    if not isinstance(schema, dict):
        return
    yield steps, schema
    for below, child in children(schema):
        yield from walk(child, steps + below)


def children(schema: Schema) -> Iterator[tuple[Steps, JsonValue]]:
    """Yield the values at which a keyword of `schema` has a schema, with the steps to them."""
    for keyword in (*MAPS_OF_SCHEMAS, "dependencies"):
        inner = schema.get(keyword)
        for name, value in inner.items() if isinstance(inner, dict) else ():
            if keyword != "dependencies" or not isinstance(
                value, list | str
            ):  # names, not a schema
                yield (keyword, name), value
    for keyword in LISTS_OF_SCHEMAS:
        inner = schema.get(keyword)
        for i, value in enumerate(inner) if isinstance(inner, list) else ():
            yield (keyword, i), value
    for keyword in SCHEMAS:
        if keyword in schema and not isinstance(schema[keyword], list):
            yield (keyword,), schema[keyword]


def subschemas(schema: JsonValue) -> Iterator[tuple[str, Schema]]:
    """Yield every object schema within `schema`, itself first, with its JSON path."""
    for steps, inner in walk(schema):
        yield path_of(steps), inner


class Places:
    """The subschemas of a schema by the places at which the client wrote them.

    Args:
        schema: as the client wrote it; it is changed afterwards.
    """

    def __init__(self, schema: Schema) -> None:
        self._places: dict[str, Steps] = {}
        self._paths: dict[int, tuple[str, Schema]] = {}  # by identity, which the second keeps
        for steps, inner in walk(schema):
            path = path_of(steps)
            self._paths[id(inner)] = path, inner
            self._places[path] = steps
            for keyword in inner:
                self._places.setdefault(path + json_path(keyword), (*steps, keyword))
            for below, _ in children(inner):  # also what is no schema and should be one
                self._places.setdefault(path + path_of(below)[1:], steps + below)

    def walk(self, schema: JsonValue, path: str = "$") -> Iterator[tuple[str, Schema]]:
        """Yield every object schema within, as it is now, with the path at which it was written.

        A schema that rewriting has made has the path of the one around it.
        """
        if not isinstance(schema, dict):
            return
        own = self._paths.get(id(schema), (path, schema))[0]
        yield own, schema
        for _, child in children(schema):
            yield from self.walk(child, own)

    def find(self, path: str) -> Steps:
        """Return the place that a path names, or the closest client-written one around it."""
        while path and path not in self._places:
            path = path[: max(path.rfind("."), path.rfind("["))] if len(path) > 1 else ""
        return self._places.get(path, ())
