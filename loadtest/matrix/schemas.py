"""Varied bounded schemas with several seeds and ways to draft: valid, finished, one text each."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from typing import Any

from loadtest.fuzz.engines.grammars import disobedience, random_schema
from loadtest.matrix.world import Client, Outcome
from models.protocol.messages import Grammar

# The first is what the others must equal.
WAYS: dict[str, dict[str, Any]] = {
    "k = 0": {"k": 0},
    "k = 4": {"k": 4},
    "adaptive": {},
}
_MAX_TOKENS = 512
_LARGEST_WHOLE = 9_999
ORDERS = (
    "Imogen from Delhi wants 6 blue lamps at $62.29 each.",
    "Noah from Lima wants 2 red chairs at $15.50 each.",
    "Sara from Oslo wants 14 small cups at $3.75 each.",
)


@dataclass(kw_only=True)
class Counts:
    """The outcomes of the answers, counted."""

    num_schemas: int = 0
    num_answers: int = 0
    num_finished: int = 0
    num_valid: int = 0
    num_same: int = 0  # answers with the text that drafts were to be made for
    num_compared: int = 0
    num_tokens: int = 0
    num_drafted: int = 0
    complaints: list[str] = field(default_factory=list)

    @property
    def finished_share(self) -> float:
        """The share of all answers that finished."""
        return self.num_finished / max(1, self.num_answers)


def bounded(schema: Any) -> Any:
    """Bound the schema so that every text ends: no further keys, no endless numbers."""
    if isinstance(schema, list):
        return [bounded(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: bounded(value) for key, value in schema.items()}
    if schema.get("type") == "object":
        schema["additionalProperties"] = False
    if schema.get("type") == "integer":
        schema = {"minimum": -_LARGEST_WHOLE, "maximum": _LARGEST_WHOLE, **schema}
    if schema.get("type") == "number":
        schema["multipleOf"] = 0.25
    return schema


async def run_schemas(
    client: Client, *, num_schemas: int, num_seeds: int, seed: int, limit_s: float
) -> Counts:
    """Ask for every schema with every seed in every way; schemas end early at the time limit."""
    counts, rng, began_s = Counts(), random.Random(seed), time.monotonic()
    for index in range(num_schemas):
        if time.monotonic() - began_s > limit_s:
            break
        schema = bounded(random_schema(rng))
        order = ORDERS[index % len(ORDERS)]
        asked = [
            (one, way)
            for one in range(seed + index * num_seeds, seed + (index + 1) * num_seeds)
            for way in WAYS
        ]
        outcomes = await asyncio.gather(
            *(client.ask(_body(schema, order, one, WAYS[way])) for one, way in asked)
        )
        counts.num_schemas += 1
        _judge(counts, schema, dict(zip(asked, outcomes, strict=True)))
    return counts


def _body(schema: Any, order: str, seed: int, speculation: dict[str, Any]) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": f"Turn this order into JSON.\n{order}"}],
        "temperature": 1.0,
        "seed": seed,
        "max_tokens": _MAX_TOKENS,
        "structured_outputs": {"json": schema},
        "speculation": speculation,
    }


def _judge(counts: Counts, schema: Any, outcomes: dict[tuple[int, str], Outcome]) -> None:
    plain = next(iter(WAYS))
    for (seed, way), outcome in outcomes.items():
        where = f"{json.dumps(schema)}, seed {seed}, {way}"
        counts.num_answers += 1
        counts.num_tokens += outcome.num_tokens
        counts.num_drafted += outcome.num_drafted
        if outcome.refusal:
            counts.complaints.append(f"{where}: refused: {outcome.refusal}")
            continue
        if outcome.finish_reasons == ("stop",):
            counts.num_finished += 1
            text = outcome.texts[0]
            broken = disobedience(Grammar(kind="json_schema", text=json.dumps(schema)), text)
            counts.num_valid += not broken
            counts.complaints += [f"{where}: {broken}"] if broken else []
        if way != plain:
            is_same = outcome.answer == outcomes[seed, plain].answer
            counts.num_compared += 1
            counts.num_same += is_same
            if not is_same:
                counts.complaints.append(f"{where}: another text than {plain}: {outcome.texts}")
