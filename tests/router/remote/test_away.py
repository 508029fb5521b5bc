"""A verifier tells the target for how long it has had the last answer."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from models.protocol.messages import Verify
from models.protocol.token_sequence import TokenSequence
from router.limits import SessionLimits
from router.remote.engine import EngineClient
from router.remote.target import RemoteVerifier
from tests.fakes.pools import ScriptedPool
from tests.fakes.router import AnsweringEngine
from tests.fakes.sessions import OPENING, PROMPT

DRAFTING_S = 0.03


async def test_the_time_since_the_last_verdict_goes_along() -> None:
    engine, pool = AnsweringEngine(lambda message: None), ScriptedPool()
    pool.process = engine
    verifier = RemoteVerifier(EngineClient(pool, OPENING, SessionLimits()), SessionLimits())
    loop, num_rounds = asyncio.get_running_loop(), 3
    began_s = loop.time()
    for _ in range(num_rounds):
        async with aclosing(verifier.verify(TokenSequence(PROMPT), (), run_on=1)) as verdicts:
            async for _ in verdicts:
                pass
        await asyncio.sleep(DRAFTING_S)
    took_ms = 1e3 * (loop.time() - began_s)
    await verifier.close()
    away_ms = {one.seq: one.away_ms for one in engine.received if isinstance(one, Verify)}
    first, *later = [away_ms[seq] for seq in sorted(away_ms)][-num_rounds:]
    assert first == 0.0, "there was no answer before"
    assert all(1e3 * DRAFTING_S <= each <= took_ms for each in later)
