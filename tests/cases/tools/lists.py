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
    deep = [_list, _object] if depth > 0 else []
    at = randomness.randrange(len(kinds) + len(deep))
    return kinds[at](randomness) if at < len(kinds) else deep[at - len(kinds)](randomness, depth)


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
