"""Part `proxies`: whatever sends a request, and however, it is answered as the plain one is.

A real server on a socket, whose heart beats fast enough for comments and white space to come up.
Each case asks for one thing plainly and then as proxies, gateways and odd clients would.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from loadtest.fuzz.cases import Outcome, RunCase
from loadtest.fuzz.http.answers import events_of, is_openai_error
from loadtest.fuzz.http.bodies import PATHS, valid_body
from loadtest.fuzz.http.habits import ORIGIN, Habit, plain_request, random_habit
from loadtest.fuzz.http.raw import BrokenAnswer, RawAnswer, exchanged
from loadtest.fuzz.http.world import HttpWorld, http_world, listening

_NUM_HABITS = 10
_AT_ONCE = 4
_LIMIT_S = 60.0  # limit of one request; the longest takes a second
# So soon that fast machines make streams with such silences, too.
_BEATS = {"heartbeat_s": 0.004, "whole_heartbeat_s": 0.004, "allowed_origins": [ORIGIN]}
_BUSY = frozenset({429, 503})  # said on purpose
# These make a text depend on the sessions in its passes, or do not change texts.
_LEFT_OUT = ("speculation", "logprobs", "top_logprobs", "echo", "prompt_logprobs")


@asynccontextmanager
async def open_proxies() -> AsyncIterator[RunCase]:
    """Open the part, ready to run cases."""
    async with http_world(http=_BEATS) as world, listening(world) as url:
        place = urlsplit(url)

        async def run(seed: int) -> Outcome:
            return await _case(seed, world, str(place.hostname), int(place.port or 0))

        yield run


async def _case(seed: int, world: HttpWorld, host: str, port: int) -> Outcome:
    rng, outcome = random.Random(seed), Outcome()
    outcome.counts["cases"] += 1
    path = rng.choice(PATHS)
    body = valid_body(rng, path)
    for name in _LEFT_OUT:
        body.pop(name, None)
    body["seed"] = rng.randrange(2**32)
    plain = await exchanged(host, port, plain_request(path, body).exchange)
    if plain.status in _BUSY:
        outcome.counts["busy"] += 1
        return outcome
    if plain.status != 200:
        outcome.complaints.append(f"{path} {body}: plain: {plain.status} {plain.body[:300]!r}")
        return outcome
    wanted = _said(plain, is_stream=bool(body.get("stream")))
    habits = [random_habit(rng, path, body) for _ in range(_NUM_HABITS)]
    for first in range(0, _NUM_HABITS, _AT_ONCE):
        asked = habits[first : first + _AT_ONCE]
        for found in await asyncio.gather(*(_try(host, port, one, wanted) for one in asked)):
            outcome.add(found)
    outcome.complaints += await world.left()
    return outcome


async def _try(host: str, port: int, habit: Habit, wanted: object) -> Outcome:
    outcome, shown = Outcome(), ", ".join(habit.names)
    outcome.counts["requests"] += 1
    try:
        async with asyncio.timeout(_LIMIT_S):
            answer = await exchanged(host, port, habit.exchange)
    except TimeoutError:
        outcome.complaints.append(f"{shown}: no answer within {_LIMIT_S:g} s")
    except OSError as error:
        # A body that is given up half-way may reset the connection of who still sends it.
        if habit.status != 413:
            outcome.complaints.append(f"{shown}: {type(error).__name__}: {error}")
    except (BrokenAnswer, ValueError) as error:
        outcome.complaints.append(f"{shown}: {type(error).__name__}: {error}")
    else:
        outcome.counts[f"status {answer.status}"] += 1
        outcome.counts["kept alive"] += answer.body.startswith((b": ", b"\n"))
        outcome.complaints += [f"{shown}: {one}" for one in _wrong_with(habit, answer, wanted)]
    return outcome


def _wrong_with(habit: Habit, answer: RawAnswer, wanted: object) -> list[str]:
    if answer.status in _BUSY:
        return []
    if answer.status != habit.status:
        return [f"status {answer.status}, not {habit.status}: {answer.body[:300]!r}"]
    found = _wrong_headers(habit, answer)
    if not habit.is_plain:
        return found
    if answer.status >= 400:
        is_error = is_openai_error(answer.body)
        return found + ([] if is_error else [f"no OpenAI error: {answer.body[:300]!r}"])
    try:
        said = _said(answer, is_stream=habit.is_stream)
    except (ValueError, KeyError, TypeError) as error:
        return [*found, f"not what was announced: {error!r}: {answer.body[:300]!r}"]
    return found + ([] if said == wanted else [f"another answer: {said}, plain {wanted}"])


def _wrong_headers(habit: Habit, answer: RawAnswer) -> list[str]:
    headers, found = answer.headers, []
    if "content-encoding" in headers:
        found.append(f"the answer is {headers['content-encoding']}")
    allowed = headers.get("access-control-allow-origin", "")
    if allowed != (habit.origin if habit.origin == ORIGIN else ""):
        found.append(f"{allowed!r} may read the answer, {habit.origin!r} asked")
    if habit.closes and not answer.was_closed and habit.status == 200:
        found.append("the connection is still open, although the client asked for its end")
    if habit.is_plain and "x-request-id" not in headers:
        found.append("no x-request-id")
    if habit.is_stream and habit.is_plain and habit.status == 200:
        kept = headers.get("cache-control", ""), headers.get("x-accel-buffering", "")
        if kept != ("no-cache, no-transform", "no"):
            found.append(f"events may be gathered on their way: {kept}")
    return found


def _said(answer: RawAnswer, *, is_stream: bool) -> object:
    """Return the texts and ends of an answer, comments left out.

    Raises:
        ValueError: it is not JSON, or no whole stream of events.
    """
    if not is_stream:
        content = json.loads(answer.body)
        return [(c.get("text"), c.get("message"), c["finish_reason"]) for c in _known(content)]
    texts: dict[int, list[str]] = {}
    for event in events_of(answer.body):
        for choice in _known(event):
            parts = texts.setdefault(choice["index"], [])
            delta = choice.get("delta") or {}
            parts.append(choice.get("text") or delta.get("content") or "")
            parts += [
                call.get("function", {}).get("arguments") or ""
                for call in delta.get("tool_calls") or ()
            ]
            parts.append(choice["finish_reason"] or "")
    return {index: "".join(parts) for index, parts in texts.items()}


def _known(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the choices of an answer; its calls lose their ids, which are drawn anew each time."""
    choices: list[dict[str, Any]] = content["choices"]
    for choice in choices:
        for call in (choice.get("message") or {}).get("tool_calls") or ():
            call.pop("id", None)
    return choices
