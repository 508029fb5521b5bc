"""The whole service over a pair in this process, asked over HTTP without a socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp

from deployments.local.pair import LoadedPair, local_config
from loadtest.client.http import CHAT
from loadtest.frame.stages import Models
from loadtest.fuzz.http.answers import events_of
from loadtest.fuzz.http.world import post, served_pair

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

    app: ASGIApp

    async def ask(self, body: dict[str, Any]) -> Outcome:
        """Send a chat.

        Raises:
            RuntimeError: the service failed.
            ValueError: its answer cannot be read.
        """
        answer = await post(self.app, CHAT, {"model": _MODEL, **body}, _ASK_TIMEOUT_S)
        if answer.status == 400:
            return Outcome(refusal=json.loads(answer.body)["error"]["message"])
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}: {answer.body!r}")
        is_stream = bool(body.get("stream"))
        return _outcome(events_of(answer.body) if is_stream else [json.loads(answer.body)])


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
    async with served_pair(LoadedPair(config), config.router) as world:
        yield Client(world.app)


def _outcome(contents: list[dict[str, Any]]) -> Outcome:
    """Return the outcome of a whole answer, or of the events of a stream with usage at its end."""
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    entries: dict[int, list[Any]] = {}
    for choice in (choice for content in contents for choice in content["choices"]):
        index = choice["index"]
        message = choice["delta"] if "delta" in choice else choice["message"]
        texts[index] = texts.get(index, "") + message.get("content", "")
        entries.setdefault(index, []).extend((choice["logprobs"] or {"content": ()})["content"])
        if choice["finish_reason"] is not None:
            reasons[index] = choice["finish_reason"]
    last, order = contents[-1], sorted(texts)
    return Outcome(
        texts=tuple(texts[index] for index in order),
        finish_reasons=tuple(reasons[index] for index in order),
        num_tokens=last["usage"]["completion_tokens"],
        logprobs=json.dumps([entries[index] for index in order]),
        num_drafted=int(last["metrics"]["speculative_decoding"]["num_draft_tokens"]),
    )
