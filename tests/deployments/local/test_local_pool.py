import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import pytest

from deployments.local.pool import LocalConstraintPool, LocalEnginePool
from models.engine.load import EngineLoad
from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.protocol.errors import LinkLost, Unavailable
from models.protocol.messages import (
    ConstraintReply,
    ConstraintRequest,
    EngineReply,
    EngineRequest,
    GrammarClose,
    GrammarCommit,
    GrammarCommitted,
    Sampling,
    Verdict,
)
from router.ports import EngineLease
from tests.cases.messages import opening, verifying
from tests.fakes.engines import EPOCH, make_runner

WAIT_S = 20.0


async def verify(lease: EngineLease, session_id: str) -> EngineReply:
    epoch = lease.grant.endpoint.epoch
    lease.channel.send(opening(session_id, Sampling(temperature=0), prompt_len=2, epoch=epoch))
    lease.channel.send(verifying(session_id, 1, [3, 4], draft=[], epoch=epoch))
    async with asyncio.timeout(WAIT_S):
        return await lease.channel.receive()


@pytest.fixture
async def pool() -> AsyncIterator[LocalEnginePool]:
    engine = TargetEngine(make_runner(), NoMaskSource(), EPOCH)
    engines = LocalEnginePool(engine, epoch=EPOCH, max_model_len=256)
    yield engines
    await engines.close()


async def test_sessions_are_answered_each_on_its_channel(pool: LocalEnginePool) -> None:
    leases = [await pool.lease(name, timeout_s=1.0) for name in ("a", "b")]
    replies = await asyncio.gather(
        *(verify(lease, name) for lease, name in zip(leases, ("a", "b"), strict=True))
    )
    assert all(isinstance(reply, Verdict) for reply in replies)
    assert [reply.session_id for reply in replies] == ["a", "b"]
    assert pool.stats().num_sessions == 2


async def test_release_ends_a_lease_alone(pool: LocalEnginePool) -> None:
    first = await pool.lease("a", timeout_s=1.0)
    other = await pool.lease("b", timeout_s=1.0)
    await first.release()
    await first.release()  # idempotent
    with pytest.raises(LinkLost):
        await first.channel.receive()
    again = await pool.lease("a", timeout_s=1.0)
    assert isinstance(await verify(again, "a"), Verdict)
    assert isinstance(await verify(other, "b"), Verdict)


async def test_failed_engine_loses_leases_at_once(pool: LocalEnginePool) -> None:
    lease = await pool.lease("a", timeout_s=1.0)
    waiting = asyncio.create_task(lease.channel.receive())
    await asyncio.sleep(0)
    pool.fail("killed")
    with pytest.raises(LinkLost, match="killed"):
        await waiting
    with pytest.raises(Unavailable, match="killed"):
        await pool.lease("b", timeout_s=1.0)
    await lease.release()


class BrokenEngine:
    """Dies in its first step."""

    has_work = True
    pass_rows = 0

    def idle_s(self) -> dict[str, float]:
        return {}

    def load(self) -> EngineLoad:
        return EngineLoad()

    def submit(self, message: EngineRequest, reply_to: object) -> None:
        pass

    def step(self) -> list[tuple[object, EngineReply]]:
        raise RuntimeError("CUDA error")

    def wait_s(self, now: float) -> float:
        return 0.0

    def close(self, session_id: str) -> None:
        pass


async def test_engine_that_raises_is_a_lost_engine() -> None:
    pool = LocalEnginePool(BrokenEngine(), epoch=1, max_model_len=8)
    lease = await pool.lease("a", timeout_s=1.0)
    with pytest.raises(LinkLost, match="CUDA error"):
        async with asyncio.timeout(WAIT_S):
            await lease.channel.receive()
    await pool.close()


class EchoHost:
    """Commits everything; notes the thread of each message. A close waits until it may go on."""

    def __init__(self) -> None:
        self.threads: dict[type, str] = {}
        self.is_closing, self.may_close = threading.Event(), threading.Event()

    def handle(self, requests: Sequence[ConstraintRequest]) -> list[ConstraintReply]:
        for request in requests:
            self.threads[type(request)] = threading.current_thread().name
            if isinstance(request, GrammarClose):
                self.is_closing.set()
                self.may_close.wait(WAIT_S)
        return [
            GrammarCommitted(
                session_id=request.session_id,
                seq=request.seq,
                num_valid=len(request.tokens),
                is_complete=False,
            )
            for request in requests
            if isinstance(request, GrammarCommit)
        ]


def commit(seq: int) -> GrammarCommit:
    return GrammarCommit(session_id="a", epoch=3, seq=seq, base_len=0, prefix_hash=0, tokens=[1, 2])


async def test_a_host_works_in_a_thread_of_its_own_and_commits_at_once_while_it_is_idle() -> None:
    host = EchoHost()
    pool = LocalConstraintPool(host, epoch=3)
    lease = await pool.lease("a", timeout_s=1.0)
    assert lease.grant.endpoint.epoch == 3
    async with asyncio.timeout(WAIT_S):
        lease.channel.send(commit(1))
        reply = await lease.channel.receive()
        assert isinstance(reply, GrammarCommitted)
        assert reply.num_valid == 2
        assert host.threads[GrammarCommit] == threading.current_thread().name
        lease.channel.send(GrammarClose(session_id="a", epoch=3))
        assert await asyncio.to_thread(host.is_closing.wait, WAIT_S)
        lease.channel.send(commit(2))  # the host is busy: this waits for it elsewhere
        host.may_close.set()
        assert isinstance(await lease.channel.receive(), GrammarCommitted)
    assert {name[:13] for name in host.threads.values()} == {"local-grammar"}
    await lease.release()
    await pool.close()
    with pytest.raises(Unavailable):
        await pool.lease("b", timeout_s=1.0)
