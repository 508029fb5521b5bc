"""What look-aheads share, and what becomes of them when something is lost; a tiny pair."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models.protocol.errors import InvalidRequest, Unavailable
from router.generator import SpeculativeGenerator
from router.limits import SessionLimits
from router.lookahead.loop import run_lookahead
from router.lookahead.session import open_lookahead
from router.planning.rollout_places import RolloutPlaces
from router.types import GenerationRequest, LookaheadSettings
from tests.cases.lookahead.lossy import check_all_happened, faults_of_every_kind, lossy_options
from tests.cases.tiny_llama import write_tiny_llama
from tests.harness.local import IdDetokenizer, LocalService, local_service, make_request
from tests.harness.rewards.workers import grammar_host, reward_workers

BLOCK = 16
PROMPT = [(7 * place) % 90 + 5 for place in range(3 * BLOCK + 5)]
REWARD = {"kind": "concepts", "concepts": ["11", "12", "13", "14"]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("target"), vocab_size=100)


def serving(model: Path, **options: Any) -> Any:
    """The model drafts for itself, so every draft stands."""
    terms: dict[str, Any] = {
        "grammar_host": grammar_host(),
        "rewards": reward_workers(),
        "block_size": BLOCK,
    }
    return local_service(model, model, dtype="float32", **terms | options)


def text_of(ids: Sequence[int]) -> str:
    return "".join(f"{token_id} " for token_id in ids)


def steered(request_id: str, method: str = "cdlh", reward: Any = REWARD, **terms: Any) -> Any:
    max_tokens = terms.pop("max_tokens", 8)
    request = make_request(request_id, PROMPT, max_tokens=max_tokens, seed=4)
    settings: dict[str, Any] = {"method": method, "length": 4, "candidates": 4} | terms
    return replace(
        request,
        lookahead=LookaheadSettings(reward=json.dumps(reward), text_of=text_of, **settings),
    )


class Watched:
    """A pool whose sessions' replies are counted, by kind."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.replies: Counter[str] = Counter()

    async def lease(self, session_id: str, *, timeout_s: float) -> Any:
        lease = await self._inner.lease(session_id, timeout_s=timeout_s)
        receive = lease.channel.receive

        async def counted() -> Any:
            reply = await receive()
            self.replies[type(reply).__name__] += 1
            return reply

        lease.channel.receive = counted
        return lease


async def test_roll_outs_take_the_prompt_by_reference_and_share_passes(model: Path) -> None:
    request: GenerationRequest = steered("r")
    async with serving(model) as service:
        watched = Watched(service.target_pool)
        services = replace(service.services, target_pool=watched)
        detokenizer = IdDetokenizer()
        async with open_lookahead(request, services, detokenizer) as session:
            async for _ in run_lookahead(session):
                pass
            stats = await session.stats()
        assert [branch.num_cached_tokens for branch in session.rollouts] == [3 * BLOCK] * 4
        # Eight steps of four roll-outs, which the end of the text cuts; one for the candidates.
        assert stats.num_target_passes == 1 + 4 * (4 + 4 + 4 + 4 + 3 + 2 + 1 + 0)
        assert stats.num_rollouts == 8 * 4
        load = service.target.load()
        assert load.num_passes < 0.5 * stats.num_target_passes, "roll-outs ran one after another"
        # Read once: the prompt, its end by each roll-out, and later what another of them wrote.
        assert load.num_prefill_rows == len(PROMPT) - 1 + 4 * (len(PROMPT) - 3 * BLOCK) + 6 * 3
        assert watched.replies["NeedPrefix"] == 0, "a roll-out did not go back by itself"
        assert await service.freed()


async def test_roll_outs_beyond_the_routers_places_wait(model: Path) -> None:
    async with serving(model) as service:
        services = replace(service.services, rollouts=RolloutPlaces(4))
        generator = SpeculativeGenerator(services, max_model_len=256)
        most = 0

        async def answer(number: int) -> None:
            nonlocal most
            async for _ in generator.generate(steered(f"r{number}"), IdDetokenizer()):
                most = max(most, service.target.stats().num_sessions)

        await asyncio.gather(*(answer(number) for number in range(3)))
        assert most == 1 + 4
        with pytest.raises(InvalidRequest, match="at most 4 are allowed here"):
            await anext(generator.generate(steered("s", candidates=5), IdDetokenizer()))
        assert await service.freed()


async def test_sessions_beside_it_have_their_own_text(model: Path) -> None:
    plain = make_request("p", PROMPT[:20], max_tokens=40, temperature=0.8, seed=9)
    async with serving(model) as service:
        alone, _, _ = await service.generate(plain)
        beside = replace(plain, request_id="q")
        (ids, _, _), *steered_ones = await asyncio.gather(
            service.generate(beside), *(service.generate(steered(f"r{i}")) for i in range(3))
        )
        assert ids == alone
        assert len({tuple(one[0]) for one in steered_ones}) == 1
        assert await service.freed()


async def test_a_draft_model_that_dies_ends_no_text(model: Path) -> None:
    request = steered("r", "cdsl", max_tokens=12, reward_threshold=0.0)
    limits = SessionLimits(queue_wait_s=0.5, rejoin_interval_s=0.05)
    async with serving(model, limits=limits) as service:
        deltas = []
        generator = service.generator.generate(request, IdDetokenizer())
        async for item in generator:
            deltas.append(item)
            if len(deltas) == 1:
                assert service.draft_pool is not None
                service.draft_pool.fail()
        finished = deltas[-1]
        assert finished.lookahead is not None
        assert finished.lookahead.states["accepted"] >= 1
        assert finished.lookahead.states["no_draft"] > 1
        assert finished.num_completion_tokens == 12


async def test_a_target_that_dies_ends_the_text_with_an_error(model: Path) -> None:
    limits = SessionLimits(failover_s=0.5, rejoin_interval_s=0.05)
    async with serving(model, limits=limits) as service:
        generator = service.generator.generate(steered("r", max_tokens=60), IdDetokenizer())
        await anext(generator)
        service.target_pool.fail()
        with pytest.raises(Unavailable, match="target"):
            await anext(generator)


async def test_a_client_that_leaves_frees_all_sessions(model: Path) -> None:
    async with serving(model) as service:
        generator = service.generator.generate(steered("r", max_tokens=60), IdDetokenizer())
        await anext(generator)
        assert service.target.stats().num_sessions == 5
        await generator.aclose()
        assert await service.freed()


async def test_a_bad_reward_touches_no_engine(model: Path) -> None:
    async with serving(model) as service:
        with pytest.raises(InvalidRequest, match=r"lookahead\.reward: kind"):
            await service.generate(steered("r", reward={"kind": "none"}))
        assert service.target.load().num_passes == 0


async def test_a_draft_model_may_be_named(model: Path) -> None:
    async def drafted(service: LocalService, name: str | None) -> int:
        request = steered(f"r-{name}", "cdsl")
        named = replace(request, speculation=replace(request.speculation, drafter=name))
        _, finished, _ = await service.generate(named)
        assert finished.lookahead is not None
        return finished.lookahead.num_draft_steps

    async with serving(model, further_drafts={"tiny": model}) as service:
        assert await drafted(service, "tiny") == await drafted(service, None) > 0
        with pytest.raises(InvalidRequest, match="draft_model, tiny"):
            await drafted(service, "other")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("method", ["cdlh", "cdsl"])
async def test_lossy_links_change_no_text(model: Path, method: str) -> None:
    async def texts(service: LocalService) -> list[list[int]]:
        asked = [steered(f"r{i}", method, reward_threshold=i / 8) for i in range(4)]
        answers = await asyncio.gather(*(service.generate(one) for one in asked))
        return [ids for ids, _, _ in answers]

    async with serving(model) as service:
        expected = await texts(service)
    faults = faults_of_every_kind()
    async with serving(model, **lossy_options(faults)) as service:
        assert await texts(service) == expected
        assert await service.freed()
    check_all_happened(faults)
