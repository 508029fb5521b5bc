"""A target lost mid-stream with real engines: the next replica computes the text on."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from deployments.local.pool import LocalEnginePool
from models.config import EngineConfig
from models.engine.draft import DraftEngine
from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.protocol.messages import EngineReply, EngineRequest, TokenLogprobs
from models.protocol.packed_logprobs import unpack
from router.drafters.draft_model import POOL
from router.generator import SpeculativeGenerator
from router.limits import SessionLimits, SpeculationLimits
from router.ports import Lease
from router.services import Services
from router.types import Delta, Finished
from tests.harness.local import IdDetokenizer, make_request

MAX_MODEL_LEN = 512
PROMPTS = [[7, 8, 9, 7, 8], [3, 1, 4, 1, 5, 9, 2, 6], list(range(40, 60)), [5] * 7]


class Replicas:
    """Leases on the first pool that is not lost, as a deployment whose replica was replaced."""

    def __init__(self, pools: list[LocalEnginePool]) -> None:
        self.pools = pools
        self.num_lost = 0

    async def lease(
        self, session_id: str, *, timeout_s: float
    ) -> Lease[EngineRequest, EngineReply]:
        return await self.pools[self.num_lost].lease(session_id, timeout_s=timeout_s)

    def kill(self) -> None:
        self.pools[self.num_lost].fail("killed")
        self.num_lost += 1


def runner(path: str) -> ModelRunner:
    return ModelRunner(
        EngineConfig(
            model_path=path, dtype="bfloat16", max_model_len=MAX_MODEL_LEN, kv_cache_tokens=4096
        )
    )


@asynccontextmanager
async def serving(
    target_path: str, draft_path: str, num_replicas: int, failover_s: float = 60.0
) -> AsyncIterator[tuple[SpeculativeGenerator, Replicas]]:
    target = Replicas(
        [
            LocalEnginePool(
                TargetEngine(runner(target_path), NoMaskSource(), epoch=epoch),
                epoch=epoch,
                max_model_len=MAX_MODEL_LEN,
            )
            for epoch in range(1, num_replicas + 1)
        ]
    )
    draft = LocalEnginePool(
        DraftEngine(runner(draft_path), NoMaskSource(), epoch=1),
        epoch=1,
        max_model_len=MAX_MODEL_LEN,
    )
    services = Services(
        target_pool=target,
        draft_pools={POOL: draft},
        constraint_pool=None,
        speculation=SpeculationLimits(),
        limits=SessionLimits(draft_ms=20_000, failover_s=failover_s, rejoin_interval_s=0.1),
    )
    try:
        yield SpeculativeGenerator(services, max_model_len=MAX_MODEL_LEN), target
    finally:
        for pool in [*target.pools, draft]:
            await pool.close()


async def text(
    front: SpeculativeGenerator, index: int, k: int | None, target: Replicas, kill_at: list[int]
) -> list[int]:
    """The tokens of one request; kills the target's replica after so many of them."""
    request = make_request(
        f"{index}-{k}", PROMPTS[index], k=k, temperature=1.0, seed=3, max_tokens=60
    )
    ids: list[int] = []
    finished = None
    async for event in front.generate(request, IdDetokenizer()):
        if isinstance(event, Delta):
            ids.extend(event.token_ids)
            while kill_at and len(ids) >= kill_at[0]:
                del kill_at[0]
                target.kill()
        elif isinstance(event, Finished):
            finished = event
    assert finished is not None
    assert finished.num_completion_tokens == len(ids) == 60
    return ids


async def all_texts(
    front: SpeculativeGenerator, k: int | None, target: Replicas, kill_at: list[int]
) -> list[list[int]]:
    return await asyncio.gather(
        *(text(front, i, k, target, kill_at if i == 0 else []) for i in range(len(PROMPTS)))
    )


@pytest.mark.parametrize("k", [0, 4, None], ids=["plain", "fixed", "adaptive"])
async def test_two_targets_lost_under_four_streams_change_no_text(
    tiny_target: str, tiny_draft: str, k: int | None
) -> None:
    async with serving(tiny_target, tiny_draft, 1) as (front, target):
        expected = await all_texts(front, 0, target, [])
    async with serving(tiny_target, tiny_draft, 3) as (front, target):
        assert await all_texts(front, k, target, [10, 35]) == expected
        assert target.num_lost == 2


async def entries(
    front: SpeculativeGenerator, target: Replicas, k: int, kill_at: list[int]
) -> tuple[list[TokenLogprobs], list[tuple[TokenLogprobs, ...]]]:
    """Logprobs of the generated tokens, and of the prompt each time they came."""
    request = make_request(f"entries-{k}", PROMPTS[2], k=k, seed=3, max_tokens=40)
    sampling = msgspec.structs.replace(
        request.sampling, temperature=1.0, num_logprobs=2, num_prompt_logprobs=1
    )
    shown: list[TokenLogprobs] = []
    of_prompt: list[tuple[TokenLogprobs, ...]] = []
    request = dataclasses.replace(request, sampling=sampling)
    async for event in front.generate(request, IdDetokenizer()):
        if isinstance(event, Delta):
            shown += [token.logprobs for token in event.shown]
            if event.prompt_logprobs is not None:
                of_prompt.append(tuple(map(unpack, event.prompt_logprobs)))
            while kill_at and len(shown) >= kill_at[0]:
                del kill_at[0]
                target.kill()
    return shown, of_prompt


@pytest.mark.parametrize("k", [0, 4])
async def test_a_lost_target_loses_and_repeats_no_logprobs(
    tiny_target: str, tiny_draft: str, k: int
) -> None:
    async with serving(tiny_target, tiny_draft, 1) as (front, target):
        expected = await entries(front, target, 0, [])
    async with serving(tiny_target, tiny_draft, 3) as (front, target):
        assert await entries(front, target, k, [1, 20]) == expected
        assert target.num_lost == 2
    shown, [of_prompt] = expected
    assert len(shown) == 40
    assert [entry.token for entry in of_prompt] == PROMPTS[2][1:]
