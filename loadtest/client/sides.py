"""A server that others may run: how it is reached; an answer that is asked for until it comes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from loadtest.client.answers import Answer, check_answer
from loadtest.client.http import ask, open_client

_FIRST_WAIT_S = 0.5  # doubled from one try to the next
_MAX_WAIT_S = 30.0
# Another try may bring what these did not: too many requests, and a server that is not there.
_PASSING = frozenset({0, 200, 408, 429, 500, 502, 503, 504})


class CannotAsk(ValueError):
    """A server cannot be asked at all: the message says which and why."""


@dataclass(kw_only=True)
class Side:
    """The address of a server, and the form of requests that it wants.

    Attributes:
        name: A or B.
        url: with or without /v1 at its end.
        model: that its requests name; empty: the first that it lists, once it was opened.
        key_variable: of the environment, holds its API key; empty: it wants none.
        fields: that all its requests have besides, in place of the plan's; None leaves one out.
        timeout_s, num_retries: how long an answer may take, and how often it is asked for again.
        has_answered: it takes such requests.
    """

    name: str
    url: str
    model: str = ""
    key_variable: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 300.0
    num_retries: int = 3
    has_answered: bool = False

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[httpx.AsyncClient]:
        """Yield a client for the server, which lists the model that it is to be asked for.

        Raises:
            CannotAsk: it does not answer, refuses the key, or has no such model.
        """
        base_url = self.url.rstrip("/").removesuffix("/v1")
        async with open_client(
            base_url, headers=self._headers(), timeout_s=self.timeout_s
        ) as client:
            models = await self._models(client)
            if self.model and models and self.model not in models:
                raise CannotAsk(f"{self.url} serves {', '.join(models)}, not {self.model}")
            if not self.model and not models:
                raise CannotAsk(f"{self.url} lists no model: name the one to ask for")
            self.model = self.model or models[0]
            yield client

    async def read(
        self, client: httpx.AsyncClient, path: str, body: Mapping[str, Any]
    ) -> tuple[Answer, int]:
        """Ask until there is a whole answer, or no hope of one; return it and the number of tries.

        A refusal that another try would meet again is not tried again.
        """
        wait_s = _FIRST_WAIT_S
        for num_tries in range(1, self.num_retries + 2):
            answer = await self.ask(client, path, body)
            is_last = num_tries > self.num_retries
            if not check_answer(answer) or is_last or answer.status not in _PASSING:
                break
            await asyncio.sleep(min(answer.retry_after_s or wait_s, _MAX_WAIT_S))
            wait_s *= 2
        return answer, num_tries

    async def ask(self, client: httpx.AsyncClient, path: str, body: Mapping[str, Any]) -> Answer:
        """Ask once, with a limit on the whole answer."""
        own = {**body, "model": self.model, **self.fields}
        wanted = {name: value for name, value in own.items() if value is not None}
        try:
            async with asyncio.timeout(self.timeout_s):
                return await ask(client, wanted, path=path)
        except TimeoutError:
            return Answer(status=0, error=f"no whole answer within {self.timeout_s:g} s")

    async def cut(self, client: httpx.AsyncClient, text: str) -> list[Any] | None:
        """Return the tokens of a text by the server's /tokenize; None where it has no such route.

        vLLM reads `prompt`, llama.cpp `content`.
        """
        body = {"model": self.model, "prompt": text, "content": text, "add_special_tokens": False}
        try:
            response = await client.post("/tokenize", json=body)
            tokens = response.raise_for_status().json()["tokens"]
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return None
        return tokens if isinstance(tokens, list) else None

    def _headers(self) -> dict[str, str]:
        if not self.key_variable:
            return {}
        key = os.environ.get(self.key_variable, "")
        if not key:
            raise CannotAsk(f"{self.url}: the variable {self.key_variable} holds no API key")
        return {"authorization": f"Bearer {key}"}

    async def _models(self, client: httpx.AsyncClient) -> list[str]:
        """Return the names that the server lists; none where it has no such list."""
        try:
            response = await client.get("/v1/models")
            if response.status_code in (401, 403):
                raise CannotAsk(f"{self.url} refuses the API key: HTTP {response.status_code}")
            return [str(one["id"]) for one in response.raise_for_status().json()["data"]]
        except httpx.HTTPStatusError:
            return []
        except httpx.HTTPError as error:
            raise CannotAsk(f"{self.url}: {type(error).__name__}: {error}") from error
        except (KeyError, TypeError):
            return []
