"""Random schemas of tools in the words of every draft, right and wrong; judges of what is served.

A schema is built of keywords of one draft, nested. Then some of its values are replaced by unknown
ones. The judge is `jsonschema`, by the schema's own draft, and OpenAPI's own validator for its
dialect. If nothing was loosened, a text must obey the schema as it was sent. If something was, it
must obey the schema without those parts.
"""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import jsonschema
from openapi_schema_validator import OAS30Validator

from models.protocol.grammars import Loosened

# The standard says that `additionalProperties` evaluates each name that it is about; the library's
# keyword of this draft takes its value for a map of names.
_Draft2019 = jsonschema.validators.extend(
    jsonschema.Draft201909Validator,
    {"unevaluatedProperties": jsonschema.Draft202012Validator.VALIDATORS["unevaluatedProperties"]},
)
DRAFTS: dict[str, tuple[str, Any]] = {
    "3": ("http://json-schema.org/draft-03/schema#", jsonschema.Draft3Validator),
    "4": ("http://json-schema.org/draft-04/schema#", jsonschema.Draft4Validator),
    "6": ("http://json-schema.org/draft-06/schema#", jsonschema.Draft6Validator),
    "7": ("http://json-schema.org/draft-07/schema#", jsonschema.Draft7Validator),
    "2019": ("https://json-schema.org/draft/2019-09/schema", _Draft2019),
    "2020": ("https://json-schema.org/draft/2020-12/schema", jsonschema.Draft202012Validator),
    "openapi": ("", OAS30Validator),
}
_OLD = ("3", "4", "openapi")  # exclusive bounds are flags
_TUPLES = ("3", "4", "6", "7", "2019")  # items may be a list
_NAMES = ("a", "city", "x-1", "from", "type", "items")
_PATTERNS = (
    *("^[a-z]+$", r"^(?!\.)(?!.*\.\.)[a-z.]+$", r"^(?=.*\d)(?=.*[a-z]).{2,8}$", r"\bcat\b"),
    *(r"^(?<y>\d{4})$", r"^[\w-.]+$", r"^\d+(\.\d+)?$", "(?<=a)b", "(", r"(a)\1", "^a|b$"),
    *(r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", "", "^(ab|cd){1,3}$", "[^a-z]{2}"),
)
_FORMATS = (
    *("date-time", "date", "time", "email", "uri", "uuid", "ipv4", "ipv6", "hostname", "duration"),
    *("path", "byte", "password", "uuid4", "regex", "color", "int32", "double", "zorro"),
)
_BOUNDS = (
    *(0, 1, -3, 7, 100, 2**31 - 1, 2**53 - 1, 2**53 + 3, 2**63 - 1, -(2**63), 2**64, 1e20, -1e20),
    *(0.5, -0.25, 3.4028234663852886e38, -1.7976931348623157e308, 5e-324, 1e-10),
)
_WRONG: tuple[Any, ...] = (
    *(None, True, False, 5, -1, 0.5, "", "no", [], {}, [None], [1, "a"], {"a": 1}, ["string", 7]),
    *({"$ref": "#/nowhere"}, 10**30, "#/definitions/none", [[]], {"type": "strin"}),
)
_MAX_DEPTH = 3


def random_tool_schema(rng: random.Random) -> tuple[str, Any]:
    """Return a draft, and a schema of arguments in its words; wrong in places half of the time."""
    draft = rng.choice(list(DRAFTS))
    schema = _Writer(rng, draft).root()
    if rng.random() < 0.5:
        for _ in range(rng.choice((1, 1, 2, 4))):
            _spoil(rng, schema)
    if rng.random() < 0.03:
        return draft, rng.choice(_WRONG)
    return draft, schema


class _Writer:
    def __init__(self, rng: random.Random, draft: str) -> None:
        self._rng = rng
        self._draft = draft

    def root(self) -> dict[str, Any]:
        schema = self._object(0)
        uri = DRAFTS[self._draft][0]
        if uri and (self._draft == "3" or self._rng.random() < 0.6):
            schema["$schema"] = uri
        if self._rng.random() < 0.3 and self._draft != "openapi":
            key = "$defs" if self._draft in ("2019", "2020") else "definitions"
            schema[key] = {"node": self._schema(2)}
            schema.setdefault("properties", {})["ref"] = {"$ref": f"#/{key}/node"}
        return schema

    def _schema(self, depth: int) -> dict[str, Any]:
        makers: list[Callable[[int], dict[str, Any]]] = [
            *(self._string, self._string, self._number, self._number, self._enum, self._scalar)
        ]
        if depth < _MAX_DEPTH:
            makers += [self._array, self._object, self._union, self._condition]
        schema = self._rng.choice(makers)(depth)
        if self._rng.random() < 0.1:
            schema |= {"description": "what it is", "default": None, "title": "T"}
        if self._draft == "openapi" and self._rng.random() < 0.3:
            schema["nullable"] = True
        return schema

    def _string(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        schema: dict[str, Any] = {"type": "string"}
        if rng.random() < 0.4:
            schema["pattern"] = rng.choice(_PATTERNS)
        if rng.random() < 0.3:
            schema["format"] = rng.choice(_FORMATS)
        if rng.random() < 0.4:
            schema["maxLength"] = rng.choice((0, 3, 12, 2083))
        if rng.random() < 0.2:
            schema["minLength"] = rng.choice((0, 1, 5))
        return schema

    def _number(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        schema: dict[str, Any] = {"type": rng.choice(("integer", "number"))}
        for bound in ("minimum", "maximum"):
            if rng.random() < 0.5:
                schema[bound] = rng.choice(_BOUNDS)
            exclusive = f"exclusive{bound.title()}"
            if rng.random() < 0.2 and (self._draft not in _OLD or bound in schema):
                is_flag = self._draft in _OLD
                schema[exclusive] = rng.random() < 0.5 if is_flag else rng.choice(_BOUNDS)
        if rng.random() < 0.2:
            key = "divisibleBy" if self._draft == "3" else "multipleOf"
            schema[key] = rng.choice((2, 5, 0.01, 3))
        return schema

    def _enum(self, depth: int) -> dict[str, Any]:
        values = ["x", 1, None, True, ["a"], {"b": 2}, "é", -2.5]
        if self._draft not in _OLD and self._rng.random() < 0.3:
            return {"const": self._rng.choice(values)}
        return {"enum": self._rng.sample(values, self._rng.randint(1, 4))}

    def _scalar(self, depth: int) -> dict[str, Any]:
        names = ["boolean", "integer"] + ["null"] * (self._draft != "openapi")
        if self._draft != "openapi" and self._rng.random() < 0.3:
            return {"type": self._rng.sample(names, 2)}
        return {"type": self._rng.choice(names)}

    def _array(self, depth: int) -> dict[str, Any]:
        rng, draft = self._rng, self._draft
        schema: dict[str, Any] = {"type": "array", "maxItems": rng.randint(0, 4)}
        inner = self._schema(depth + 1)
        if draft == "2020" and rng.random() < 0.3:
            schema["prefixItems"] = [inner, self._schema(depth + 1)]
            schema["items"] = rng.choice((False, {"type": "null"}))
        elif draft in _TUPLES and rng.random() < 0.3:
            schema["items"] = [inner, self._schema(depth + 1)]
            schema["additionalItems"] = rng.choice((False, {"type": "null"}))
        else:
            schema["items"] = inner
        if rng.random() < 0.2:
            schema["uniqueItems"] = True
        if rng.random() < 0.15 and draft not in _OLD:
            schema["contains"] = self._schema(depth + 1)
        return schema

    def _object(self, depth: int) -> dict[str, Any]:
        rng, draft = self._rng, self._draft
        names = rng.sample(_NAMES, rng.randint(0, 3))
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {name: self._schema(depth + 1) for name in names},
        }
        needed = [name for name in names if rng.random() < 0.5]
        if draft == "3":
            for name in needed:
                schema["properties"][name]["required"] = True
        elif needed:
            schema["required"] = needed
        schema["additionalProperties"] = rng.choice((False, False, {"type": "boolean"}))
        if rng.random() < 0.12 and draft != "openapi":
            # The judge takes an empty pattern for none.
            schema["patternProperties"] = {rng.choice(_PATTERNS) or "a": self._schema(depth + 1)}
        if rng.random() < 0.12 and draft not in _OLD:
            schema["propertyNames"] = {"maxLength": 3}
        if rng.random() < 0.12 and names and draft not in ("3", "openapi"):
            key = "dependentRequired" if draft in ("2019", "2020") else "dependencies"
            schema[key] = {names[0]: names[-1:]}
        if rng.random() < 0.1 and draft in ("2019", "2020"):
            schema["unevaluatedProperties"] = False
        return schema

    def _union(self, depth: int) -> dict[str, Any]:
        if self._draft == "3":
            return {"type": [self._schema(depth + 1), "null"]}
        key = self._rng.choice(("anyOf", "anyOf", "oneOf", "allOf"))
        return {key: [self._schema(depth + 1) for _ in range(2)]}

    def _condition(self, depth: int) -> dict[str, Any]:
        if self._draft == "3":
            return {"disallow": "null"}
        if self._draft in ("4", "6", "openapi") or self._rng.random() < 0.4:
            return {"not": self._schema(depth + 1)}
        return {"if": self._schema(depth + 1), "then": self._schema(depth + 1)}


def _spoil(rng: random.Random, schema: Any) -> None:
    """Replace one value somewhere by a wrong one."""
    inner = schema
    while isinstance(inner, dict | list) and inner:
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        key = rng.choice(keys)
        below = inner[key]
        if not isinstance(below, dict | list) or not below or rng.random() < 0.25:
            inner[key] = copy.deepcopy(rng.choice(_WRONG))
            return
        inner = below


# --- judges ---------------------------------------------------------------------------------------


def disobeyed_schema(draft: str, schema: Any, loosened: Sequence[Loosened], text: str) -> str:
    """Why a whole text of arguments disobeys what is left of a schema, or ""."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"{text!r} is not JSON: {error}"
    if not isinstance(value, dict):
        return f"{text!r} is no object"
    left = _left(schema, loosened)
    if left is None or (loosened and _has_wrong(draft, left)):
        return ""
    validator = DRAFTS[draft][1](left)
    try:
        errors = [error.message for error in validator.iter_errors(value)]
    except Exception:  # noqa: BLE001 - a judge that cannot read the schema has no say
        return ""
    return f"{errors[0][:200]}: {text!r} disobeys {json.dumps(left)}" if errors else ""


def _left(schema: Any, loosened: Sequence[Loosened]) -> Any:
    """Return the schema without the loosened parts; None if nothing is left that can be judged.

    It is written anew from the promise of `Loosened`: a part that a path leads to allows anything.
    """
    if not isinstance(schema, dict) or any(not part.steps for part in loosened):
        return None
    left = copy.deepcopy(schema)
    for part in sorted(loosened, key=lambda one: -len(one.steps)):
        *before, last = part.steps
        inner: Any = left
        for step in before:
            inner = inner[step]
        is_child = len(before) > 0 and before[-1] in ("properties", "patternProperties", "$defs")
        is_child |= isinstance(last, int) or (bool(before) and before[-1] == "definitions")
        if is_child:
            inner[last] = {}
            continue
        value = inner.pop(last, None)
        if last == "oneOf":
            inner["allOf"] = [*inner.get("allOf", []), {"anyOf": value}]
        for linked in _LINKED.get(str(last), ()):
            inner.pop(linked, None)
    return left


_LINKED = {
    "properties": ("additionalProperties", "unevaluatedProperties"),
    "patternProperties": ("additionalProperties", "unevaluatedProperties"),
    "items": ("additionalItems",),
    "prefixItems": ("items", "unevaluatedItems"),
    "if": ("then", "else"),
    "contains": ("minContains", "maxContains"),
    "minimum": ("exclusiveMinimum",),
    "maximum": ("exclusiveMaximum",),
}


def _has_wrong(draft: str, schema: Any) -> bool:
    """Return whether the draft's own judge cannot read a schema."""
    try:
        DRAFTS[draft][1].check_schema(schema)
        for pattern in re.findall(r'"pattern": "((?:[^"\\]|\\.)*)"', json.dumps(schema)):
            re.compile(json.loads(f'"{pattern}"'))
    except Exception:  # noqa: BLE001 - whatever it says, it is no judge then
        return True
    return False
