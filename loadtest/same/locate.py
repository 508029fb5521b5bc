"""Finds the token at which two answers part, by asking once more for log probabilities.

The question was asked without them, because some servers go another way when they are wanted. So
they count only where the text is the one that was compared. If a server has none, /tokenize says
how many tokens both texts begin with. That is the tokenizer's cut of the text, which may not be the
model's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx

from loadtest.same.difference import Place, Token, num_common, place_of, tokens_of
from loadtest.same.plan import ROUTES, Plan, Question, Route, SideName, Way, merged
from loadtest.same.sides import Reading, Server, text_of

_NUM_LIKELIEST = 5  # every server allows as many


async def locate(
    plan: Plan,
    servers: Mapping[SideName, Server],
    question: Question,
    first: tuple[Way, Reading],
    second: tuple[Way, Reading],
    at: int,
) -> Place | None:
    """Return the token at which two readings of a question part; None: nobody can tell.

    Args:
        plan: that was asked.
        servers: that answered.
        question: see above.
        first, second: the two ways and what came.
        at: the character at which they part.
    """
    tokens = await asyncio.gather(
        *(_tokens(plan, servers[way.side], question, way, read) for way, read in (first, second))
    )
    if place := place_of(at, *tokens):
        return place
    texts = first[1].text, second[1].text
    for side in dict.fromkeys((first[0].side, second[0].side)):
        cuts = [await _cut(servers[side], text) for text in texts]
        if cuts[0] is not None and cuts[1] is not None:
            return Place(index=num_common(cuts[0], cuts[1]), source="/tokenize")
    return None


async def _tokens(
    plan: Plan, server: Server, question: Question, way: Way, reading: Reading
) -> list[Token]:
    """Return the tokens of a reading; none where the text is another one this time."""
    body = plan.body(question, way.delivery, server.model) | _wish_for_logprobs(question.route)
    answer = await server.ask(ROUTES[question.route], merged(body, server.address.fields))
    if answer.error or text_of(answer) != reading.text:
        return []
    return tokens_of(answer.logprobs)


def _wish_for_logprobs(route: Route) -> dict[str, Any]:
    if route == "chat":
        return {"logprobs": True, "top_logprobs": _NUM_LIKELIEST}
    return {"logprobs": _NUM_LIKELIEST}


async def _cut(server: Server, text: str) -> list[Any] | None:
    """Return the tokens of a text by the server's /tokenize; None where it has no such route.

    vLLM reads `prompt`, llama.cpp `content`.
    """
    body = {"model": server.model, "prompt": text, "content": text, "add_special_tokens": False}
    try:
        response = await server.client.post("/tokenize", json=body)
        if response.status_code != httpx.codes.OK:
            return None
        tokens = response.json()["tokens"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None
    return tokens if isinstance(tokens, list) else None
