"""Sends requests with httpx and reads their answers into `client.answers.Answer`.

Has a client for many requests at a time (`open_client`, `ask`). A blocking call (`complete`) serves
benches that ask one request after another.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from deployments.streams import is_passing, pause_s, resumed
from loadtest.client.answers import Answer, check_answer

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
READ_TIMEOUT_S = 300.0  # between two pieces of an answer; longer than any recovery may take
_CONNECT_TIMEOUT_S = 30.0
_NO_ROUTE = 404  # in plain text: of a proxy that has just started
_OF_PROXIES = (500, 502)  # what a proxy says where the router that it asked has died
# Every request has a connection; a shared pool must not make them queue for one.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64)


def key_headers(api_key: str = "") -> dict[str, str]:
    """Return the header that carries `api_key`, or, where that is empty, OUTRIDER_API_KEY's."""
    key = api_key or os.environ.get("OUTRIDER_API_KEY", "")
    return {"authorization": f"Bearer {key}"} if key else {}


def open_client(
    base_url: str,
    *,
    api_key: str = "",
    headers: Mapping[str, str] | None = None,
    timeout_s: float = READ_TIMEOUT_S,
) -> httpx.AsyncClient:
    """Return a client for all requests of a load, with `timeout_s` between pieces of an answer.

    Args:
        base_url: of the service, without /v1.
        api_key: see `key_headers`.
        headers: in place of the key's, for a service that our key is no business of.
        timeout_s: see above.
    """
    return httpx.AsyncClient(
        base_url=base_url,
        headers=key_headers(api_key) if headers is None else headers,
        timeout=httpx.Timeout(_CONNECT_TIMEOUT_S, read=timeout_s),
        limits=_LIMITS,
    )


async def ask(
    client: httpx.AsyncClient,
    body: Mapping[str, Any],
    *,
    path: str = CHAT,
    on_event: Callable[[], None] = lambda: None,
    leave_after: int | None = None,
    goes_on_s: float = 0.0,
) -> Answer:
    """Send one request and read its answer to the end; whatever goes wrong is in the answer.

    Args:
        client: see `open_client`.
        body: the JSON to post; what comes may be a stream or whole.
        path: of the route.
        on_event: called at each event of the stream but its end.
        leave_after: close the connection after this many lines, as a reader who leaves does.
        goes_on_s: how long to ask for the rest of a stream that broke; 0: not at all. A request
            that was lost before its first event is sent again.
    """
    answer = Answer(began_s=time.perf_counter(), status=0)
    seen, num_failed, end_s = "", 0, answer.began_s + goes_on_s
    if goes_on_s > 0 and body.get("stream"):
        body = resumed(body, {})
    while await _breaks(client, body, path, answer, on_event, leave_after):
        now_s = time.perf_counter()
        if answer.last_id != seen:
            seen, num_failed, end_s = answer.last_id, 0, now_s + goes_on_s
        has_lost_text = bool(answer.text) and not answer.last_id  # of a service without ids
        if now_s >= end_s or has_lost_text:
            break
        answer.go_on()
        num_failed += 1
        await asyncio.sleep(pause_s(num_failed))
    answer.ended_s = time.perf_counter()
    return answer


async def _breaks(
    client: httpx.AsyncClient,
    body: Mapping[str, Any],
    path: str,
    answer: Answer,
    on_event: Callable[[], None],
    leave_after: int | None,
) -> bool:
    """Read an answer over one connection; return whether its rest may be had over another."""
    headers = {"last-event-id": answer.last_id} if answer.last_id else {}
    try:
        sent = resumed(body, answer.known_ids) if answer.last_id else body
        async with client.stream("POST", path, json=sent, headers=headers) as response:
            answer.status = response.status_code
            kind = response.headers.get("content-type", "")
            if response.status_code == httpx.codes.OK and kind.startswith("application/json"):
                content = (await response.aread()).decode()
                answer.take_whole(content, time.perf_counter())
            elif response.status_code == httpx.codes.OK:
                await _read(response, answer, on_event, leave_after)
            else:
                content = (await response.aread()).decode(errors="replace")
                after = response.headers.get("retry-after", "")
                answer.refuse(response.status_code, content, after)
                if answer.last_id or (answer.num_breaks and response.status_code == _NO_ROUTE):
                    return is_passing(response.status_code, content)
                return response.status_code in _OF_PROXIES
    except (httpx.HTTPError, OSError, ValueError) as error:
        after_text = f" after {len(answer.text)} characters"
        answer.error = answer.error or f"{type(error).__name__}: {error}{after_text}"
        return True
    return not answer.is_done and not answer.error and leave_after is None


def ask_once(base_url: str, body: Mapping[str, Any]) -> Answer:
    """Do as `ask` from plain code, on a connection of its own."""

    async def once() -> Answer:
        async with open_client(base_url) as client:
            return await ask(client, body)

    return asyncio.run(once())


def complete(client: httpx.Client, path: str, body: Mapping[str, Any]) -> Answer:
    """Send one request to `path` and wait for its whole answer, for benches that time it.

    Raises:
        RuntimeError: it was refused or broke off.
    """
    answer = Answer(began_s=time.perf_counter())
    with client.stream("POST", path, json=body) as response:
        if response.status_code != httpx.codes.OK:
            answer.refuse(response.status_code, response.read().decode(errors="replace"))
        else:
            for line in response.iter_lines():
                answer.take(line, time.perf_counter())
    answer.ended_s = time.perf_counter()
    if problem := check_answer(answer):
        raise RuntimeError(problem)
    return answer


async def _read(
    response: httpx.Response,
    answer: Answer,
    on_event: Callable[[], None],
    leave_after: int | None,
) -> None:
    number = 0
    async for line in response.aiter_lines():
        if answer.take(line, time.perf_counter()):
            on_event()
        if leave_after is not None and number >= leave_after:
            return  # the connection is closed, which is what the service notices
        number += 1
