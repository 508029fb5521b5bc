"""A verifier says whether the next verdict is there already: it alone, and in its turn."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing

import msgspec
import pytest

from models.protocol.messages import EngineReply, EngineRequest, Verdict, Verify
from models.protocol.token_sequence import TokenSequence
from router.limits import SessionLimits
from router.remote.engine import EngineClient
from router.remote.target import RemoteVerifier
from tests.fakes.pools import ScriptedPool
from tests.fakes.router import AnsweringEngine, ScriptedEngine
from tests.fakes.sessions import OPENING, PROMPT


async def told(
    order: tuple[int, ...], num_told: int, shift: Callable[[int], int] = lambda part: 0
) -> list[tuple[int, bool]]:
    """Return the part of each verdict, and whether the next was said to be there.

    The engine answers in this order; `shift` is added to the number of a part's message.
    """

    def answer(message: EngineRequest) -> list[EngineReply] | None:
        if not isinstance(message, Verify) or message.tokens == []:
            return None
        parts = ScriptedEngine.handle(engine, message)
        if not isinstance(parts[0], Verdict):
            return parts
        return [msgspec.structs.replace(parts[n], seq=parts[n].seq + shift(n)) for n in order]

    engine, pool = AnsweringEngine(answer), ScriptedPool()
    pool.process = engine
    verifier = RemoteVerifier(EngineClient(pool, OPENING, SessionLimits()), SessionLimits())
    assert not verifier.has_more, "nothing was asked"
    found: list[tuple[int, bool]] = []
    async with aclosing(verifier.verify(TokenSequence(PROMPT), (), run_on=3)) as verdicts:
        async for verdict in verdicts:
            found.append((verdict.part, verifier.has_more))
            if len(found) == num_told:
                break
    await verifier.close()
    return found


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ((0, 1, 2, 3), [(0, True), (1, True), (2, True), (3, False)]),
        ((0, 0, 1, 2, 3), [(0, False), (1, True), (2, True), (3, False)]),
        ((1, 0, 2, 3), [(0, False), (1, True), (2, True), (3, False)]),
        ((0,), [(0, False)]),
    ],
    ids=["all", "doubled", "out of turn", "not yet"],
)
async def test_the_next_verdict_is_told_where_it_is_the_next_reply(
    order: tuple[int, ...], expected: list[tuple[int, bool]]
) -> None:
    assert await told(order, len(expected)) == expected


async def test_a_verdict_on_another_message_is_not_the_next() -> None:
    assert await told((0, 1, 2), 2, lambda part: -(part > 1)) == [(0, True), (1, False)]
