"""Engines of one device, stepped by turns: same texts, whole batches, and a death that is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from deployments.local.inline import InlineDevice
from models.config import EngineConfig
from models.engine.draft import DraftEngine
from models.engine.runner import ModelRunner, SequenceRows
from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.protocol.errors import Unavailable
from models.protocol.messages import Sampling
from router.drafters.draft_model import POOL
from router.generator import SpeculativeGenerator
from router.limits import SessionLimits, SpeculationLimits
from router.ports import EngineLease
from router.services import Services
from tests.cases.messages import opening, proposing, verifying
from tests.harness.local import LocalService, make_request

PROMPTS = [[5, 9, 3, 7], [300, 6, 6], [14, 90], [31, 8, 8, 8, 8]]
LIMITS = SessionLimits(draft_ms=20_000, failover_s=0.2)


class CountingRunner(ModelRunner):
    """Notes how many sessions each pass has."""

    def __init__(self, path: str) -> None:
        self.sessions_of_passes: list[int] = []
        self.is_broken = False
        super().__init__(
            EngineConfig(
                model_path=path,
                dtype="float32",
                max_model_len=256,
                kv_cache_tokens=2048,
                num_threads=1,
            )
        )
        self.sessions_of_passes.clear()  # those of the start-up test

    def forward(self, sequences: list[SequenceRows], *args: object) -> object:  # type: ignore[override]
        if self.is_broken:
            raise RuntimeError("out of memory")
        self.sessions_of_passes.append(len(sequences))
        return super().forward(sequences, *args)


@dataclass
class Inline:
    service: LocalService
    target: CountingRunner
    draft: CountingRunner
    services: Services

    async def texts(self, k: int | None) -> list[list[int]]:
        """Ask all prompts at once; their token ids."""
        requests = (
            make_request(f"{k}-{i}", prompt, k=k, max_tokens=24) for i, prompt in enumerate(PROMPTS)
        )
        answers = await asyncio.gather(*(self.service.generate(one) for one in requests))
        return [ids for ids, _, _ in answers]


@asynccontextmanager
async def inline(target_path: str, draft_path: str) -> AsyncIterator[Inline]:
    target, draft = CountingRunner(target_path), CountingRunner(draft_path)
    draft_engine = DraftEngine(draft, NoMaskSource(), 1)
    target_engine = TargetEngine(target, NoMaskSource(), 1)
    device = InlineDevice()
    draft_pool = device.pool(draft_engine, epoch=1, max_model_len=256)
    target_pool = device.pool(target_engine, epoch=1, max_model_len=256)
    services = Services(
        target_pool=target_pool,
        draft_pools={POOL: draft_pool},
        constraint_pool=None,
        speculation=SpeculationLimits(prompt_lookup_max=0, suffix_decoding_max_tree_depth=0),
        limits=LIMITS,
    )
    generator = SpeculativeGenerator(services, max_model_len=256)
    try:
        yield Inline(
            LocalService(generator, target_engine, draft_engine, None, None, services),  # type: ignore[arg-type]
            target,
            draft,
            services,
        )
    finally:
        await device.close()
        await device.close()  # idempotent


async def test_texts_are_those_of_plain_decoding(tiny_target: str, tiny_draft: str) -> None:
    async with inline(tiny_target, tiny_draft) as running:
        texts = {}
        for k in (0, 3, None):
            texts[k] = await running.texts(k)
        assert texts[3] == texts[0]
        assert texts[None] == texts[0]
        assert all(len(ids) == 24 for ids in texts[0])
        assert await running.service.freed()
        assert running.service.draft is not None
        assert running.service.draft.load().num_sessions == 0


async def test_sessions_share_their_passes(tiny_target: str, tiny_draft: str) -> None:
    async with inline(tiny_target, tiny_draft) as running:
        await running.texts(3)
        for runner in (running.target, running.draft):
            passes = runner.sessions_of_passes
            # Rounds differ in length and sessions end apart, but nobody goes alone for long.
            assert sum(passes) / len(passes) > 2.5
            assert passes[0] == len(PROMPTS)


def open_session(lease: EngineLease, session_id: str, prompt_len: int) -> None:
    sampling = Sampling(temperature=0.0, seed=1)
    lease.channel.send(opening(session_id, sampling, prompt_len, epoch=1))


async def test_nobody_is_waited_for_who_waits_for_the_other_engine(
    tiny_target: str, tiny_draft: str
) -> None:
    """A session that drafted beside its plain steps has nothing to say until they are over."""
    async with inline(tiny_target, tiny_draft) as running:
        prompt, num_steps = PROMPTS[0], 40
        services = running.services
        target, draft = [
            await pool.lease("one", timeout_s=1.0)
            for pool in (services.target_pool, *services.draft_pools.values())
        ]
        for lease in (target, draft):
            open_session(lease, "one", len(prompt))  # type: ignore[arg-type]
        target.channel.send(verifying("one", 1, prompt, draft=[], epoch=1, run_on=num_steps))
        draft.channel.send(proposing("one", 1, prompt, k=1, epoch=1))
        await draft.channel.receive()
        num_turns = 0

        async def count_turns() -> None:
            nonlocal num_turns
            while True:
                num_turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count_turns())
        async with asyncio.timeout(20.0):
            for _ in range(1 + num_steps):
                await target.channel.receive()
        counting.cancel()
        assert num_turns < 6 * num_steps, "the loop turned for a message that could not come"


async def test_who_comes_for_a_place_that_became_free_is_in_the_next_pass(tiny_target: str) -> None:
    """A session ends, and some turns of the event loop later the next one asks."""
    device = InlineDevice()
    runner = CountingRunner(tiny_target)
    pool = device.pool(TargetEngine(runner, NoMaskSource(), 1), epoch=1, max_model_len=256)

    def ask(lease: EngineLease, session_id: str, prompt: list[int]) -> None:
        open_session(lease, session_id, len(prompt))
        lease.channel.send(verifying(session_id, 1, prompt, draft=[], epoch=1, run_on=5))

    first, second = [await pool.lease(name, timeout_s=1.0) for name in ("first", "second")]
    ask(second, "second", PROMPTS[1])
    await first.release()
    for _ in range(8):
        await asyncio.sleep(0)
    third = await pool.lease("third", timeout_s=1.0)
    ask(third, "third", PROMPTS[2])
    async with asyncio.timeout(20.0):
        await third.channel.receive()
    assert runner.sessions_of_passes[0] == 2
    await device.close()


async def test_the_death_of_an_engine_is_told(tiny_target: str, tiny_draft: str) -> None:
    async with inline(tiny_target, tiny_draft) as running:
        running.target.is_broken = True
        with pytest.raises(Unavailable, match="out of memory"):
            await running.service.generate(make_request("0", PROMPTS[0], k=0))


async def test_nothing_is_leased_after_the_end(tiny_target: str) -> None:
    device = InlineDevice()
    engine = TargetEngine(CountingRunner(tiny_target), NoMaskSource(), 1)
    pool = device.pool(engine, epoch=1, max_model_len=256)
    lease = await pool.lease("a", timeout_s=1.0)
    await device.close()
    with pytest.raises(Unavailable, match="closed"):
        await pool.lease("b", timeout_s=1.0)
    await lease.release()
    await lease.release()
