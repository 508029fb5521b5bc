"""Several draft models side by side: one text, and what each would have drafted is what it drafts.

Real engines; two draft models of random weights that disagree with each other and with the target.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from deployments.ingress.metrics import RequestMetrics
from deployments.serve.instruments import Meters
from router.drafters.draft_choice import pinned_draft
from router.limits import SessionLimits, SpeculationLimits
from router.stats import DraftReplay
from router.types import Delta, Finished, GenerationRequest
from tests.harness.local import (
    NO_LOOKUP,
    IdDetokenizer,
    LocalService,
    local_service,
    make_request,
)
from tests.harness.waiting import wait_until

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
NUM_TOKENS = 150  # three messages of a replay
NAMES = ("draft_model", "other")

Serving = Callable[..., AbstractAsyncContextManager[LocalService]]


@pytest.fixture
def serving(tiny_target: str, tiny_draft: str, good_draft: Path) -> Serving:
    """Serve both draft models; the options are those of `local_service`."""
    return functools.partial(
        local_service, Path(tiny_target), Path(tiny_draft), further_drafts={"other": good_draft}
    )


def request(name: str, temperature: float, **fields: object) -> GenerationRequest:
    compare = fields.pop("compare", False)
    penalty = fields.pop("presence_penalty", 0.0)
    asked = make_request(
        name,
        PROMPT,
        temperature=temperature,
        seed=5,
        max_tokens=NUM_TOKENS,
        **fields,  # type: ignore[arg-type]
    )
    sampling = type(asked.sampling)(
        temperature=temperature, seed=5, presence_penalty=float(str(penalty))
    )
    speculation = dataclasses.replace(asked.speculation, compare=bool(compare))
    return dataclasses.replace(asked, sampling=sampling, speculation=speculation)


def seen_rounds(deltas: list[Delta]) -> list[tuple[int, int, int]]:
    """Of each round with a draft: tokens before it, drafted, accepted."""
    found, place = [], 0
    for delta in deltas:
        if delta.num_draft_tokens:
            found.append((place, delta.num_draft_tokens, len(delta.token_ids) - 1))
        place += len(delta.token_ids)
    return found


def foretold(replay: DraftReplay, place: int, drafted: int) -> int:
    ahead = replay.matches[place : place + drafted]
    return ahead.index(False) if False in ahead else len(ahead)


async def run(service: LocalService, asked: GenerationRequest) -> tuple[list[Delta], Finished]:
    events = [event async for event in service.generator.generate(asked, IdDetokenizer())]
    deltas = [event for event in events if isinstance(event, Delta)]
    assert isinstance(events[-1], Finished)
    return deltas, events[-1]


@pytest.mark.parametrize("penalty", [0.0, 0.7], ids=["", "penalised"])
@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "seeded"])
async def test_what_a_draft_would_have_drafted_is_what_it_drafts(
    serving: Serving, temperature: float, penalty: float
) -> None:
    """Whoever drafted the answer, each draft model's replay of it foretells every round that the
    draft model has when it drafts itself."""
    async with serving() as service:
        rounds, replays, texts = {}, [], set()
        for name in NAMES:
            for k in (1, 4):
                deltas, end = await run(
                    service,
                    request(
                        f"{name}-{k}",
                        temperature,
                        drafter=name,
                        k=k,
                        compare=True,
                        presence_penalty=penalty,
                    ),
                )
                texts.add(tuple(token for delta in deltas for token in delta.token_ids))
                rounds[name, k] = seen_rounds(deltas)
                replays.append(end.speculation.replays)
        assert await service.freed()
    assert len(texts) == 1
    assert all(replay == replays[0] for replay in replays)
    assert set(replays[0]) == set(NAMES)
    for (name, k), seen in rounds.items():
        assert len(seen) > 10
        replay = replays[0][name]
        assert len(replay.matches) == NUM_TOKENS
        for place, drafted, accepted in seen[:-1]:
            assert drafted == min(k, NUM_TOKENS - place - 1)
            assert foretold(replay, place, drafted) == accepted
    first, second = (sum(replays[0][name].matches) for name in NAMES)
    assert first != second


def test_rounds_are_counted_from_what_matches() -> None:
    replay = DraftReplay((True, True, False, True, False, True))
    assert replay.accepted(1) == [1, 0, 1, 1]
    assert replay.accepted(2) == [2, 1, 1]
    assert replay.accepted(8) == [2, 1, 1]
    assert DraftReplay(()).accepted(3) == []


async def test_no_text_depends_on_who_is_chosen_and_what_is_compared_is_believed(
    serving: Serving,
) -> None:
    """Sessions that name nobody try both; acceptance of both is known though one drafted little."""
    async with serving() as service:
        ids, _, _ = await service.generate(request("plain", 1.0, k=0))
        for number in range(8):
            asked = request(f"any-{number}", 1.0, compare=number == 7)
            found, _, _ = await service.generate(asked)
            assert found == ids
        known = service.services.acceptance
        rates = {name: known[name, "free"].acceptances()[0] for name in NAMES}
        assert rates["other"] > rates["draft_model"] + 0.2
        assert await service.freed()


async def test_shares_of_the_traffic_are_pinned_and_change_while_it_serves(
    serving: Serving,
) -> None:
    """The same text from both halves; metrics count the draft tokens of each by its name."""
    halves = {"draft_model": 0.5, "other": 0.5}
    speculation = NO_LOOKUP.model_copy(update={"draft_shares": halves})
    metrics = RequestMetrics(Meters({"model_name": "m"}))
    async with serving(speculation=speculation) as service:
        drafted, texts = Counter[str](), set()
        for number in range(8):
            deltas, end = await run(service, request(f"half-{number}", 1.0, k=3))
            metrics.finished(0, end, 1.0)
            drafted.update(end.speculation.num_drafted_by)
            texts.add(tuple(token for delta in deltas for token in delta.token_ids))
            assert set(end.speculation.num_drafted_by) == {
                pinned_draft(NAMES, halves, f"half-{number}")
            }
        assert set(drafted) == set(NAMES)
        assert len(texts) == 1
        page = metrics.text().decode()
        for name, num_tokens in drafted.items():
            line = f'outrider:draft_tokens_total{{model_name="m",source="{name}"}} {num_tokens}.0'
            assert line in page
        all_other = speculation.model_copy(update={"draft_shares": {"other": 1.0}})
        service.generator.set_limits(all_other, SessionLimits(draft_ms=20_000))
        for number in range(8):
            _, end = await run(service, request(f"half-{number}", 0.0, k=3))
            assert set(end.speculation.num_drafted_by) == {"other"}


@pytest.mark.parametrize("dead", [None, "draft_model"], ids=["", "one-is-away"])
async def test_a_share_of_the_answers_is_compared_when_they_are_over(
    serving: Serving, dead: str | None
) -> None:
    speculation = SpeculationLimits(compare_share=1.0)
    async with serving(
        limits=SessionLimits(draft_ms=20_000, queue_wait_s=1.0),
        speculation=speculation,
    ) as service:
        if dead is not None:
            assert service.draft_pool is not None
            service.draft_pool.fail("killed")
        _, end = await run(service, request("whole", 1.0, k=2))
        assert end.speculation.replays == {}
        counts = service.services.comparison.counts
        await wait_until(lambda: len(counts) == (2 if dead is None else 1))
        assert set(counts) == ({*NAMES} if dead is None else {"other"})
        for one in counts.values():
            assert one.num_tokens == NUM_TOKENS
            assert NUM_TOKENS > one.num_rounds[1] > NUM_TOKENS / 2 - 1
        assert await service.freed()


async def test_a_rule_by_which_texts_depend_on_the_draft_has_one_draft(
    serving: Serving,
) -> None:
    async with serving() as service:
        for number in range(6):
            asked = make_request(
                f"ratio-{number}", PROMPT, temperature=1.0, k=3, verification="rejection"
            )
            _, end = await run(service, asked)
            assert set(end.speculation.num_drafted_by) == {"draft_model"}
