"""Requests to a router: over links that lose messages, beside known answers, near what is like."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
import pytest

from models.protocol.errors import ContextTooLong, InvalidRequest
from models.protocol.messages import EngineReply, EngineRequest, Open, Sampling, Verdict
from router.drafters.draft_model import POOL
from router.generator import SpeculativeGenerator
from router.limits import SessionLimits, SpeculationLimits
from router.lookahead.session import open_lookahead
from router.remote.closing import close_in_time
from router.services import Services
from router.types import Finished, GenerationRequest, LookaheadSettings, SpeculationSettings
from tests.fakes.pools import ScriptedPool
from tests.fakes.router import (
    AnsweringEngine,
    LetterDetokenizer,
    ScriptedEngine,
    continuation,
    letters,
)
from tests.fakes.sessions import NO_LOOKUP, PROMPT, Front, asked
from tests.router.remote.test_losses import ScoringProcess

LIMITS = SessionLimits(
    queue_wait_s=1.0,
    first_token_s=0.5,
    token_gap_s=0.5,
    draft_ms=200,
    resend_interval_s=0.002,
    rejoin_interval_s=0.005,
    failover_s=1.0,
    max_losses=4,
)


LOOKAHEAD = LookaheadSettings(method="cdsl", reward="{}", text_of=letters, candidates=2)


def request(
    request_id: str = "r", *, max_tokens: int = 60, k: int | None = None
) -> GenerationRequest:
    speculation = SpeculationSettings(num_speculative_tokens=k)
    return asked(request_id=request_id, max_tokens=max_tokens, speculation=speculation)


def front_of(
    target: ScriptedPool, draft: ScriptedPool | None, speculation: SpeculationLimits = NO_LOOKUP
) -> Front:
    return Front(target, draft, speculation=speculation, limits=LIMITS)


@pytest.mark.parametrize("has_draft", [False, True], ids=["lookup", "chain"])
@pytest.mark.parametrize("seed", range(4))
async def test_a_faulty_link_changes_no_text_where_known_answers_continue_the_drafts(
    seed: int, has_draft: bool
) -> None:
    target, draft = (ScriptedPool(seed=of, fault_rate=0.15) for of in (seed, seed + 100))
    front = front_of(target, draft if has_draft else None, SpeculationLimits())
    for number in range(3):
        ids, finished = await front.run(request(f"r{number}"))
        assert ids == continuation(PROMPT, 60)
    assert finished.speculation.num_accepted_by["suffix"] > 0


@pytest.mark.parametrize(
    ("salt", "verification", "temperature", "is_known"),
    [
        ("a", "coupled", 1.0, True),
        ("", "coupled", 1.0, False),
        ("b", "coupled", 1.0, False),
        ("a", "rejection", 1.0, False),
        ("a", "rejection", 0.0, True),
    ],
)
async def test_answers_are_drafted_from_by_those_who_may(
    salt: str, verification: str, temperature: float, is_known: bool
) -> None:
    """Of the same salt, and not where the text would depend on what an equal seed had chosen."""
    front = front_of(ScriptedPool(), None, SpeculationLimits())
    for name, cache_salt in (("first", "a"), ("second", salt)):
        sampling = Sampling(temperature=temperature, verification=verification)
        wanted = asked(request_id=name, cache_salt=cache_salt, sampling=sampling)
        ids, finished = await front.run(wanted)
        assert ids == continuation(PROMPT, 60)
    assert (finished.speculation.num_accepted_draft_tokens > 10) == is_known


async def test_a_faultless_session_sends_each_token_once() -> None:
    target, draft = ScriptedPool(), ScriptedPool()
    await front_of(target, draft).run(request(k=3))
    committed = len(PROMPT) + 60
    assert target.process.num_tokens_received <= committed
    assert draft.process.num_tokens_received <= committed
    assert all(lease.is_released for lease in target.leases + draft.leases)
    assert target.process.logs == {}
    assert draft.process.logs == {}


async def test_no_draft_at_all_is_plain_decoding() -> None:
    draft = ScriptedPool()
    draft.num_refusals_left = 10_000
    ids, finished = await front_of(ScriptedPool(), draft).run(request(k=4))
    assert ids == continuation(PROMPT, 60)
    assert finished.speculation.num_spec_steps == 0


async def test_a_client_that_goes_away_frees_both_engines() -> None:
    target, draft = ScriptedPool(), ScriptedPool()
    events = front_of(target, draft).generator.generate(request(k=2), LetterDetokenizer())
    await anext(events)
    await events.aclose()
    assert all(lease.is_released for lease in target.leases + draft.leases)
    assert target.process.logs == {}


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_closing_has_a_limit_also_where_nobody_waits_for_it_any_more(
    is_cancelled: bool,
) -> None:
    clock = asyncio.get_running_loop().time
    began_s, ended_s = clock(), 0.0

    class Hanging:
        async def close(self) -> None:
            nonlocal ended_s
            try:
                await asyncio.sleep(3600.0)
            finally:
                ended_s = clock()

    closings = set[asyncio.Task[None]]()
    closing = asyncio.create_task(close_in_time([Hanging()], closings))
    await asyncio.sleep(1.0)
    if is_cancelled:
        closing.cancel()
    await asyncio.sleep(9.0)
    assert ended_s - began_s == pytest.approx(5.0, abs=0.1)
    assert closing.cancelled() == is_cancelled
    assert closings == set()


async def test_prompt_and_max_tokens_must_fit_the_context() -> None:
    front = front_of(ScriptedPool(), None)
    with pytest.raises(ContextTooLong, match=r"3 tokens and max_tokens of 198 exceed .* 200"):
        await front.run(request(max_tokens=198))
    ids, _ = await front.run(request(max_tokens=197))
    assert len(ids) == 197


@pytest.mark.parametrize(
    ("field", "value"), [("max_tokens", -1), ("prompt_ids", ())], ids=["budget", "prompt"]
)
async def test_senseless_requests_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=field.removesuffix("_ids")):
        await front_of(ScriptedPool(), None).run(asked(**{field: value}))


class PlacedScriptedPool(ScriptedPool):
    """Notes the keys for which it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[str] = []

    def near(self, prefix_key: str) -> ScriptedPool:
        self.keys.append(prefix_key)
        return self


@pytest.mark.parametrize("key", ["", "begins"])
async def test_leases_are_asked_for_near_what_begins_alike_under_the_same_salt(key: str) -> None:
    target, draft = PlacedScriptedPool(), PlacedScriptedPool()
    for salt in ("a", "b"):
        wanted = asked(prefix_key=key, cache_salt=salt, adapter="lora")
        ids, _ = await front_of(target, draft).run(wanted)
        assert ids == continuation(PROMPT, 60)
    assert target.keys == (["lora a begins", "lora b begins"] if key else [])
    assert draft.keys == ([" a begins", " b begins"] if key else [])


@pytest.mark.parametrize("goes_first", [True, False])
async def test_engines_are_told_whose_prompt_goes_first(goes_first: bool) -> None:
    target, draft = ScriptedPool(), ScriptedPool()
    for pool in (target, draft):
        pool.process = AnsweringEngine(lambda message: None)
    await front_of(target, draft).run(asked(goes_first=goes_first))
    for pool in (target, draft):
        opened = [one for one in pool.process.received if isinstance(one, Open)]
        assert {one.goes_first for one in opened} == {goes_first}


async def test_look_aheads_too_are_asked_for_near_what_begins_alike() -> None:
    target, draft = PlacedScriptedPool(), PlacedScriptedPool()
    services = Services(
        target_pool=target,
        draft_pools={POOL: draft},
        constraint_pool=ScriptedPool(ScoringProcess),
        limits=LIMITS,
    )
    wanted = asked(prefix_key="begins", cache_salt="a", adapter="lora", lookahead=LOOKAHEAD)
    async with open_lookahead(wanted, services, LetterDetokenizer()):
        assert target.keys == ["lora a begins"] * 3, "the text and two roll-outs"
        assert draft.keys == [" a begins"]


class LongCacheEngine(ScriptedEngine):
    """Found more than any prompt in its cache."""

    def handle(self, message: EngineRequest) -> list[EngineReply]:
        replies = super().handle(message)
        cached = [reply for reply in replies if isinstance(reply, Verdict)]
        found = [msgspec.structs.replace(reply, num_cached_tokens=99) for reply in cached]
        return [*found] or replies


@pytest.mark.parametrize("lookahead", [None, replace(LOOKAHEAD, generation="plain")])
async def test_no_more_of_a_prompt_is_cached_than_there_is(
    lookahead: LookaheadSettings | None,
) -> None:
    services = Services(
        target_pool=ScriptedPool(LongCacheEngine),
        draft_pools={POOL: ScriptedPool()},
        constraint_pool=ScriptedPool(ScoringProcess),
        limits=LIMITS,
    )
    generator = SpeculativeGenerator(services, max_model_len=200)
    wanted = asked(lookahead=lookahead, max_tokens=4)
    *_, end = [event async for event in generator.generate(wanted, LetterDetokenizer())]
    assert isinstance(end, Finished)
    assert end.num_cached_tokens == end.num_prompt_tokens
