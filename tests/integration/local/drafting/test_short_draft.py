"""A draft model that reads fewer tokens than its target, or has no room: real engines, tiny pair.

The pair's greedy text runs in a cycle, which prompt lookup knows after one turn.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from loadtest.gpu_day.random_pair import make_random_pair
from router.limits import SessionLimits, SpeculationLimits
from router.types import Finished
from tests.fakes.engines import random_prompt
from tests.harness.local import (
    NO_LOOKUP,
    IdDetokenizer,
    LocalService,
    local_service,
    make_request,
)

LOOKUP = SpeculationLimits(
    prompt_lookup_min=1, prompt_lookup_max=4, suffix_decoding_max_tree_depth=0
)
LIMITS = SessionLimits(draft_ms=20_000, rejoin_interval_s=0.02)
DRAFT_LEN = 160
NUM_TOKENS = 400


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    make_random_pair("tiny", folder)
    return folder


def num_draft_leases(service: LocalService) -> int:
    assert service.draft_pool is not None
    return service.draft_pool.stats().num_leases


async def run(
    service: LocalService,
    name: str,
    prompt_len: int,
    drafter: str | None,
    k: int | None = 4,
) -> tuple[list[int], Finished]:
    request = make_request(
        name,
        [1 + token for token in random_prompt(5, prompt_len)],
        max_tokens=NUM_TOKENS,
        k=k,
        drafter=drafter,
    )
    ids, finished, _ = await service.generate(request)
    return ids, finished


@pytest.mark.parametrize("prompt_len", [100, DRAFT_LEN + 40], ids=["grows", "starts-longer"])
async def test_beyond_the_drafts_context_prompt_lookup_goes_on(pair: Path, prompt_len: int) -> None:
    async with local_service(
        pair / "target",
        pair / "draft",
        speculation=LOOKUP,
        limits=LIMITS,
        draft_max_model_len=DRAFT_LEN,
    ) as service:
        plain_ids, plain = await run(service, "plain", prompt_len, None, k=0)
        lookup_ids, by_lookup = await run(service, "lookup", prompt_len, "ngram")
        assert num_draft_leases(service) == 0
        ids, finished = await run(service, "short", prompt_len, None)
        await asyncio.sleep(0.1)
        assert num_draft_leases(service) == 1
        assert service.draft is not None
        assert service.draft.load().num_prefill_rows <= DRAFT_LEN  # read once, or not at all
        assert ids == lookup_ids == plain_ids
        num_rounds = finished.speculation.num_rounds
        print(plain.speculation.num_rounds, by_lookup.speculation.num_rounds, num_rounds)
        assert by_lookup.speculation.num_rounds < 0.4 * NUM_TOKENS
        assert num_rounds < 1.2 * by_lookup.speculation.num_rounds + 10
        assert await service.freed()


async def test_a_draft_that_is_outgrown_gives_its_place_to_others_at_once(pair: Path) -> None:
    async with local_service(
        pair / "target",
        pair / "draft",
        speculation=NO_LOOKUP,
        limits=LIMITS,
        draft_max_model_len=DRAFT_LEN,
    ) as service:
        assert service.draft is not None
        prompt = random_prompt(5, 100)
        ids: list[int] = []
        num_drafting: list[tuple[int, int]] = []
        request = make_request("s", prompt, max_tokens=NUM_TOKENS, k=4)
        async for event in service.generator.generate(request, IdDetokenizer()):
            if isinstance(event, Finished):
                assert event.speculation.num_drafted_by["draft_model"] > 0
                assert event.speculation.num_rounds < NUM_TOKENS
                break
            ids.extend(event.token_ids)
            num_drafting.append((len(prompt) + len(ids), service.draft.load().num_sessions))
            await asyncio.sleep(0.001)
        assert max(num for length, num in num_drafting if length <= DRAFT_LEN) == 1
        assert {num for length, num in num_drafting if length > DRAFT_LEN + 50} == {0}
        assert num_draft_leases(service) == 1


async def test_without_room_lookup_fills_in_and_the_draft_model_comes_back(pair: Path) -> None:
    """An older session holds all of the draft's KV blocks for a while."""
    async with local_service(
        pair / "target",
        pair / "draft",
        speculation=LOOKUP,
        limits=LIMITS,
        block_size=16,
        draft_max_model_len=1024,
        draft_kv_cache_tokens=1024,
    ) as service:
        old = make_request("old", random_prompt(6, 900), max_tokens=100, k=4)
        events = service.generator.generate(old, IdDetokenizer())
        drafted = 0
        while drafted < 40:  # by then its draft model holds the prompt
            event = await anext(events)
            assert not isinstance(event, Finished)
            drafted += len(event.token_ids)
            await asyncio.sleep(0.01)
        num_leases = num_draft_leases(service)
        _, by_lookup = await run(service, "lookup", 200, "ngram")
        ids, starved = await run(service, "starved", 200, None)
        assert starved.speculation.num_drafted_by["ngram"] > 0
        assert starved.speculation.num_rounds < 1.2 * by_lookup.speculation.num_rounds + 10
        assert num_draft_leases(service) == num_leases + 1
        young = make_request("young", random_prompt(7, 200), max_tokens=600, k=4)
        freed = False
        async for event in service.generator.generate(young, IdDetokenizer()):
            if isinstance(event, Finished):
                assert event.speculation.num_drafted_by["draft_model"] > 0
                break
            await asyncio.sleep(0.005)
            if not freed:
                freed = True
                await events.aclose()
        assert num_draft_leases(service) == num_leases + 2
        assert len(ids) == NUM_TOKENS
