"""One of the two servers: how it is reached, and an answer that is asked for until it is there."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from loadtest.client.answers import Answer, check_answer
from loadtest.client.http import ask, open_client

_FIRST_WAIT_S = 0.5  # doubled from one try to the next
_MAX_WAIT_S = 30.0
# Another try may bring what these did not: too many requests, and a server that is not there.
_PASSING = frozenset({0, 200, 408, 429, 500, 502, 503, 504})


class CannotAsk(Exception):
    """A server cannot be asked at all: the message says which and why."""


@dataclass(frozen=True, kw_only=True)
class Address:
    """The address of a server, and the form of requests that it wants.

    Attributes:
        url: with or without /v1 at its end.
        model: that its requests name; empty: the first that it lists.
        key_variable: of the environment, holds its API key; empty: it wants none.
        fields: that all its requests have besides, in place of the plan's; None leaves one out.
    """

    url: str
    model: str = ""
    key_variable: str = ""
    fields: Mapping[str, Any]

    @property
    def base_url(self) -> str:
        """The URL without /v1."""
        return self.url.rstrip("/").removesuffix("/v1")

    def headers(self) -> dict[str, str]:
        """Return the header with the API key.

        Raises:
            CannotAsk: the variable is not set.
        """
        if not self.key_variable:
            return {}
        key = os.environ.get(self.key_variable, "")
        if not key:
            raise CannotAsk(f"{self.url}: the variable {self.key_variable} holds no API key")
        return {"authorization": f"Bearer {key}"}


@dataclass(frozen=True, kw_only=True)
class Patience:
    """The longest time for an answer, in seconds, and the number of retries."""

    timeout_s: float
    num_retries: int


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The answer to a question in one way.

    Attributes:
        text, finish_reason: of the answer.
        num_tokens, num_draft_tokens: that the server counted; 0 where it counts none.
        num_tries: requests that it took.
        problem: why there is no whole answer, or empty.
    """

    text: str
    finish_reason: str
    num_tokens: int
    num_tries: int
    num_draft_tokens: int = 0
    problem: str = ""

    @property
    def essence(self) -> tuple[str, str]:
        """The parts that must be the same."""
        return self.text, self.finish_reason


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server that answers, with the model that it is asked for."""

    address: Address
    model: str
    client: httpx.AsyncClient
    patience: Patience

    async def read(self, path: str, body: Mapping[str, Any]) -> Reading:
        """Ask until there is a whole answer, or no hope of one. Never raises for what comes.

        A refusal that another try would meet again is not tried again.
        """
        wait_s = _FIRST_WAIT_S
        for num_tries in range(1, self.patience.num_retries + 2):
            answer = await self.ask(path, body)
            problem = check_answer(answer)
            is_last = num_tries > self.patience.num_retries
            if not problem or is_last or answer.status not in _PASSING:
                break
            await asyncio.sleep(min(answer.retry_after_s or wait_s, _MAX_WAIT_S))
            wait_s *= 2
        return Reading(
            text=text_of(answer),
            finish_reason=answer.finish_reason or "",
            num_tokens=answer.num_completion_tokens,
            num_tries=num_tries,
            num_draft_tokens=answer.num_draft_tokens,
            problem=problem,
        )

    async def ask(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Ask once, with a limit on the whole answer."""
        try:
            async with asyncio.timeout(self.patience.timeout_s):
                return await ask(self.client, body, path=path)
        except TimeoutError:
            late = f"no whole answer within {self.patience.timeout_s:g} s"
            return Answer(status=0, error=late)


def text_of(answer: Answer) -> str:
    """Return all that the model wrote: what it thought, where it says so, and its answer."""
    return answer.reasoning + answer.text


@asynccontextmanager
async def open_server(address: Address, patience: Patience) -> AsyncIterator[Server]:
    """Yield a server that lists the model it is to be asked for.

    Raises:
        CannotAsk: it does not answer, refuses the key, or has no such model.
    """
    async with open_client(
        address.base_url, headers=address.headers(), timeout_s=patience.timeout_s
    ) as client:
        models = await _models(client, address)
        if address.model and models and address.model not in models:
            raise CannotAsk(f"{address.url} serves {', '.join(models)}, not {address.model}")
        if not address.model and not models:
            raise CannotAsk(f"{address.url} lists no model: name the one to ask for")
        model = address.model or models[0]
        yield Server(address=address, model=model, client=client, patience=patience)


async def _models(client: httpx.AsyncClient, address: Address) -> list[str]:
    """Return the names that a server lists; none where it has no such list."""
    try:
        response = await client.get("/v1/models")
        if response.status_code in (401, 403):
            raise CannotAsk(f"{address.url} refuses the API key: HTTP {response.status_code}")
        if response.status_code != httpx.codes.OK:
            return []
        return [str(one["id"]) for one in response.json()["data"]]
    except httpx.HTTPError as error:
        raise CannotAsk(f"{address.url}: {type(error).__name__}: {error}") from error
    except (ValueError, KeyError, TypeError):
        return []
