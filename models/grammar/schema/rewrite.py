r"""Rewrites a schema that is within the limits into what the compiler is given.

Closes places at which llguidance 1.9 would serve something else than requested. Patterns are
translated (`pattern`), names are counted once, and references lead to schemas that were checked. No
key can be spelt in two ways. The last is done with the escapes that JSON texts may have
(`ALLOWED_ESCAPES`). If a key of an open object may have `\u0061`, a declared name can be written
again, past its schema. Parsers of the text believe the last. So `\u` is not written at all. Text
that only it can write is refused if a schema insists on it.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from models.grammar.limits import JsonValue, Schema, json_path, refuse
from models.grammar.patterns.tree import Node
from models.grammar.schema.complaints import Complaints
from models.grammar.schema.numbers import is_exact
from models.grammar.schema.parse import shown
from models.grammar.schema.pattern import UNWRITABLE, at_path
from models.grammar.schema.places import LISTS_OF_SCHEMAS, MAPS_OF_SCHEMAS, SCHEMAS, Places, walk

ALLOWED_ESCAPES = 'nrbtf\\"'
# Formats that the compiler enforces.
FORMATS = (
    *("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"),
)
_NUMBER_FORMATS = ("int32", "int64", "uint8", "uint16", "uint32", "uint64", "float", "double")
_MAX_NAME = 100  # characters of a pattern that a path shows
_ROUNDED = "would be rounded to another number; use fewer digits, or a whole number up to 2^53"
_UNWRITABLE = re.compile("[" + "".join(f"\\x{a:02x}-\\x{b:02x}" for a, b in UNWRITABLE) + "]")


def rewrite(schema: Schema, places: Places, complaints: Complaints) -> dict[str, str]:
    """Change `schema`, in place, to what the compiler can be given.

    Returns:
        The patterns as they were written, by what they became: for the compiler's complaints.

    Raises:
        UnsupportedGrammar: with the place in the schema.
    """
    patterns = _Patterns()
    for path, inner in list(places.walk(schema)):
        for check in (_check_reference, _check_literals, _check_min_properties):
            with complaints.taken():
                check(path, inner)
        with complaints.taken():
            _take_pattern(path, inner, patterns)
        with complaints.taken():
            _take_patterns_of_names(path, inner, patterns, complaints)
        _drop_unknown_format(path, inner, complaints)
    return patterns.written


class _Patterns:
    """The patterns of one schema."""

    def __init__(self) -> None:
        self.written: dict[str, str] = {}  # as they were written, by what they became
        self._automata: set[Node] = set()

    def translated(self, pattern: str, path: str) -> list[str]:
        """Return the patterns that a text must match all of."""
        found = at_path(pattern, path, self._automata)
        self.written.update(dict.fromkeys(found, pattern))
        return found


def _take_pattern(path: str, inner: Schema, patterns: _Patterns) -> None:
    pattern = inner.get("pattern")
    if isinstance(pattern, str):
        first, *others = patterns.translated(pattern, f"{path}.pattern")
        inner["pattern"] = first
        more: list[JsonValue] = [{"pattern": other} for other in others]
        also(inner, *more)


def _take_patterns_of_names(
    path: str, inner: Schema, patterns: _Patterns, complaints: Complaints
) -> None:
    named = inner.get("patternProperties")
    if not isinstance(named, dict):
        return
    place = f"{path}.patternProperties"
    translated: Schema = {}
    for name, value in named.items():
        with complaints.taken():
            at = f"{place}{json_path(name[:_MAX_NAME])}"
            found = patterns.translated(name, at)
            if len(found) > 1:
                refuse("look-ahead is only supported in the pattern of a text", path=at)
            if found[0] in translated:
                refuse("two of the patterns match the same names", path=place)
            translated[found[0]] = value
    inner["patternProperties"] = translated


def _drop_unknown_format(path: str, inner: Schema, complaints: Complaints) -> None:
    """Drop a format that is not known.

    Such a format describes and does not bind, by the standard.
    """
    name = inner.get("format")
    if isinstance(name, str) and name not in FORMATS:
        del inner["format"]
        if name not in _NUMBER_FORMATS:
            complaints.note(f"{path}.format", f"the format {name[:_MAX_NAME]!r} is not enforced")


def _check_reference(path: str, inner: Schema) -> None:
    """Check that a pointer goes along keywords that hold schemas.

    Other places were not checked.
    """
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
        if reason := _unwritable(inner.get(keyword)):
            refuse(reason, path=f"{path}.{keyword}")


def _unwritable(value: JsonValue) -> str:
    """Return why a part of `value` cannot be written as it is; empty: it can."""
    if isinstance(value, str):
        found = _UNWRITABLE.search(value)
        name = f"U+{ord(found[0]):04X}" if found else ""
        return name and f"the control character {name} in a text is not supported"
    if isinstance(value, int | float):
        return "" if is_exact(value) else f"{shown(value)} {_ROUNDED}"
    children = list(value.values()) if isinstance(value, dict) else value
    return next(filter(None, map(_unwritable, children or ())), "")


def _check_min_properties(path: str, inner: Schema) -> None:
    """Check minProperties: names that are not declared may come twice, and would count twice."""
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


def also(inner: Schema, *others: JsonValue) -> None:
    """Let a value obey other schemas too (in place)."""
    if others:
        before = inner.pop("allOf", [])
        inner["allOf"] = [*(before if isinstance(before, list) else []), *others]


def close_objects(schema: Schema) -> None:
    """Let objects that declare properties have no others, where they do not say (in place)."""
    for _, inner in list(walk(schema)):
        declares = "properties" in inner or "patternProperties" in inner
        if declares and "additionalProperties" not in inner:
            inner["additionalProperties"] = False
