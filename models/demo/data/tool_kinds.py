"""The functions that the demo pair learns to call: what they are named, asked for and return.

Invariant: every argument of a call stands word for word in the request. Exceptions are enumerated
ones, and items, which are in the singular.
"""

import random
from collections.abc import Callable

from models.demo.data.records import city_name, date_text, item_name, person_name
from models.demo.data.tools import Parameter, ToolKind, Values
from models.demo.data.words import COLORS, Pools, made_up, plural, templates

_SKY = ("sunny", "cloudy", "rainy", "windy", "snowy", "clear", "foggy", "warm", "cold")
_OPERATORS = {"+": ("plus", "+"), "-": ("minus", "-"), "*": ("times", "*"), "/": ("over", "/")}


def _weather(rng: random.Random, pools: Pools) -> Values:
    return {
        "city": city_name(rng, pools),
        "sky": rng.choice(_SKY),
        "degrees": rng.randint(-15, 38),
        **({"unit": rng.choice(("celsius", "fahrenheit"))} if rng.random() < 0.3 else {}),
    }


def _sum(rng: random.Random, _: Pools) -> Values:
    high = rng.choice((12, 99, 999))
    a, b = rng.randint(1, high), rng.randint(1, high)
    operator = rng.choice(tuple(_OPERATORS))
    result = {"+": a + b, "-": a - b, "*": a * b, "/": round(a / b, 2)}[operator]
    said = rng.choice(_OPERATORS[operator])
    return {"a": a, "b": b, "operator": operator, "said": said, "result": result}


def _timer(rng: random.Random, pools: Pools) -> Values:
    return {"minutes": rng.randint(1, 90), "label": made_up(rng, pools)}


def _message(rng: random.Random, pools: Pools) -> Values:
    words = [made_up(rng, pools) for _ in range(rng.randint(1, 2))]
    text = rng.choice(
        (
            "I am late",
            "see you soon",
            "happy birthday",
            f"bring the {' '.join(words)}",
            f"I am in {city_name(rng, pools)}",
            f"call me on {date_text(rng)}",
        )
    )
    return {"to": person_name(rng, pools), "text": text}


def _order(rng: random.Random, pools: Pools) -> Values:
    item, quantity = item_name(rng, pools), rng.choice((rng.randint(2, 12), rng.randint(2, 400)))
    return {
        "customer": person_name(rng, pools),
        "item": item,
        "items": plural(item),
        "quantity": quantity,
        "number": rng.randint(100, 99999),
    }


def _status(rng: random.Random, _: Pools) -> Values:
    letters = rng.choice(("", "A", "B-", "X", "ORD-"))
    number = f"{letters}{rng.randint(10, 999999)}"
    return {"id": number, "state": rng.choice(("shipped", "ready", "lost", "on its way", "open"))}


def _light(rng: random.Random, pools: Pools) -> Values:
    room = rng.choice(("kitchen", "hall", "garden", "bath", "office", made_up(rng, pools)))
    return {"room": room, "color": rng.choice(COLORS)}


def _kind(name: str, draw: Callable[[random.Random, Pools], Values]) -> ToolKind:
    said = templates("tools")[name]
    parameters = {slot: Parameter(**one) for slot, one in said["parameters"].items()}
    return ToolKind(draw=draw, **said | {"parameters": parameters})


KINDS = tuple(
    _kind(name, draw)
    for name, draw in (
        ("weather", _weather),
        ("sum", _sum),
        ("timer", _timer),
        ("message", _message),
        ("order", _order),
        ("status", _status),
        ("light", _light),
    )
)
