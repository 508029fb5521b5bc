"""Requests whose answers are known before anything fails: 8 free ones and 8 under a schema.

Every case has a seed of its own, so its text is one text. Schemas bound every length, so that each
answer ends and must parse. Half of the cases fix k, so that the draft model is always in use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any]

_STORIES = (
    ("a dog", "a ball"),
    ("a girl", "a boat"),
    ("a fox", "a river"),
    ("an old man", "a garden"),
    ("two friends", "a kite"),
    ("a cat", "a box"),
    ("a boy", "a drum"),
    ("a bird", "a tree"),
)
_ORDERS = (
    "Imogen from Delhi wants 6 blue lamps at $62.29 each.",
    "Please send 12 red chairs to Tom in Oslo, $18.50 apiece.",
    "Anna in Lima orders 3 clocks for $40.00 each.",
    "Rosa, Madrid: 25 green pens, price $1.75 each.",
)
_FREE_TOKENS = 300
_SCHEMA_TOKENS = 700  # a bound that no answer reaches: its schema ends it before


@dataclass(frozen=True)
class Case:
    """One request of a stream that is repeated. `schema` None: free text."""

    name: str
    body: dict[str, Any]
    schema: Schema | None = None

    @property
    def is_constrained(self) -> bool:
        """True if the answer must obey a schema."""
        return self.schema is not None


def free_cases(num_cases: int, *, num_tokens: int = _FREE_TOKENS) -> list[Case]:
    """Stories of exactly `num_tokens` tokens, sampled."""
    cases = []
    for index in range(num_cases):
        who, what = _STORIES[index % len(_STORIES)]
        body = _body(f"Write a short story about {who} and {what}.", index)
        body |= {"max_tokens": num_tokens, "ignore_eos": True, "seed": 100 + index}
        cases.append(Case(f"free-{index}", body))
    return cases


def constrained_cases(num_cases: int, *, num_orders: int = 5) -> list[Case]:
    """Lists of `num_orders` records under a schema; 5 are about as long as 300 tokens."""
    cases = []
    for index in range(num_cases):
        order = _ORDERS[index % len(_ORDERS)]
        body = _body(f"Turn this order into JSON.\n{order}", index)
        schema = order_list_schema(f"orders-{index % 4}", num_orders=num_orders)
        body |= {
            "max_tokens": _SCHEMA_TOKENS,
            "seed": 200 + index,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "orders", "schema": schema, "strict": True},
            },
        }
        cases.append(Case(f"constrained-{index}", body, schema))
    return cases


def probe_case(number: int) -> Case:
    """Return a short request that needs every part: a schema never seen before, and a draft."""
    schema = order_list_schema(f"probe-{number}", num_orders=1)
    body = _body(f"Turn this order into JSON.\n{_ORDERS[0]}", 0)
    body |= {
        "max_tokens": _SCHEMA_TOKENS,
        "seed": 1,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "probe", "schema": schema, "strict": True},
        },
    }
    return Case(f"probe-{number}", body, schema)


def order_list_schema(key: str, num_orders: int) -> Schema:
    """Return an object whose one property `key` lists exactly `num_orders` orders."""
    order = closed_object(
        customer={"type": "string", "maxLength": 12},
        item={"type": "string", "maxLength": 16},
        quantity={"type": "integer", "minimum": 0, "maximum": 999},
        price={"type": "integer", "minimum": 0, "maximum": 999},
        city={"enum": ["Delhi", "Oslo", "Lima", "Madrid", "elsewhere"]},
    )
    listed = {"type": "array", "items": order, "minItems": num_orders, "maxItems": num_orders}
    return closed_object(**{key: listed})


def closed_object(**properties: Any) -> Schema:
    """Return the schema of an object that has these properties, all of them and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _body(text: str, index: int) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": "outrider-demo",
        "messages": [{"role": "user", "content": text}],
        "temperature": (0.0, 0.7, 1.0)[index % 3],
        "stream": True,
    }
    if index % 2 == 0:
        body["speculation"] = {"k": 3}
    return body
