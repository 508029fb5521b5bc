"""Tokens beside a draft model's drafts, through router and engines: the same texts."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from deployments.local.pool import LocalEnginePool
from loadtest.report.prompts import demo_prompts
from models.config import EngineConfig
from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.protocol.messages import EngineReply, EngineRequest, Grammar
from router.limits import SessionLimits, SpeculationLimits
from router.planning.acceptance import RankHits
from router.ports import Lease
from router.stats import RoundStats
from tests.harness.local import (
    DEMO,
    NO_LOOKUP,
    LocalService,
    demo_grammar_host,
    demo_tokenizer,
    local_service,
    make_request,
)

CHAINS = NO_LOOKUP.model_copy(update={"max_num_side_tokens": 0})
WARM = 1.3  # at which the demo's draft model is often wrong
NUM_TOKENS = 60


class Counts:
    """Tokens beside drafts in all sessions."""

    def __init__(self) -> None:
        self.num_verified = self.num_accepted = 0
        self.are_many = asyncio.Event()  # some rounds of each stream


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    """Each candidate is worth its row, whatever is measured."""
    made, add_side = Counts(), RoundStats.add_side

    def noted(self: RoundStats, name: str, num_drafted: int, num_accepted: int) -> None:
        made.num_verified += num_drafted
        made.num_accepted += num_accepted
        if made.num_verified >= 40:
            made.are_many.set()
        add_side(self, name, num_drafted, num_accepted)

    monkeypatch.setattr(RoundStats, "add_side", noted)
    monkeypatch.setattr(RankHits, "rates", lambda self: [100.0] * 3)
    return made


async def texts(
    service: LocalService,
    temperature: float,
    *,
    k: int | None = None,
    **wanted: object,
) -> list[list[int]]:
    """Texts of some prompts, all at once."""

    async def one(index: int, prompt: list[int]) -> list[int]:
        request = make_request(
            f"{k}-{temperature}-{index}",
            prompt,
            k=k,
            temperature=temperature,
            seed=index,
            max_tokens=NUM_TOKENS,
            **wanted,  # type: ignore[arg-type]
        )
        ids, _, _ = await service.generate(request)
        return ids

    return await asyncio.gather(*(one(i, prompt) for i, prompt in enumerate(demo_prompts(4))))


@pytest.mark.parametrize("temperature", [0.0, WARM], ids=["greedy", "seeded"])
async def test_the_text_is_the_same(temperature: float, counts: Counts) -> None:
    found = {}
    for name, speculation in {"chains": CHAINS, "trees": NO_LOOKUP}.items():
        async with local_service(
            DEMO / "target", DEMO / "draft", speculation=speculation, pinned=4
        ) as service:
            plain = await texts(service, temperature, k=0)
            found[name] = await texts(service, temperature)
            assert found[name] == plain
            if name == "chains":
                assert counts.num_verified == 0
            assert await service.freed()
    assert counts.num_verified > counts.num_accepted > 3


async def test_with_suffix_decoding_and_with_heads_beside_them(counts: Counts) -> None:
    async with local_service(
        DEMO / "target",
        DEMO / "draft",
        speculation=SpeculationLimits(),
        heads=DEMO / "mtp",
        pinned=3,
    ) as service:
        plain = await texts(service, WARM, k=0)
        found = await texts(service, WARM)
        assert found == plain
        assert counts.num_accepted > 3


async def test_where_they_cannot_be_verified_none_are_asked_for(counts: Counts) -> None:
    """A fixed k, a grammar, the rejection rule."""
    async with local_service(
        DEMO / "target", DEMO / "draft", grammar_host=demo_grammar_host(), pinned=4
    ) as service:
        await texts(service, WARM, k=4)
        await texts(service, WARM, verification="rejection")
        grammar = Grammar(kind="regex", text="[a-z ]{10,30}")
        await texts(service, WARM, grammar=grammar, eos_ids=demo_tokenizer().eos_ids)
        assert counts.num_verified == 0


async def test_where_the_target_takes_none_they_are_not_asked_for(counts: Counts) -> None:
    async with local_service(DEMO / "target", DEMO / "draft", pinned=4) as service:
        service.target_pool.grant = msgspec.structs.replace(
            service.target_pool.grant, takes_trees=False
        )
        await texts(service, WARM)
        assert counts.num_verified == 0


class Replicas:
    """Leases on the first target that is not lost."""

    def __init__(self, first: LocalEnginePool) -> None:
        self.pools = [first]

    async def lease(
        self, session_id: str, *, timeout_s: float
    ) -> Lease[EngineRequest, EngineReply]:
        return await self.pools[0].lease(session_id, timeout_s=timeout_s)

    def lose(self) -> None:
        self.pools.pop(0).fail("killed")


def further_target(
    epoch: int, *, takes_trees: bool, monkeypatch: pytest.MonkeyPatch
) -> LocalEnginePool:
    runner = ModelRunner(
        EngineConfig(
            model_path=str(DEMO / "target"),
            dtype="bfloat16",
            max_model_len=1024,
            kv_cache_tokens=8192,
            block_size=64,
        )
    )
    pool = LocalEnginePool(
        TargetEngine(runner, NoMaskSource(), epoch=epoch), epoch=epoch, max_model_len=1024
    )
    if not takes_trees:  # and is asked to verify them, by a round that another was to have
        monkeypatch.setattr(type(runner), "takes_trees", property(lambda self: self is not runner))
    pool.grant = msgspec.structs.replace(pool.grant, takes_trees=takes_trees)
    return pool


@pytest.mark.parametrize("takes_trees", [False, True])
async def test_lost_replicas_change_no_text(
    takes_trees: bool, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target is lost under four streams, and so is the draft model, by turns."""
    replicas: list[Replicas] = []

    def link_to(name: str, pool: LocalEnginePool) -> object:
        if name != "target":
            return pool
        replicas.append(Replicas(pool))
        return replicas[0]

    limits = SessionLimits(draft_ms=20_000, rejoin_interval_s=0.05)
    async with local_service(
        DEMO / "target", DEMO / "draft", limits=limits, link_to=link_to, pinned=4
    ) as service:
        plain = await texts(service, WARM, k=0)
        second = further_target(2, takes_trees=takes_trees, monkeypatch=monkeypatch)
        replicas[0].pools.append(second)
        answering = asyncio.create_task(texts(service, WARM))
        await asyncio.wait_for(counts.are_many.wait(), 30)
        replicas[0].lose()
        before = counts.num_verified
        found = await answering
        assert found == plain
        assert (counts.num_verified > before + 20) == takes_trees
        await second.close()


async def test_a_draft_model_lost_changes_no_text(counts: Counts) -> None:
    async with local_service(DEMO / "target", DEMO / "draft", pinned=4) as service:
        plain = await texts(service, WARM, k=0)
        answering = asyncio.create_task(texts(service, WARM))
        await asyncio.wait_for(counts.are_many.wait(), 30)
        assert service.draft_pool is not None
        service.draft_pool.fail("killed")
        found = await answering
        assert found == plain


async def test_beside_a_draft_that_is_always_right_none_is_accepted(counts: Counts) -> None:
    async with local_service(DEMO / "target", DEMO / "target", pinned=4) as service:
        await texts(service, WARM)
        assert counts.num_verified > counts.num_accepted == 0
