"""The front door: one request in, text deltas out, then exactly one `Finished`.

Checks what only the router knows (the context window), runs a session's loop, and frees the
session on every path out: end, error, and a client that goes away.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator
from contextlib import aclosing

from models.protocol.errors import ContextTooLong, InvalidRequest
from router.limits import SessionLimits, SpeculationLimits
from router.loop import run_session
from router.session import Services, Session
from router.types import Delta, Detokenizer, Finished, GenerationRequest

_CLOSE_TIMEOUT_S = 5.0


class SpeculativeGenerator:
    """Implements `generation.Generator` over pools of engines and constraint replicas."""

    def __init__(self, services: Services, *, max_model_len: int) -> None:
        self._services = services
        self._max_model_len = max_model_len
        self._closings: set[asyncio.Task[None]] = set()

    def set_limits(self, speculation: SpeculationLimits, limits: SessionLimits) -> None:
        """Other limits for sessions that begin from now on; what was learnt stays."""
        self._services = dataclasses.replace(self._services, speculation=speculation, limits=limits)

    async def generate(
        self, request: GenerationRequest, detokenizer: Detokenizer
    ) -> AsyncGenerator[Delta | Finished, None]:
        """See `generation.Generator.generate`."""
        self._check(request)
        session = Session(request, self._services)
        try:
            await session.start()
            parts = session.parts(detokenizer)
            async with aclosing(run_session(parts)) as events:
                async for event in events:
                    if isinstance(event, Delta):
                        yield event
                        continue
                    yield Finished(
                        finish_reason=event,
                        num_prompt_tokens=len(request.prompt_ids),
                        num_completion_tokens=parts.stops.num_tokens,
                        num_cached_tokens=parts.stats.num_cached_tokens,
                        speculation=parts.stats.snapshot(),
                    )
        finally:
            await self._close(session)

    async def _close(self, session: Session) -> None:
        """Free the session, bounded in time, also while this task is being cancelled."""
        closing = asyncio.create_task(session.close(), name="session-close")
        self._closings.add(closing)
        closing.add_done_callback(self._closings.discard)
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await asyncio.shield(closing)
        except TimeoutError:
            closing.cancel()

    def _check(self, request: GenerationRequest) -> None:
        num_prompt = len(request.prompt_ids)
        if num_prompt == 0:
            raise InvalidRequest("prompt: must hold at least 1 token, got 0", param="prompt")
        if request.max_tokens < 1:
            raise InvalidRequest(
                f"max_tokens: must be at least 1, got {request.max_tokens}", param="max_tokens"
            )
        if num_prompt + request.max_tokens > self._max_model_len:
            raise ContextTooLong(
                f"prompt of {num_prompt} tokens and max_tokens of {request.max_tokens} exceed the "
                f"context window of {self._max_model_len} tokens",
                param="max_tokens" if num_prompt < self._max_model_len else "prompt",
            )
        if request.grammar is not None and request.ignore_eos:
            raise InvalidRequest(
                "ignore_eos: must be false with a grammar, got true", param="ignore_eos"
            )
