"""Rules that a person sets for rounds without drafts, through whole sessions in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing

import pytest

from models.heads.config import TargetHeads
from models.protocol.messages import EngineReply, EngineRequest, Sampling, Verify
from router.drafters.rules import LiveSessions, max_batch_size, why_never
from router.limits import SessionLimits, SpeculationLimits
from router.types import (
    Delta,
    Finished,
    GenerationRequest,
    RoundDetails,
    SpeculationSettings,
)
from tests.fakes.pools import ScriptedPool
from tests.fakes.router import AnsweringEngine, LetterDetokenizer, continuation
from tests.fakes.sessions import NO_LOOKUP, PROMPT, Front, asked

K = 3


def allowed(**rules: object) -> SpeculationLimits:
    """Drafts of a fixed length by a draft model alone, under the given rules."""
    values = NO_LOOKUP.model_dump() | {"num_speculative_tokens": K}
    return SpeculationLimits.model_validate(values | rules)


def request(
    *, temperature: float = 1.0, max_tokens: int = 40, batch: int = 0, name: str = "r"
) -> GenerationRequest:
    return asked(
        request_id=name,
        sampling=Sampling(temperature=temperature),
        max_tokens=max_tokens,
        speculation=SpeculationSettings(details=True, disable_by_batch_size=batch),
    )


class PacedFront(Front):
    """A router whose streams the draft model has time to join."""

    def __init__(self, speculation: SpeculationLimits, heads: TargetHeads | None = None) -> None:
        self.target, self.draft = ScriptedPool(), ScriptedPool()
        super().__init__(
            self.target, self.draft, max_model_len=400, speculation=speculation, heads=heads
        )

    async def stream(self, wanted: GenerationRequest) -> AsyncGenerator[Delta | Finished, None]:
        """The events of a request, at a pace."""
        async with aclosing(self.generator.generate(wanted, LetterDetokenizer())) as events:
            async for event in events:
                await asyncio.sleep(0.01)
                yield event

    async def rounds(self, wanted: GenerationRequest) -> list[RoundDetails]:
        """All rounds of a request, whose text is as it always is."""
        ids: list[int] = []
        found: list[RoundDetails] = []
        async for event in self.stream(wanted):
            if isinstance(event, Delta):
                assert event.details is not None
                ids += event.token_ids
                found.append(event.details.round)
        assert ids == continuation(PROMPT, wanted.max_tokens)
        return found


def reasons(rounds: list[RoundDetails]) -> list[str]:
    return [each.why.reason for each in rounds if each.why is not None]


def num_drafted(rounds: list[RoundDetails]) -> int:
    return sum(segment.num_tokens for each in rounds for segment in each.segments)


@pytest.mark.parametrize(
    ("rules", "wanted", "why"),
    [
        ({}, request(temperature=2.0, max_tokens=1), ""),
        ({"disable_above_temperature": 1.0}, request(temperature=1.0), ""),
        (
            {"disable_above_temperature": 1.0},
            request(temperature=1.2),
            "off: temperature 1.2 above 1",
        ),
        ({"disable_above_temperature": 0.0}, request(temperature=0.0), ""),
        (
            {"disable_above_temperature": 0.0},
            request(temperature=0.1),
            "off: temperature 0.1 above 0",
        ),
        ({"disable_below_max_tokens": 20}, request(max_tokens=20), ""),
        ({"disable_below_max_tokens": 20}, request(max_tokens=19), "off: max_tokens 19 below 20"),
    ],
)
async def test_a_request_past_a_rule_has_no_drafts_and_is_told_why(
    rules: dict[str, float], wanted: GenerationRequest, why: str
) -> None:
    front = PacedFront(allowed(**rules))
    assert why_never(wanted, allowed(**rules)) == why
    rounds = await front.rounds(wanted)
    if why:
        assert set(reasons(rounds)) == {why}
        assert num_drafted(rounds) == 0
        assert front.draft.leases == []  # no draft model read its prompt
    elif wanted.max_tokens > 1:
        assert num_drafted(rounds) > 0


async def test_beyond_a_batch_size_rounds_are_plain_and_those_after_it_draft_again() -> None:
    front = PacedFront(allowed(disable_by_batch_size=2))

    async def next_round(stream: AsyncGenerator[Delta | Finished, None]) -> RoundDetails:
        while True:
            event = await anext(stream)
            assert isinstance(event, Delta)
            assert event.details is not None
            if event.details.round.why is not None:
                return event.details.round

    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(
                aclosing(front.stream(request(name=name, max_tokens=150)))
            )
            for name in "abc"
        ]
        for stream in streams[:2]:
            await next_round(stream)  # without a draft: the draft model is being connected to
            assert num_drafted([await next_round(stream)]) == K
        await next_round(streams[2])
        for stream in streams:  # all three run now
            assert reasons([await next_round(stream)]) == ["off: batch size 3 above 2"]
        await streams[0].aclose()
        for stream in streams[1:]:
            await next_round(stream)  # the last one was never connected to the draft model
            later = await next_round(stream)
            assert reasons([later]) == ["fixed"]
            assert num_drafted([later]) == K


@pytest.mark.parametrize(
    ("asked", "limit", "most"), [(0, 0, 0), (0, 4, 4), (2, 0, 2), (2, 4, 2), (9, 4, 4)]
)
def test_a_request_may_set_a_lower_batch_size_and_no_higher_one(
    asked: int, limit: int, most: int
) -> None:
    assert max_batch_size(request(batch=asked), allowed(disable_by_batch_size=limit)) == most


async def test_a_rule_of_a_request_holds_for_that_request_alone() -> None:
    front = PacedFront(allowed())
    async with aclosing(front.stream(request(name="other", max_tokens=300))) as other:
        await anext(other)
        assert set(reasons(await front.rounds(request(batch=1)))) == {"off: batch size 2 above 1"}
        assert num_drafted(await front.rounds(request())) > 0


async def test_rules_change_while_the_router_serves() -> None:
    front = PacedFront(allowed())
    assert num_drafted(await front.rounds(request(temperature=1.5))) > 0
    changed = allowed(disable_above_temperature=1.0)
    front.generator.set_limits(changed, SessionLimits())
    assert num_drafted(await front.rounds(request(temperature=1.5))) == 0
    assert num_drafted(await front.rounds(request(temperature=0.5))) > 0


@pytest.mark.parametrize("temperature", [0.5, 1.5])
async def test_a_target_is_not_asked_for_drafts_of_its_own_either(temperature: float) -> None:
    limits = allowed(disable_above_temperature=1.0, num_speculative_tokens="adaptive")
    front = PacedFront(limits, heads=TargetHeads("medusa", 4))
    seen: list[Verify] = []

    def answer(message: EngineRequest) -> list[EngineReply] | None:
        if isinstance(message, Verify):
            seen.append(message)
        return None

    front.target.process = AnsweringEngine(answer)
    await front.rounds(request(temperature=temperature))
    assert {message.own_drafts for message in seen} == {temperature < 1.0}


def test_sessions_count_where_they_are_and_those_without_a_target_everywhere() -> None:
    live = LiveSessions()
    where = {"a": "one", "b": "one", "c": "two", "d": ""}
    with live.joined(lambda: where["a"]), live.joined(lambda: where["b"]):
        with live.joined(lambda: where["c"]), live.joined(lambda: where["d"]):
            assert (live.num_on("one"), live.num_on("two"), live.num_on("three")) == (3, 2, 1)
            assert live.num_on("") == 2  # the emptier of both, and itself
            where["b"] = "two"  # its target was lost
            assert (live.num_on("one"), live.num_on("two")) == (2, 3)
        assert (live.num_on("one"), live.num_on("two")) == (1, 1)
    assert live.num_on("one") == 0
