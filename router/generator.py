"""The front door: one request in, text deltas out, then exactly one `Finished`.

Checks the context window, which only the router knows, and runs a session's loop. It frees the
session on every path out: end, error, and a client that goes away.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator
from contextlib import aclosing

from models.protocol.errors import ContextTooLong, InvalidRequest, ServingError, UnsupportedGrammar
from models.protocol.grammars import GrammarChecked
from models.protocol.messages import Grammar
from router.choosing import run_choice
from router.limits import SessionLimits, SpeculationLimits
from router.lookahead.loop import run_lookahead
from router.lookahead.session import open_lookahead
from router.loop import run_session
from router.remote.check import check_grammar
from router.services import Services
from router.session import Session, open_session
from router.stats import SpeculationStats, TimeSplit
from router.types import (
    Delta,
    Detokenizer,
    Finished,
    FinishReason,
    GenerationRequest,
    SpeculationSettings,
)


class SpeculativeGenerator:
    """Implements `types.Generator` over pools of engines and constraint replicas."""

    def __init__(self, services: Services, *, max_model_len: int) -> None:
        self._services = services
        self._max_model_len = max_model_len

    def set_limits(self, speculation: SpeculationLimits, limits: SessionLimits) -> None:
        """Apply other limits to sessions that begin after this; what was learnt stays."""
        self._services = dataclasses.replace(self._services, speculation=speculation, limits=limits)

    async def generate(
        self, request: GenerationRequest, detokenizer: Detokenizer
    ) -> AsyncGenerator[Delta | Finished, None]:
        """See `types.Generator.generate`."""
        self._check(request)
        replicas = self._services.losses.follow(request.request_id)
        try:
            other = None
            if request.max_tokens == 0:
                other = self._prompt_alone(request, detokenizer)
            elif request.lookahead is not None:
                other = self._looking_ahead(request, detokenizer)
            if other is not None:
                async with aclosing(other) as items:
                    async for item in items:
                        yield item
                return
            async with (
                self._services.rollouts.beside(),
                open_session(request, self._services, detokenizer) as session,
                aclosing(_run(request, session)) as deltas,
            ):
                finish_reason: FinishReason | None = None
                async for delta in deltas:
                    yield delta
                    finish_reason = delta.finish_reason
                assert finish_reason is not None, "a text ended without a reason"
                stats = await self._compared(request, session)
                yield Finished(
                    finish_reason=finish_reason,
                    num_prompt_tokens=len(request.prompt_ids),
                    num_completion_tokens=session.stops.num_tokens,
                    num_cached_tokens=min(
                        session.watch.stats.num_cached_tokens, len(request.prompt_ids)
                    ),
                    speculation=stats,
                    loosened=tuple(session.guard.loosened),
                    has_grammar=request.grammar is not None and not request.is_mostly_free,
                    replicas=dict(replicas),
                )
        except ServingError as error:
            error.replicas = dict(replicas)
            raise
        finally:
            self._services.losses.forget(request.request_id)

    async def _prompt_alone(
        self, request: GenerationRequest, detokenizer: Detokenizer
    ) -> AsyncGenerator[Delta | Finished, None]:
        """Yield the target's results for the prompt. The one token of its pass is dropped."""
        alone = dataclasses.replace(
            request,
            max_tokens=1,
            stop=(),
            grammar=None,
            choices=(),
            prediction=None,
            lookahead=None,
            speculation=SpeculationSettings(enabled=False),
        )
        async with aclosing(self.generate(alone, detokenizer)) as items:
            async for item in items:
                if isinstance(item, Delta):
                    yield Delta("", (), prompt_logprobs=item.prompt_logprobs)
                else:
                    yield dataclasses.replace(item, finish_reason="length", num_completion_tokens=0)

    async def _looking_ahead(
        self, request: GenerationRequest, detokenizer: Detokenizer
    ) -> AsyncGenerator[Delta | Finished, None]:
        async with (
            open_lookahead(request, self._services, detokenizer) as session,
            aclosing(run_lookahead(session)) as deltas,
        ):
            finish_reason: FinishReason | None = None
            async for delta in deltas:
                yield delta
                finish_reason = delta.finish_reason
            assert finish_reason is not None, "a text ended without a reason"
            yield Finished(
                finish_reason=finish_reason,
                num_prompt_tokens=len(request.prompt_ids),
                num_completion_tokens=session.stops.num_tokens,
                num_cached_tokens=min(session.target.num_cached_tokens, len(request.prompt_ids)),
                speculation=SpeculationStats(
                    time=TimeSplit(grammar_ms=session.waits.time().grammar_ms)
                ),
                lookahead=await session.stats(),
                has_grammar=request.grammar is not None and not request.is_mostly_free,
                replicas=dict(self._services.losses.follow(request.request_id)),
            )

    async def _compared(self, request: GenerationRequest, session: Session) -> SpeculationStats:
        """Return the speculation figures, with those that each draft model would have had.

        They are compared now if the request asks for it; for a share of the others, once they are
        over.
        """
        services, stats = self._services, session.watch.stats.snapshot()
        if session.replayed is None or not services.draft_pools:
            return stats
        if request.speculation.compare:
            replays = await session.replayed.replays()
            session.replayed.learn(replays)
            return dataclasses.replace(stats, replays=replays)
        if services.comparison.wants(services.speculation.compare_share):
            services.comparison.begin(session.replayed)
        return stats

    async def check_grammar(self, grammar: Grammar, text: str) -> GrammarChecked:
        """Check how far a text obeys a grammar; see `router.remote.check`."""
        services = self._services
        pool = services.constraint_pool
        if pool is None:
            raise UnsupportedGrammar("this deployment has no constraint service")
        return await check_grammar(pool, grammar, text, services.limits, services.losses.constraint)

    def _check(self, request: GenerationRequest) -> None:
        num_prompt = len(request.prompt_ids)
        if num_prompt == 0:
            raise InvalidRequest("prompt: must hold at least 1 token, got 0", param="prompt")
        if request.max_tokens < 0:
            raise InvalidRequest(
                f"max_tokens: must be at least 0, got {request.max_tokens}", param="max_tokens"
            )
        if num_prompt + max(1, request.max_tokens) > self._max_model_len:
            raise ContextTooLong(
                f"prompt of {num_prompt} tokens and max_tokens of {request.max_tokens} exceed the "
                f"context window of {self._max_model_len} tokens",
                param="max_tokens" if num_prompt < self._max_model_len else "prompt",
            )
        if request.choices:
            _check_choices(request, self._max_model_len)
        if request.grammar is not None and request.ignore_eos:
            raise InvalidRequest(
                "ignore_eos: must be false with a grammar, got true", param="ignore_eos"
            )


def _run(request: GenerationRequest, session: Session) -> AsyncGenerator[Delta, None]:
    return run_choice(session, request.choices) if request.choices else run_session(session)


def _check_choices(request: GenerationRequest, max_model_len: int) -> None:
    num_prompt, longest = len(request.prompt_ids), max(map(len, request.choices))
    if num_prompt + longest > max_model_len:
        raise ContextTooLong(
            f"prompt of {num_prompt} tokens and the longest choice of {longest} exceed the context "
            f"window of {max_model_len} tokens",
            param="structured_outputs.choice",
        )
    if request.ignore_eos or not request.eos_ids:
        given = "ignore_eos is true" if request.ignore_eos else "the model has no such token"
        raise InvalidRequest(
            f"structured_outputs.choice: choices are weighed with the token that ends them, but "
            f"{given}",
            param="ignore_eos" if request.ignore_eos else "structured_outputs.choice",
        )
