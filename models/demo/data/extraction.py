"""Chat examples that turn text into JSON, make a record up, or put a record into words.

Invariants: the answer is one line in the style of `records`. If the request names fields, the
answer holds those and no others, in the kind's own order. One (phrasing, request) combination in
ten is held out for evaluation. Knows nothing about tokens.
"""

import json
import random
import zlib

from models.demo.data.chat import Conversation, ask
from models.demo.data.records import KINDS, SIZES, Record, make_record
from models.demo.data.words import HELD_OUT_MODULUS, Pools, templates

_KIND_WEIGHTS = {
    "order": 46,
    "contact": 9,
    "person": 9,
    "event": 9,
    "product": 6,
    "booking": 5,
    "shirt": 4,
    "pet": 5,
    "basket": 7,
}
_NOUNS = {"shirt": "order", "basket": "order", "person": "text"}
_TEMPLATES = templates("extraction")


def json_schema(kind: str, keys: tuple[str, ...] | None = None) -> dict[str, object]:
    """Return a JSON schema for a kind, of all fields or of `keys`, in output order."""
    properties = {
        key: _property(name) for key, name in KINDS[kind].items() if keys is None or key in keys
    }
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _property(type_name: str) -> dict[str, object]:
    if type_name == "enum":
        return {"type": "string", "enum": list(SIZES)}
    if type_name == "items":
        fields = {"item": {"type": "string"}, "quantity": {"type": "integer"}}
        entry = {
            "type": "object",
            "properties": fields,
            "required": list(fields),
            "additionalProperties": False,
        }
        return {"type": "array", "items": entry}
    return {"type": type_name}


def _is_held_out(record: Record, request: str) -> bool:
    combination = f"{record.kind} {record.phrasing} {request}"
    return zlib.crc32(combination.encode()) % HELD_OUT_MODULUS == 0


def _listed(rng: random.Random, keys: tuple[str, ...]) -> str:
    """Name the keys in a request, in one of a few list styles."""
    if rng.random() < 0.25:
        return ", ".join(f'"{key}"' for key in keys)
    if len(keys) > 1 and rng.random() < 0.5:
        return ", ".join(keys[:-1]) + " and " + keys[-1]
    return ", ".join(keys)


def _subset(rng: random.Random, record: Record) -> tuple[str, ...]:
    keys = tuple(record.fields)
    if rng.random() < 0.5:
        return keys
    count = rng.randint(1, len(keys))
    chosen = set(rng.sample(keys, count))
    return tuple(key for key in keys if key in chosen)


def _request(rng: random.Random, record: Record) -> tuple[str, str, tuple[str, ...] | None]:
    """Return a request, its template, and the keys that it names (None: all)."""
    noun = _NOUNS.get(record.kind, record.kind)
    if rng.random() < 0.15:
        noun = rng.choice(("text", "message", "note"))
    template = rng.choice(_TEMPLATES["requests"])
    plain = template.format(noun=noun)
    style = rng.random()
    if style < 0.62:
        return plain, template, None
    keys = _subset(rng, record)
    if style < 0.92:
        template = rng.choice(_TEMPLATES["field_requests"])
        return template.format(request=plain, fields=_listed(rng, keys), noun=noun), template, keys
    label = rng.choice(("Schema: ", "JSON schema: ", "Follow this schema: "))
    schema = json_schema(record.kind, keys)
    if rng.random() < 0.4:
        del schema["additionalProperties"]
    return f"{plain} {label}{json.dumps(schema)}", label, keys


def make_extraction(
    rng: random.Random, pools: Pools, held_out: bool = False, kind: str | None = None
) -> Conversation:
    """Return a conversation that asks for the JSON of a text.

    Args:
        rng: source of every choice.
        pools: words of the wanted side of the split.
        held_out: whether the combination of phrasing and request is one never trained on.
        kind: a key of `KINDS`, or None for a random one.
    """
    chosen = kind or rng.choices(list(_KIND_WEIGHTS), list(_KIND_WEIGHTS.values()))[0]
    while True:
        record = make_record(rng, pools, chosen)
        request, template, keys = _request(rng, record)
        if _is_held_out(record, template) == held_out:
            break
    layout = rng.random()
    if layout < 0.68:
        prompt = f"{request}\n{record.text}"
    elif layout < 0.8 and request.endswith("."):
        prompt = f"{request[:-1]}: {record.text}"
    elif layout < 0.9:
        prompt = f"{request} {record.text}"
    else:
        prompt = f"{record.text}\n{request}"
    system = rng.choice(_TEMPLATES["systems"]) if rng.random() < 0.2 else None
    return ask(prompt, record.to_json(keys), system)


def make_record_task(rng: random.Random, pools: Pools) -> Conversation:
    """Return a conversation that invents a record, or says a record in words."""
    kind = rng.choice([name for name in KINDS if name not in ("shirt", "basket")])
    record = make_record(rng, pools, kind)
    if rng.random() < 0.5:
        a_noun = ("an " if kind[0] in "aeiou" else "a ") + kind
        return ask(rng.choice(_TEMPLATES["invent"]).format(a=a_noun, noun=kind), record.to_json())
    return ask(f"{rng.choice(_TEMPLATES['reverse'])}\n{record.to_json()}", record.text)
