"""Streams that outlive their router, for Python programs; needs nothing but the standard library.

    from deployments.streams import events

    for event in events("http://127.0.0.1:8000/v1/chat/completions", body):
        print(event["choices"][0]["delta"].get("content") or "", end="")

A stream that breaks goes on behind its last event, at whatever router answers: the same text, no
token twice. The tokens that came before go along, so that few are made again. See
`deployments/api/writing/resuming.py`.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

Event = dict[str, Any]
KnownIds = dict[int, list[int]]  # of each choice's tokens so far

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 0.8  # another router is mostly there; doubles
_NO_ROUTE, _TOO_MANY, _SERVER_FAULT = 404, 429, 500
_BROKEN = (OSError, http.client.HTTPException, EOFError)  # URLError is an OSError


class Refused(RuntimeError):
    """The service refuses a request, or has ended its stream with an error event.

    `status` is that of HTTP; 0 for an event. `is_passing`: it helps to ask later.
    """

    def __init__(self, message: str, status: int = 0, *, is_passing: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.is_passing = is_passing


def events(
    url: str,
    body: Mapping[str, Any],
    *,
    api_key: str = "",
    goes_on_s: float = 30.0,
    silence_s: float = 6.0,
) -> Iterator[Event]:
    """Yield the events of a streamed answer to its end.

    Args:
        url: of /v1/chat/completions or /v1/completions.
        body: of the request; it is streamed whatever `stream` says.
        api_key: if the service asks for one.
        goes_on_s: without an event for so long, the next error is raised; above a router's start.
        silence_s: a connection that brings nothing for so long is broken: a router that lives says
            so every `router.http.heartbeat_s`. One whose machine is lost says nothing any more.

    Raises:
        Refused: the service refuses the request, or the stream ended with an error event.
        OSError, http.client.HTTPException, EOFError: the service is not reached, or no more.
    """
    last_id, num_failed, news_s = "", 0, time.monotonic()
    known: KnownIds = {}
    while True:
        pending: list[Event] = []
        try:
            connection = _connection(url, resumed(body, known), last_id, api_key, silence_s)
            for event, event_id in connection:
                pending.append(event)
                if event_id:  # it is of all events since the last one
                    last_id, num_failed, news_s = event_id, 0, time.monotonic()
                    for one in pending:
                        add_ids(known, one)
                    yield from pending
                    pending = []
            return
        except (*_BROKEN, Refused) as error:
            num_failed += 1
            is_late = time.monotonic() - news_s >= goes_on_s
            if not last_id or is_late or (isinstance(error, Refused) and not error.is_passing):
                raise
            time.sleep(pause_s(num_failed))


def _connection(
    url: str, body: Mapping[str, Any], last_id: str, api_key: str, silence_s: float
) -> Iterator[tuple[Event, str]]:
    """Yield the events of one connection with their ids, "" for none."""
    headers = {"content-type": "application/json"}
    headers |= {"last-event-id": last_id} if last_id else {}
    headers |= {"authorization": f"Bearer {api_key}"} if api_key else {}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        response = urllib.request.urlopen(request, timeout=silence_s)
    except urllib.error.HTTPError as error:
        with error:
            said = error.read().decode(errors="replace")
        passing = is_passing(error.code, said)
        raise Refused(_reason(said), error.code, is_passing=passing) from None
    with response:
        fields: dict[str, str] = {}
        for line in response:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                fields[name] = value
                continue
            data = fields.get("data")
            if data == "[DONE]":
                return
            if data is not None:
                event = json.loads(data)
                if event.get("error"):
                    raise Refused(event["error"]["message"])
                yield event, fields.get("id", "")
            fields = {}
    raise EOFError("the stream ended before its end")


def pause_s(num_failed: int) -> float:
    """Return the pause after so many connections in a row that brought no event, in seconds."""
    return float(min(_FIRST_PAUSE_S * 2 ** (num_failed - 1), _LONGEST_PAUSE_S))


def resumed(body: Mapping[str, Any], known: KnownIds) -> dict[str, Any]:
    """Return the body to send; the answer has its tokens' ids, and those that are known go along.

    Without ids (`return_token_ids` is false in `body`) the service makes the text again.
    """
    ids = [known.get(index, []) for index in range(max(known, default=-1) + 1)]
    resumed_ids = {"resume_token_ids": ids} if any(ids) else {}
    return {"return_token_ids": True, **body, **resumed_ids, "stream": True}


def add_ids(known: KnownIds, event: Event) -> None:
    """Add the ids of the tokens that an event brings."""
    for choice in event.get("choices") or ():
        known.setdefault(choice.get("index", 0), []).extend(choice.get("token_ids") or ())


def is_passing(status: int, body: str) -> bool:
    """Return whether a stream's rest may be had later or elsewhere, though it is refused now.

    A proxy that has just started answers 404 in plain text, until Serve has told it the routes.
    """
    is_of_new_proxy = status == _NO_ROUTE and not body.lstrip().startswith("{")
    return is_of_new_proxy or status == _TOO_MANY or status >= _SERVER_FAULT


def _reason(body: str) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):  # a proxy's own
        return body
