"""Every sampling parameter, free and constrained, whole and streamed: drafts move no text.

Each body is asked without drafts and in several ways with them. All that the client sees of the
answers must be equal: texts, ends, token counts, logprobs; or the refusal.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from loadtest.matrix.world import Client

PLAIN: dict[str, Any] = {"enabled": False}
WAYS: dict[str, dict[str, Any]] = {
    "draft model, k = 4": {"k": 4, "drafter": "draft_model"},
    "adaptive": {},
    "suffix decoding, k = 3": {"k": 3, "drafter": "suffix"},
    "prompt lookup, k = 5": {"k": 5, "drafter": "ngram"},
}
_SCHEMA = {
    "type": "object",
    "properties": {
        "customer": {"type": "string", "maxLength": 20},
        "item": {"type": "string", "maxLength": 20},
        "quantity": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["customer", "item", "quantity"],
    "additionalProperties": False,
}
_CHOICES = ["Imogen", "Imogen from Delhi", "blue lamps", "6 blue lamps", "lamps"]
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "free": {},
    "JSON schema": {"structured_outputs": {"json": _SCHEMA}},
    "regex": {"structured_outputs": {"regex": r"[A-Z][a-z]{2,8} wants \d{1,2} [a-z ]{3,16}\."}},
    "choice": {"structured_outputs": {"choice": _CHOICES, "choice_probabilities": True}},
    "masked choice": {"structured_outputs": {"choice": _CHOICES, "choice_sampling": "masked"}},
}
PARAMETERS: dict[str, dict[str, Any]] = {
    "none": {},
    "temperature 0": {"temperature": 0},
    "temperature 1.8": {"temperature": 1.8},
    "top_p": {"top_p": 0.7},
    "top_k": {"top_k": 4},
    "min_p": {"min_p": 0.1},
    "presence_penalty": {"presence_penalty": 1.5},
    "frequency_penalty": {"frequency_penalty": 1.5},
    "repetition_penalty": {"repetition_penalty": 1.4},
    "logit_bias": {"logit_bias": {"225": -3.0, "265": 4.0, "0": -2.0}},
    "bad_words": {"bad_words": ["blue", "a"]},
    "min_tokens": {"min_tokens": 12},
    "max_tokens": {"max_tokens": 7},
    "ignore_eos": {"ignore_eos": True, "max_tokens": 40},
    "stop": {"stop": ["la", "and"]},
    "include_stop_str_in_output": {"stop": ["la", "and"], "include_stop_str_in_output": True},
    "stop_token_ids": {"stop_token_ids": [225, 586]},
    "logprobs": {"logprobs": True, "top_logprobs": 3},
    "n": {"n": 3},
    "all at once": {
        "temperature": 1.3,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.02,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.1,
        "logit_bias": {"225": -1.0},
        "stop": ["zz"],
        "logprobs": True,
        "n": 2,
    },
}
_MESSAGES = [
    {
        "role": "user",
        "content": "Turn this order into JSON.\nImogen from Delhi wants 6 blue lamps at $62.29.",
    }
]


@dataclass(frozen=True, slots=True)
class Cell:
    """One parameter under one constraint, whole or streamed. `verdict`: same, refused, or differs.

    `num_drafted`: tokens in all ways together.
    """

    parameter: str
    constraint: str
    is_stream: bool
    verdict: str
    num_drafted: int
    detail: str = ""


async def run_parameter(client: Client, parameter: str, seed: int) -> list[Cell]:
    """Run every cell of a row."""
    return [
        await _cell(client, parameter, constraint, seed, is_stream=is_stream)
        for constraint in CONSTRAINTS
        for is_stream in (False, True)
    ]


async def _cell(
    client: Client, parameter: str, constraint: str, seed: int, *, is_stream: bool
) -> Cell:
    body = {
        "messages": _MESSAGES,
        "seed": seed,
        "max_tokens": 64,
        **CONSTRAINTS[constraint],
        **PARAMETERS[parameter],
    }
    if is_stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    plain, *drafted = await asyncio.gather(
        *(client.ask(body | {"speculation": way}) for way in (PLAIN, *WAYS.values()))
    )
    details = [
        f"{way}: {outcome.answer}, without drafts {plain.answer}"
        for way, outcome in zip(WAYS, drafted, strict=True)
        if outcome.answer != plain.answer
    ]
    agreed = "refused" if plain.refusal else "same"
    return Cell(
        parameter=parameter,
        constraint=constraint,
        is_stream=is_stream,
        verdict="differs" if details else agreed,
        num_drafted=sum(outcome.num_drafted for outcome in drafted),
        detail="; ".join(details) or plain.refusal,
    )
