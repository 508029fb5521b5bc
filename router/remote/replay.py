"""Replays an existing answer on a draft model, in chunks of a pass each."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial

from models.protocol.errors import Unavailable
from models.protocol.messages import MAX_DRAFT_TOKENS, Proposal, Propose
from models.protocol.token_sequence import TokenSequence
from router.limits import SessionLimits
from router.remote.engine import EngineClient
from router.stats import DraftReplay


async def replay(
    session: EngineClient, text: TokenSequence, num_prompt: int, limits: SessionLimits
) -> DraftReplay:
    """Ask for every token of an answer; the session is freed on the way out.

    Args:
        session: on a draft model, with the terms of the request.
        text: prompt and answer.
        num_prompt: tokens of the prompt.
        limits: for the waits.

    Raises:
        ServingError: the draft model is away, or the text is longer than it can read.
    """
    said: list[int] = []
    try:
        await session.connect(limits.queue_wait_s)
        while num_prompt + len(said) < len(text):
            said += await _chunk(session, text, num_prompt + len(said), limits)
    finally:
        await session.disconnect()
    answer = text.ids[num_prompt:]
    return DraftReplay(tuple(one == other for one, other in zip(said, answer, strict=True)))


async def _chunk(
    session: EngineClient, text: TokenSequence, start: int, limits: SessionLimits
) -> list[int]:
    """Return its tokens in place of those from `start` on.

    There is at least one of them.
    """
    ahead = text.ids[start : start + MAX_DRAFT_TOKENS - 1]
    build = partial(
        Propose,
        num_draft_tokens=len(ahead),
        deadline_ms=limits.first_token_s * 1e3,
        guess=ahead[:-1],
        replays=True,
    )
    before = TokenSequence(text.ids[:start])
    async with aclosing(session.exchange(before, build)) as replies:
        async for reply in replies:
            if isinstance(reply, Proposal) and reply.tokens:
                # The engine holds what it was sent; the last token comes again, for its logits.
                session.agreed_len = start + len(reply.tokens) - 1
                return reply.tokens[: len(ahead)]
    raise Unavailable("the draft model did not say what it would have drafted")
