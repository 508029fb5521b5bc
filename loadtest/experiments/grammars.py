"""Experiments on grammars: the cost of a JSON schema, and the gain of forced text."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from loadtest.client.cases import closed_object
from loadtest.frame.claims import Goal
from loadtest.frame.experiment import Experiment, Terms, Workload
from loadtest.frame.runs import Ask
from loadtest.frame.ways import Way
from loadtest.frame.workloads import tokenizer_of
from loadtest.fuzz.engines.grammars import random_schema
from loadtest.matrix.schemas import ORDERS, bounded

_ORDERS = (*ORDERS, "Hugo from Porto wants 3 green boxes at $20.00 each.")
_SHORT_TEXT = {"type": "string", "maxLength": 40}
_WHOLE = {"type": "integer", "minimum": 0, "maximum": 999}
_SCHEMA_BYTES = 5_000


SCHEMAS: dict[str, dict[str, object]] = {
    "order": closed_object(
        customer=_SHORT_TEXT, item=_SHORT_TEXT, quantity=_WHOLE, city=_SHORT_TEXT
    ),
    "long keys": closed_object(
        full_name_of_the_customer=_SHORT_TEXT,
        description_of_the_ordered_item=_SHORT_TEXT,
        quantity_that_was_ordered=_WHOLE,
        city_that_the_order_is_shipped_to=_SHORT_TEXT,
    ),
    "enums": closed_object(
        customer=_SHORT_TEXT,
        shipping_method={"enum": ["standard delivery", "express delivery", "collection in shop"]},
        status={"enum": ["received", "processing", "completed"]},
        currency={"const": "US dollars"},
    ),
    "nested": closed_object(
        order=closed_object(
            customer=closed_object(name=_SHORT_TEXT, address=closed_object(city=_SHORT_TEXT)),
            line=closed_object(item=_SHORT_TEXT, quantity=_WHOLE),
        )
    ),
}
# Longer than any run: an answer under it ends at the limit of tokens, as one without a schema.
_LONG = {
    "type": "array",
    "minItems": 200,
    "maxItems": 200,
    "items": closed_object(customer=_SHORT_TEXT, quantity=_WHOLE),
}


def orders(schema: dict[str, object]) -> Workload:
    """Return orders to be turned into JSON under a schema. Without a schema: as many tokens."""

    def asks(terms: Terms) -> Sequence[Ask]:
        return _asks(terms, [json.dumps(schema)] * terms.count, ends=True)

    return asks


def large_schema(rng: random.Random) -> str:
    """Return a schema of bounded random fields, of at least `_SCHEMA_BYTES` as JSON."""
    fields: dict[str, Any] = {}
    while True:
        fields[f"field_{len(fields)}"] = bounded(random_schema(rng))
        text = json.dumps(closed_object(**fields))
        if len(text) >= _SCHEMA_BYTES:
            return text


def _new_schemas(terms: Terms) -> Sequence[Ask]:
    """Return orders under schemas that no run has asked for."""
    rng = random.Random(terms.turn)
    return _asks(terms, [large_schema(rng) for _ in range(terms.count)])


def _known_schema(terms: Terms) -> Sequence[Ask]:
    return _asks(terms, [large_schema(random.Random(-1))] * terms.count)


def _long_schema(terms: Terms) -> Sequence[Ask]:
    return _asks(terms, [json.dumps(_LONG)] * terms.count)


def _asks(terms: Terms, schemas: Sequence[str], *, ends: bool = False) -> list[Ask]:
    tokenizer = tokenizer_of(terms.models.target)
    found = []
    for index, schema in enumerate(schemas):
        text = f"Turn this order into JSON.\n{_ORDERS[index % len(_ORDERS)]}"
        prompt = tokenizer.encode_chat([{"role": "user", "content": text}])
        found.append(
            Ask(
                prompt_ids=tuple(prompt),
                max_tokens=terms.tokens,
                eos_ids=tuple(tokenizer.eos_ids),
                is_exact=not ends,
                schema=schema,
            )
        )
    return found


_NO_MODEL: dict[str, Any] = {"drafts": ()}
_OFF: dict[str, Any] = {"speculation": {"forced_text": False}}

FORCED = Experiment(
    question="what does forced text bring to answers under JSON schemas",
    workloads={name: orders(schema) for name, schema in SCHEMAS.items()},
    ways={
        "no grammar": Way(k=0, is_constrained=False, texts=""),
        "plain": Way(k=0, **_OFF),
        "plain, forced": Way(**_NO_MODEL),
        "k=3": Way(k=3, **_OFF),
        "k=3, forced": Way(k=3),
        "adaptive": Way(**_OFF),
        "adaptive, forced": Way(),
    },
    measures=("tokens_per_s", "decode_tokens_per_s", "forced_share", "acceptance", "mean_k"),
    goals=(
        Goal(
            way="plain, forced",
            to="no grammar",
            at_least=1.0,
            only={"workload": "long keys"},
        ),
    ),
    tokens=96,
)

FIRST_TOKEN = Experiment(
    question="what does a JSON schema of 5 KB cost until the first token",
    workloads={"new": _new_schemas, "known": _known_schema},
    ways={
        "free": Way(k=0, is_constrained=False, texts=""),
        "constrained": Way(k=0, texts="", **_OFF),
    },
    measures=("first_ms",),
    goals=tuple(
        Goal(
            way="constrained",
            to="free",
            measure="first_ms",
            by="difference",
            at_most=most_ms,
            only={"workload": workload},
        )
        for workload, most_ms in (("new", 20.0), ("known", 2.0))
    ),
    tokens=2,
    count=1,
    repeats=15,
)

CONSTRAINED = Experiment(
    question="what does a JSON schema cost each token after the first",
    workloads={"long": _long_schema},
    ways={
        "free": Way(k=0, is_constrained=False, texts=""),
        "constrained": Way(k=0, texts="json", **_OFF),
        "constrained, forced": Way(texts="json", **_NO_MODEL),
    },
    batches=(1, 8),
    goals=tuple(
        Goal(way=way, to="free", at_least=1 / 1.05)
        for way in ("constrained", "constrained, forced")
    ),
    tokens=96,
    repeats=9,
    count=2,
)
