"""Lists of tools drawn at random: bounded schemas of every kind that arguments commonly have."""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]

_WORDS = ["city", "count", "unit", "name", "date", "items", "flag", "note", "size", "colour"]


def drawn_tools(seed: int) -> list[dict[str, Any]]:
    """One to three tools, the same for a seed."""
    randomness = random.Random(seed)
    names = randomness.sample(["find", "find_all", "save-order", "F2", "note_"], 3)
    return [
        {"type": "function", "function": {"name": name, "parameters": _object(randomness, 2)}}
        for name in names[: randomness.randint(1, 3)]
    ]


def _object(randomness: random.Random, depth: int) -> Schema:
    names = randomness.sample(_WORDS, randomness.randint(1, 3))
    required = [name for name in names if randomness.random() < 0.7]
    schema: Schema = {
        "type": "object",
        "properties": {name: _value(randomness, depth - 1) for name in names},
        "additionalProperties": False,
    }
    return schema | ({"required": required} if required else {})


def _value(randomness: random.Random, depth: int) -> Schema:
    kinds = [_string, _choice, _integer, _number, _flag]
    if depth > 0:
        kinds += [_list, _object]  # type: ignore[list-item]  # of two arguments as well
    kind = randomness.choice(kinds)
    return kind(randomness, depth) if kind in (_list, _object) else kind(randomness)  # type: ignore[call-arg]


def _string(randomness: random.Random) -> Schema:
    if randomness.random() < 0.3:
        return {"type": "string", "pattern": "^[A-Z][a-z]{1,8}$"}
    return {"type": "string", "maxLength": randomness.randint(4, 12)}


def _choice(randomness: random.Random) -> Schema:
    return {"enum": randomness.sample([*_WORDS, 7, None, True], 3)}


def _integer(randomness: random.Random) -> Schema:
    return {"type": "integer", "minimum": -5, "maximum": randomness.randint(5, 2000)}


def _number(randomness: random.Random) -> Schema:
    return {"type": "number", "minimum": 0, "maximum": randomness.randint(1, 99)}


def _flag(randomness: random.Random) -> Schema:
    return {"anyOf": [{"type": "boolean"}, {"type": "null"}]}


def _list(randomness: random.Random, depth: int) -> Schema:
    return {"type": "array", "items": _value(randomness, depth - 1), "maxItems": 3}
