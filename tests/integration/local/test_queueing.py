"""A real router in front of a real engine that has no room: waits, limits and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from models.protocol.errors import ContextTooLong, Overloaded
from models.protocol.messages import Open, Sampling, Verify
from models.protocol.token_sequence import EMPTY_HASH
from router.limits import SessionLimits
from router.ports import EngineLease
from tests.fakes.engines import random_prompt, reference_greedy, tiny_checkpoint
from tests.harness.local import LocalService, local_service, make_request

SILENCE_S = 2.0  # after which a router takes an engine for dead
KV_TOKENS = 96


@asynccontextmanager
async def small_service(**limits: Any) -> AsyncIterator[LocalService]:
    changed = SessionLimits(
        **{
            "first_token_s": SILENCE_S,
            "token_gap_s": SILENCE_S,
            "resend_interval_s": 0.5,
            "max_losses": 2,
            **limits,
        }
    )
    async with local_service(
        tiny_checkpoint(noise=0.0),
        None,
        dtype="float32",
        limits=changed,
        kv_cache_tokens=KV_TOKENS,
        block_size=16,
        max_model_len=256,
        queued_interval_s=0.1,
    ) as service:
        yield service


async def occupy(service: LocalService, num_tokens: int) -> EngineLease:
    """A session that is older than all others and keeps blocks for that many tokens."""
    lease = await service.target_pool.lease("old", timeout_s=1.0)
    epoch = lease.grant.endpoint.epoch
    prompt = random_prompt(1, num_tokens)
    lease.channel.send(
        Open(session_id="old", epoch=epoch, sampling=Sampling(), eos_ids=[], prompt_len=num_tokens)
    )
    lease.channel.send(
        Verify(
            session_id="old",
            epoch=epoch,
            seq=1,
            base_len=0,
            prefix_hash=EMPTY_HASH,
            tokens=prompt,
            draft=[],
            run_on=0,
        )
    )
    await lease.channel.receive()
    return lease


async def test_a_session_that_waits_for_blocks_longer_than_silence_keeps_its_lease() -> None:
    async with small_service() as service:
        old = await occupy(service, 80)
        prompt = random_prompt(2, 40)
        running = asyncio.create_task(
            service.generate(make_request("young", prompt, max_tokens=12))
        )
        await asyncio.sleep(2 * SILENCE_S)
        assert not running.done()
        assert service.target.load().num_waiting == 1
        sessions = {session.session_id: session.order for session in service.target.sessions}
        assert sessions == {"old": 0, "young": 1}  # not given up and opened again
        await old.release()
        ids, finished, _ = await running
        assert ids == reference_greedy(prompt, 12)
        assert finished.finish_reason == "length"
        assert await service.freed()


async def test_even_an_engine_that_says_it_is_alive_is_waited_for_within_a_limit() -> None:
    async with small_service(queue_timeout_s=0.6) as service:
        old = await occupy(service, 80)
        with pytest.raises(Overloaded, match=r"waited for room .* the limit is 0\.6 s"):
            await service.generate(make_request("young", random_prompt(2, 40)))
        await old.release()
        assert await service.freed()


async def test_a_request_larger_than_the_cache_is_refused_before_anything_is_computed() -> None:
    async with small_service() as service:
        prompt = random_prompt(3, 60)
        with pytest.raises(ContextTooLong, match=r"^max_tokens: .* holds 96 tokens, .* 60 .* 37;"):
            await service.generate(make_request("large", prompt, max_tokens=37))
        with pytest.raises(ContextTooLong) as caught:
            await service.generate(make_request("larger", random_prompt(3, 96), max_tokens=1))
        assert caught.value.param == "prompt"
        assert service.target.load().num_prefill_rows == 0
        ids, _, _ = await service.generate(make_request("fits", prompt, max_tokens=36))
        assert ids == reference_greedy(prompt, 36)
        assert await service.freed()


async def test_many_streams_on_blocks_for_two_all_end_with_their_own_text() -> None:
    async with small_service() as service:
        prompts = [random_prompt(50 + i, 20 + 3 * i) for i in range(8)]
        outcomes = await asyncio.gather(
            *(
                service.generate(make_request(f"s{i}", prompt, max_tokens=24))
                for i, prompt in enumerate(prompts)
            )
        )
        for prompt, (ids, _, _) in zip(prompts, outcomes, strict=True):
            expected = reference_greedy(prompt, 24)  # ends at an eos
            assert len(ids) == 24
            assert ids[: len(expected)] == expected
        assert service.target.load().num_preemptions > 0
        assert await service.freed()
