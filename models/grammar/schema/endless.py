"""Finds schemas that no text obeys since their values hold themselves without end.

The compiler takes such a schema, and its texts would go on until a limit is met. An example is an
object that requires a property which is such an object again. It is refused wherever it stands, as
an optional property too. A model may begin one, and could not end it.
"""

from __future__ import annotations

from collections import defaultdict
from urllib.parse import unquote

from models.grammar.limits import JsonValue, Schema, refuse
from models.grammar.schema.complaints import Complaints
from models.grammar.schema.places import Places, value_at


def check_ends(schema: Schema, places: Places, complaints: Complaints) -> None:
    """Refuse a reference that leads round a circle which no value leaves.

    Raises:
        UnsupportedGrammar: with the place of the last such reference.
    """
    found = list(places.walk(schema))
    num_open: dict[int, int] = {}  # groups of a schema of which no member is known to end
    holders = defaultdict[int, list[tuple[int, int]]](list)  # of a member: schemas and groups
    known = {id(inner) for _, inner in found}
    for _, inner in found:
        groups = [ids for group in _needed(schema, inner) if (ids := set(map(id, group))) <= known]
        num_open[id(inner)] = len(groups)
        for number, ids in enumerate(groups):
            for member in ids:
                holders[member].append((id(inner), number))
    ending = [one for one, count in num_open.items() if count == 0]
    met: set[tuple[int, int]] = set()
    while ending:
        new = set(holders[ending.pop()]) - met
        met |= new
        for holder, _ in new:
            num_open[holder] -= 1
            if num_open[holder] == 0:
                ending.append(holder)
    for path, inner in reversed(found):
        if num_open[id(inner)] and "$ref" in inner:
            with complaints.taken():
                refuse("every value would hold itself without end", path=f"{path}.$ref")
            return


def _needed(root: Schema, inner: Schema) -> list[list[JsonValue]]:
    """Return groups of schemas: each value of `inner` has one that obeys a member of each group."""
    groups = [[part] for part in _list(inner, "allOf")]
    groups += [parts for name in ("anyOf", "oneOf") if (parts := _list(inner, name))]
    reference = inner.get("$ref")
    if isinstance(reference, str) and (reference + "/").startswith("#/"):
        steps = unquote(reference[1:]).replace("~1", "\0").replace("~0", "~").split("/")[1:]
        names = [step.replace("\0", "/") for step in steps]
        groups.append([value_at(root, tuple(int(n) if n.isdecimal() else n for n in names))])
    if inner.get("type") == "object":
        declared = inner.get("properties", {})
        rest = None if "patternProperties" in inner else inner.get("additionalProperties")
        if isinstance(declared, dict):
            groups += [[declared.get(str(name), rest)] for name in _list(inner, "required")]
    least = inner.get("minItems", 0)
    if inner.get("type") == "array" and isinstance(least, int | float):
        first = _list(inner, "prefixItems")
        groups += [[part] for part in first[: int(least)]]
        groups += [[inner.get("items")]] if least > len(first) else []
    return groups


def _list(inner: Schema, keyword: str) -> list[JsonValue]:
    value = inner.get(keyword)
    return value if isinstance(value, list) else []
