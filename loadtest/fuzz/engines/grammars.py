"""Random grammars of every kind, and whether a finished text obeys one."""

from __future__ import annotations

import json
import random
import re
import string
from typing import Any

import jsonschema

from loadtest.fuzz.engines.rule_grammars import disobeyed, random_rules
from models.protocol.messages import Grammar

_WORDS = ("a", "name", "city", "x-1", "Füße", 'say "hi"', "id", "tag", "k0", "value")
_CHARS = string.ascii_letters + string.digits + ' _-.:/"\\é€'
_PATTERNS = (
    r"\d{4}-\d{2}-\d{2}",
    r"(yes|no|maybe)( please)?",
    r"[a-z]{1,6}(,[a-z]{1,6}){0,3}",
    r"[A-Z][a-z]* \$[0-9]+\.[0-9]{2}",
    r"(ab|ba){2,5}",
    r"[^\n]{0,12}",
    r"x{3,9}|y?z",
)
MAX_DEPTH = 3
_KINDS = ("json_schema", "json_schema", "json_object", "regex", "choice", "rules", "rules")


def random_grammar(rng: random.Random) -> Grammar:
    """Return a grammar that this service compiles."""
    match rng.choice(_KINDS):
        case "json_schema":
            return Grammar(kind="json_schema", text=json.dumps(random_schema(rng)))
        case "json_object":
            return Grammar(kind="json_object", text="")
        case "regex":
            return Grammar(kind="regex", text=_pattern(rng))
        case "rules":
            return random_rules(rng, lambda: random_schema(rng))
        case _:
            words = {_text(rng, 12) or "x" for _ in range(rng.randint(1, 8))}
            return Grammar(kind="choice", text=json.dumps(sorted(words), ensure_ascii=False))


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """Return a JSON schema; the root is an object, open ones among them."""
    if depth == 0:
        return _object(rng, depth)
    makers = [_string, _number, _integer, _enum, _scalar]
    if depth < MAX_DEPTH:
        makers += [_array, _union, _object]
    return rng.choice(makers)(rng, depth)


def disobedience(grammar: Grammar, text: str) -> str:
    """Why a whole text does not obey its grammar, or ""."""
    match grammar.kind:
        case "regex":
            is_matched = re.fullmatch(grammar.text, text) is not None
            return "" if is_matched else f"{text!r} does not match {grammar.text!r}"
        case "choice":
            is_listed = text in json.loads(grammar.text)
            return "" if is_listed else f"{text!r} is none of {grammar.text}"
        case "json_object":
            schema: dict[str, Any] = {"type": "object"}
        case "json_schema":
            schema = json.loads(grammar.text)
        case "lark" | "ebnf" | "structural_tag":
            return disobeyed(grammar, text)
    try:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{text!r} disobeys {grammar.text}: {str(error).splitlines()[0]}"
    return ""


def _text(rng: random.Random, most: int) -> str:
    return "".join(rng.choices(_CHARS, k=rng.randint(0, most)))


def _pattern(rng: random.Random) -> str:
    parts = rng.choices(_PATTERNS, k=rng.randint(1, 2))
    return "-".join(f"({part})" for part in parts) if len(parts) > 1 else parts[0]


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(_WORDS, rng.randint(0 if depth else 1, 4))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: random_schema(rng, depth + 1) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
    }
    extra = rng.choice(("closed", "closed", "open", "typed"))
    if extra == "closed":
        schema["additionalProperties"] = False
    elif extra == "typed":
        schema["additionalProperties"] = _scalar(rng, depth)
    return schema


def _string(rng: random.Random, depth: int) -> dict[str, Any]:
    shape = rng.choice(("bounded", "bounded", "format", "pattern"))
    if shape == "format":
        return {"type": "string", "format": rng.choice(("date", "uuid", "ipv4"))}
    if shape == "pattern":
        return {"type": "string", "pattern": "^[a-z]{1,5}$"}
    least = rng.randint(0, 3)
    return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 9)}


def _number(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randint(-50, 50)
    return {"type": "number", "minimum": low, "maximum": low + rng.randint(0, 90)}


def _integer(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randint(-500, 500)
    schema = {"type": "integer", "minimum": low, "maximum": low + rng.randint(20, 900)}
    if rng.random() < 0.2:
        schema["multipleOf"] = rng.randint(2, 12)
    return schema


def _enum(rng: random.Random, depth: int) -> dict[str, Any]:
    values: list[Any] = [_text(rng, 6), rng.randint(-9, 99), None, rng.random() < 0.5]
    return {"enum": rng.sample(values, rng.randint(1, len(values)))}


def _scalar(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"type": rng.choice(("boolean", "null", "integer"))}


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    least = rng.randint(0, 2)
    return {
        "type": "array",
        "items": random_schema(rng, depth + 1),
        "minItems": least,
        "maxItems": least + rng.randint(0, 3),
    }


def _union(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [random_schema(rng, depth + 1) for _ in range(2)]}
