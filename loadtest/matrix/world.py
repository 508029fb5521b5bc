"""The whole service over the demo pair in this process, asked over HTTP without a socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from deployments.api.http import create_app
from deployments.local.pair import LoadedPair, local_config
from loadtest.frame.stages import Models

_MODEL = "pair"
_MAX_MODEL_LEN = 1024
_KV_CACHE_TOKENS = 16 * _MAX_MODEL_LEN
_ASK_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a request: its choices' texts and their ends, or the reason of its refusal."""

    texts: tuple[str, ...] = ()
    finish_reasons: tuple[str, ...] = ()
    num_tokens: int = 0
    logprobs: str = ""  # JSON of those of all choices
    refusal: str = ""
    num_drafted: int = 0

    @property
    def answer(self) -> tuple[object, ...]:
        """The parts of the outcome that must not depend on drafts."""
        return self.texts, self.finish_reasons, self.num_tokens, self.logprobs, self.refusal


@dataclass(frozen=True, slots=True)
class Client:
    """Asks the service."""

    http: httpx.AsyncClient

    async def ask(self, body: dict[str, Any]) -> Outcome:
        """Send a chat.

        Raises:
            RuntimeError: the service failed.
        """
        answer = await self.http.post("/v1/chat/completions", json={"model": _MODEL, **body})
        if answer.status_code == httpx.codes.BAD_REQUEST:
            return Outcome(refusal=answer.json()["error"]["message"])
        if answer.status_code != httpx.codes.OK:
            raise RuntimeError(f"status {answer.status_code}: {answer.text}")
        return _streamed(answer.text) if body.get("stream") else _whole(answer.json())


@asynccontextmanager
async def demo_client(pair: Models, num_threads: int) -> AsyncIterator[Client]:
    """Serve a pair of checkpoints until left."""
    model = {
        "dtype": "bfloat16",
        "max_model_len": _MAX_MODEL_LEN,
        "kv_cache_tokens": _KV_CACHE_TOKENS,
        "num_threads": num_threads,
    }
    config = local_config(
        {
            "target": {"model_path": str(pair.target), **model},
            "draft": {"model_path": str(pair.drafts["draft"]), **model},
            "router": {"model_name": _MODEL, "timeouts": {"draft_ms": 20_000}},
        }
    )
    engines = LoadedPair(config).engines(has_threads=True)
    transport = httpx.ASGITransport(create_app(engines.service().http))
    try:
        async with httpx.AsyncClient(
            transport=transport, base_url="http://pair", timeout=_ASK_TIMEOUT_S
        ) as http:
            yield Client(http)
    finally:
        await engines.close()


def _whole(answer: dict[str, Any]) -> Outcome:
    choices = answer["choices"]
    return Outcome(
        texts=tuple(choice["message"]["content"] for choice in choices),
        finish_reasons=tuple(choice["finish_reason"] for choice in choices),
        num_tokens=answer["usage"]["completion_tokens"],
        logprobs=json.dumps([_entries(choice) for choice in choices]),
        num_drafted=_num_drafted(answer),
    )


def _streamed(text: str) -> Outcome:
    """Return the outcome from the events of a stream.

    The stream has the usage at its end.
    """
    lines = text.split("\n")  # an id or a comment may stand among them
    bodies = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    if bodies[-1] != "[DONE]":
        raise RuntimeError(f"a stream ended with {bodies[-1]}")
    events = [json.loads(body) for body in bodies[:-1]]
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    entries: dict[int, list[Any]] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        index = choice["index"]
        texts[index] = texts.get(index, "") + choice["delta"].get("content", "")
        entries.setdefault(index, []).extend(_entries(choice))
        if choice["finish_reason"] is not None:
            reasons[index] = choice["finish_reason"]
    order = sorted(texts)
    return Outcome(
        texts=tuple(texts[index] for index in order),
        finish_reasons=tuple(reasons[index] for index in order),
        num_tokens=events[-1]["usage"]["completion_tokens"],
        logprobs=json.dumps([entries[index] for index in order]),
        num_drafted=_num_drafted(events[-1]),
    )


def _entries(choice: dict[str, Any]) -> list[Any]:
    logprobs = choice["logprobs"]
    return [] if logprobs is None else list(logprobs["content"])


def _num_drafted(answer: dict[str, Any]) -> int:
    return int(answer["metrics"]["speculative_decoding"]["num_draft_tokens"])
