r"""Rewrites a schema that is within the limits into what the compiler is given.

Closes places where llguidance 1.9 would serve something else than was asked for: patterns are
translated (`pattern`), names are counted once, references lead to schemas that were checked,
and no key can be spelt in two ways. The last is done with the escapes that JSON texts may have
(`ALLOWED_ESCAPES`): where a key of an open object may have `\u0061`, a declared name can be
written again, past its schema, and parsers of the text believe the last. So `\u` is not
written at all, and what only it can write is refused where a schema insists on it.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from models.grammar.limits import (
    LISTS_OF_SCHEMAS,
    MAPS_OF_SCHEMAS,
    SCHEMAS,
    JsonValue,
    RegexLimits,
    Schema,
    json_path,
    refuse,
    subschemas,
)
from models.grammar.schema.pattern import UNWRITABLE, at_path

ALLOWED_ESCAPES = 'nrbtf\\"'
_MAX_NAME = 100  # characters of a pattern that a path shows
_UNWRITABLE = re.compile("[" + "".join(f"\\x{a:02x}-\\x{b:02x}" for a, b in UNWRITABLE) + "]")


def rewrite(schema: Schema) -> dict[str, str]:
    """Change `schema`, in place, to what the compiler can be given.

    Returns:
        The patterns as they were written, by what they became: for the compiler's complaints.

    Raises:
        UnsupportedGrammar: with the place in the schema.
    """
    written: dict[str, str] = {}
    for path, inner in list(subschemas(schema)):
        _check_reference(path, inner)
        _check_literals(path, inner)
        _check_min_properties(path, inner)
        pattern = inner.get("pattern")
        if isinstance(pattern, str):
            inner["pattern"] = _translated(pattern, f"{path}.pattern", written)
        named = inner.get("patternProperties")
        if isinstance(named, dict):
            place = f"{path}.patternProperties"
            translated = {
                _translated(name, f"{place}{json_path(name[:_MAX_NAME])}", written): value
                for name, value in named.items()
            }
            if len(translated) < len(named):
                refuse("two of the patterns match the same names", path=place)
            inner["patternProperties"] = translated
    return written


def _translated(pattern: str, path: str, written: dict[str, str]) -> str:
    rust = at_path(pattern, RegexLimits(), path)
    written[rust] = pattern
    return rust


def _check_reference(path: str, inner: Schema) -> None:
    """A pointer must go along keywords that hold schemas: all else was not checked."""
    reference = inner.get("$ref")
    if not isinstance(reference, str) or "#/" not in reference:
        return
    steps = iter(unquote(reference.partition("#/")[2]).split("/"))
    for step in steps:
        if step in MAPS_OF_SCHEMAS or step in LISTS_OF_SCHEMAS:
            if next(steps, None) is not None or step == "items":
                continue
        elif step in SCHEMAS:
            continue
        refuse(f"{reference[:100]!r} does not lead to a schema", path=f"{path}.$ref")


def _check_literals(path: str, inner: Schema) -> None:
    for keyword in ("const", "enum"):
        found = _unwritable(inner.get(keyword))
        if found is not None:
            refuse(
                f"the control character U+{ord(found):04X} in a text is not supported",
                path=f"{path}.{keyword}",
            )


def _unwritable(value: JsonValue) -> str | None:
    """The first character in texts of `value` that only an escape with its number can write."""
    if isinstance(value, str):
        found = _UNWRITABLE.search(value)
        return found[0] if found else None
    children = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(children, list):
        return None
    return next(filter(None, map(_unwritable, children)), None)


def _check_min_properties(path: str, inner: Schema) -> None:
    """Names that are not declared may come twice, and would count twice."""
    least = inner.get("minProperties")
    is_open = inner.get("additionalProperties") is not False or inner.get("patternProperties")
    required = inner.get("required")
    num_required = len(set(map(str, required))) if isinstance(required, list) else 0
    if isinstance(least, int | float) and is_open and least > num_required + 1:
        refuse(
            f"{least} is over the limit of {num_required + 1} (required names and one) "
            "where names that are not declared are allowed",
            path=f"{path}.minProperties",
        )


def close_objects(schema: Schema) -> None:
    """Let objects that declare properties have no others, where they do not say (in place)."""
    for _, inner in list(subschemas(schema)):
        declares = "properties" in inner or "patternProperties" in inner
        if declares and "additionalProperties" not in inner:
            inner["additionalProperties"] = False
