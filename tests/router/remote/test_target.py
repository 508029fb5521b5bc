"""A verifier asks a target: verdicts come in turn, masks may be missing, time passes between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

import msgspec
import pytest

from models.protocol.errors import MaskUnavailable
from models.protocol.messages import EngineReply, EngineRequest, Failed, Open, Verdict, Verify
from models.protocol.token_sequence import TokenSequence
from router.limits import SessionLimits
from router.remote.engine import EngineClient
from router.remote.target import RemoteVerifier
from tests.fakes.pools import ScriptedLease, ScriptedPool
from tests.fakes.router import AnsweringEngine, ScriptedEngine
from tests.fakes.sessions import OPENING, PROMPT
from tests.router.replies import verdict

LIMITS = SessionLimits(token_gap_s=0.5)
DRAFTING_S = 0.03


def verifier_on(engine: ScriptedEngine) -> RemoteVerifier:
    pool = ScriptedPool()
    pool.process = engine
    return RemoteVerifier(EngineClient(pool, OPENING, LIMITS), LIMITS)


async def parts_of(verifier: RemoteVerifier, run_on: int = 0) -> list[int]:
    """Return the parts that a question has, which is asked to its end."""
    async with aclosing(verifier.verify(TokenSequence(PROMPT), (), run_on)) as verdicts:
        return [said.part async for said in verdicts]


async def test_the_time_since_the_last_verdict_goes_along() -> None:
    engine = AnsweringEngine(lambda message: None)
    verifier, num_rounds = verifier_on(engine), 3
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    for _ in range(num_rounds):
        await parts_of(verifier, run_on=1)
        await asyncio.sleep(DRAFTING_S)
    took_ms = 1e3 * (loop.time() - began_s)
    await verifier.close()
    away_ms = {one.seq: one.away_ms for one in engine.received if isinstance(one, Verify)}
    first, *later = [away_ms[seq] for seq in sorted(away_ms)][-num_rounds:]
    assert first == 0.0, "there was no answer before"
    assert all(1e3 * DRAFTING_S <= each <= took_ms for each in later)


async def test_the_wait_for_a_place_is_time_in_a_queue_once() -> None:
    class Full(ScriptedPool):
        async def lease(self, session_id: str, *, timeout_s: float) -> ScriptedLease:
            await asyncio.sleep(3.0)
            return await super().lease(session_id, timeout_s=timeout_s)

    verifier = RemoteVerifier(EngineClient(Full(), OPENING, LIMITS), LIMITS)
    queued_ms = list[float]()
    for _ in range(2):
        async with aclosing(verifier.verify(TokenSequence(PROMPT), (), 1)) as verdicts:
            queued_ms += [said.timing.queue_ms async for said in verdicts]
    assert queued_ms == pytest.approx([3000.0, 0.0, 0.0, 0.0], abs=1.0)


async def test_repeats_of_old_parts_do_not_extend_the_wait_for_the_next() -> None:
    def first_part_only(message: EngineRequest) -> list[EngineReply] | None:
        if not isinstance(message, Verify):
            return None
        return [verdict(seq=message.seq, is_last=False)]

    verifier = verifier_on(AnsweringEngine(first_part_only))
    async with asyncio.timeout(5 * LIMITS.token_gap_s):
        assert await parts_of(verifier, run_on=3) == [0]


async def test_after_missing_masks_the_session_is_opened_again() -> None:
    """An `Open` that named a newer constraint replica may have been lost."""
    num_failures = 1

    def without_masks(message: EngineRequest) -> list[EngineReply] | None:
        nonlocal num_failures
        if not isinstance(message, Verify) or num_failures == 0:
            return None
        num_failures -= 1
        failed = Failed(session_id="s", seq=message.seq, code="mask_unavailable", message="none")
        return [failed]

    engine = AnsweringEngine(without_masks)
    verifier = verifier_on(engine)
    with pytest.raises(MaskUnavailable):
        await parts_of(verifier)
    assert await parts_of(verifier) == [0]
    assert [type(message) for message in engine.received] == [Open, Verify, Open, Verify]


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

    engine = AnsweringEngine(answer)
    verifier = verifier_on(engine)
    assert not verifier.has_more, "nothing was asked"
    found: list[tuple[int, bool]] = []
    async with aclosing(verifier.verify(TokenSequence(PROMPT), (), run_on=3)) as verdicts:
        async for said in verdicts:
            found.append((said.part, verifier.has_more))
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
