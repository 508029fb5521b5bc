"""Engine and target sessions over a link that loses, doubles, delays and reorders."""

from __future__ import annotations

import asyncio

import pytest

from models.protocol.errors import ContextTooLong, InvalidRequest, MaskUnavailable
from models.protocol.messages import EngineReply, EngineRequest, Failed, Open, Sampling, Verify
from models.protocol.token_sequence import TokenSequence
from router.drafters.draft_model import POOL
from router.limits import SessionLimits, SpeculationLimits
from router.lookahead.session import open_lookahead
from router.remote.engine import EngineClient
from router.remote.target import RemoteVerifier
from router.services import Services
from router.types import GenerationRequest, LookaheadSettings, SpeculationSettings
from tests.fakes.pools import ScriptedPool
from tests.fakes.router import AnsweringEngine, LetterDetokenizer, continuation, letters
from tests.fakes.sessions import NO_LOOKUP, OPENING, PROMPT, Front, asked
from tests.router.remote.test_losses import ScoringProcess
from tests.router.replies import verdict

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


async def test_repeats_of_old_parts_do_not_extend_the_wait_for_the_next() -> None:
    def first_part_only(message: EngineRequest) -> list[EngineReply] | None:
        if not isinstance(message, Verify):
            return None
        return [verdict(seq=message.seq, is_last=False)]

    target = ScriptedPool()
    target.process = AnsweringEngine(first_part_only)
    session = RemoteVerifier(EngineClient(target, OPENING, LIMITS), LIMITS)
    async with asyncio.timeout(5 * LIMITS.token_gap_s):
        parts = [said.part async for said in session.verify(TokenSequence(PROMPT), [], 3)]
    assert parts == [0]


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

    target = ScriptedPool()
    target.process = engine = AnsweringEngine(without_masks)
    session = RemoteVerifier(EngineClient(target, OPENING, LIMITS), LIMITS)
    committed = TokenSequence(PROMPT)
    with pytest.raises(MaskUnavailable):
        _ = [said async for said in session.verify(committed, [], 0)]
    verdicts = [said async for said in session.verify(committed, [], 0)]
    assert len(verdicts) == 1
    assert [type(message) for message in engine.received] == [Open, Verify, Open, Verify]


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
    lookahead = LookaheadSettings(method="cdsl", reward="{}", text_of=letters, candidates=2)
    wanted = asked(prefix_key="begins", cache_salt="a", adapter="lora", lookahead=lookahead)
    async with open_lookahead(wanted, services, LetterDetokenizer()):
        assert target.keys == ["lora a begins"] * 3, "the text and two roll-outs"
        assert draft.keys == [" a begins"]
