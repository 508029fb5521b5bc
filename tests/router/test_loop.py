from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from models.protocol.errors import ConstraintViolation, InvalidRequest, MaskUnavailable
from models.protocol.messages import DraftProbs, Proposal, Verdict
from models.protocol.token_sequence import TokenSequence
from router.drafters.draft_model import DRAFT_MODEL
from router.drafters.kind import DrafterKind
from router.drafters.ngram import NGRAM, NgramDrafter
from router.loop import run_session
from router.planning.fixed import FixedPlanner
from router.ports import Drafter, DrafterTraits
from router.round_log import RoundLog
from router.session import Session
from router.types import Delta
from tests.fakes.router import (
    ScriptedConstrainer,
    ScriptedDrafter,
    ScriptedVerifier,
    alone,
    continuation,
    letters,
)
from tests.fakes.sessions import PROMPT, scripted_session
from tests.router import replies
from tests.router.test_rounds import Observer


def parts(
    *,
    k: int = 4,
    drafter: Drafter | None = None,
    kind: DrafterKind = DRAFT_MODEL,
    planner: FixedPlanner | None = None,
    **options: Any,
) -> Session:
    """Make a session; `options` are those of `scripted_session`."""
    drafters = None if drafter is None else alone(drafter, kind)
    return scripted_session(planner or FixedPlanner(k, run_on=8), drafters=drafters, **options)


async def collect(session: Session) -> tuple[str, list[int], str]:
    text, finish = "", ""
    ids: list[int] = []
    async for delta in run_session(session):
        assert finish == "", "nothing follows the finish reason"
        text += delta.text
        ids.extend(delta.token_ids)
        finish = delta.finish_reason or ""
    return text, ids, finish


@pytest.mark.parametrize("k", [0, 1, 2, 5, 8])
@pytest.mark.parametrize(
    "pattern", [[None], [0], [1], [2, None, 0], [3]], ids=["perfect", "first", "second", "mix", "4"]
)
async def test_text_does_not_depend_on_k_or_acceptance(k: int, pattern: list[int | None]) -> None:
    session = parts(k=k, drafter=ScriptedDrafter(pattern))
    text, ids, finish = await collect(session)
    expected = continuation(PROMPT, 40)
    assert ids == expected
    assert text == letters(expected)
    assert finish == "length"
    assert session.committed.ids == [*PROMPT, *expected]


async def test_plain_decoding_lets_the_target_go_on_alone() -> None:
    verifier = ScriptedVerifier()
    await collect(parts(k=0, verifier=verifier, max_tokens=20))
    assert verifier.rounds == [(0, 8), (0, 8), (0, 1)]


async def test_the_last_round_ends_before_its_text_is_read() -> None:
    planner = Observer()
    async for delta in run_session(parts(planner=planner, max_tokens=12)):
        is_over = delta.finish_reason is not None
        assert planner.left_after == 12 * is_over
        assert [num for num, _ in planner.seen][2:] == [2] * is_over, "rounds of 5, 5 and 2"


class Ahead(ScriptedVerifier):
    """The next verdict is there already but after every fourth."""

    num_told = 0

    async def verify(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Verdict, None]:
        async with aclosing(super().verify(*args, **kwargs)) as verdicts:
            async for verdict in verdicts:
                self.num_told += 1
                self.has_more = self.num_told % 4 > 0 and not verdict.is_last
                yield verdict


async def deltas_of(session: Session) -> list[Delta]:
    return [delta async for delta in run_session(session)]


@pytest.mark.parametrize("num_own", [0, 2])
async def test_verdicts_that_are_there_already_go_out_together(num_own: int) -> None:
    constrainer, verifier = ScriptedConstrainer(), Ahead(num_own=num_own)
    session = parts(k=0, verifier=verifier, constrainer=constrainer)
    deltas = await deltas_of(session)
    expected = continuation(PROMPT, 40)
    assert [token for delta in deltas for token in delta.token_ids] == expected
    assert "".join(delta.text for delta in deltas) == letters(expected)
    assert deltas[-1].finish_reason == "length"
    assert session.watch.stats.snapshot().num_rounds == verifier.num_told
    assert len(deltas) <= verifier.num_told / 4 + len(verifier.rounds)
    assert constrainer.committed[:40] == expected
    assert constrainer.num_commits == len(deltas), "one question for all that goes out at once"


async def test_a_text_ends_within_what_goes_out_together() -> None:
    expected = letters(continuation(PROMPT, 40))
    session = parts(k=0, verifier=Ahead(), stop=[expected[5:7]])
    text, ids, finish = await collect(session)
    assert (text, len(ids), finish) == (expected[:5], 7, "stop")
    assert session.committed.ids == [*PROMPT, *ids]


async def test_what_has_come_goes_out_before_a_plan_with_others() -> None:
    """Others begin to draft while two verdicts are there; a third is not waited for."""

    class Awaited(FixedPlanner):
        @property
        def is_awaited(self) -> bool:  # type: ignore[override]
            return verifier.num_told == 2

    verifier = Ahead()
    session = parts(verifier=verifier, planner=Awaited(0, run_on=8), max_tokens=12)
    deltas = await deltas_of(session)
    assert [token for delta in deltas for token in delta.token_ids] == continuation(PROMPT, 12)
    assert (len(deltas[0].token_ids), len(verifier.rounds)) == (2, 3)


async def test_a_verdict_that_was_there_already_was_not_waited_for() -> None:
    class Late(Ahead):
        async def verify(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Verdict, None]:
            await asyncio.sleep(0.05)
            async with aclosing(super().verify(*args, **kwargs)) as verdicts:
                async for verdict in verdicts:
                    yield verdict

    session, began_s = parts(k=0, verifier=Late()), time.perf_counter()
    await deltas_of(session)
    took_ms = (time.perf_counter() - began_s) * 1e3
    assert session.watch.stats.snapshot().time.link_ms < took_ms


async def test_rounds_that_are_told_go_out_one_by_one() -> None:
    session = parts(k=0, verifier=Ahead(), max_tokens=12)
    session = dataclasses.replace(session, details=RoundLog(session.watch.stats))
    assert [len(delta.token_ids) for delta in await deltas_of(session)] == [1] * 12


async def test_drafts_of_the_targets_own_are_committed_and_counted() -> None:
    session = parts(k=0, verifier=ScriptedVerifier(num_own=2), max_tokens=20)
    text, ids, _ = await collect(session)
    assert ids == continuation(PROMPT, 20)
    assert text == letters(ids)
    stats = session.watch.stats.snapshot()
    # A first token alone, then three a step; the end of the text cuts the last step.
    assert stats.num_rounds == 8
    assert stats.num_drafted_by == {"heads": 7 * 3}
    assert stats.num_accepted_by == {"heads": 7 * 2}


async def test_a_draft_leaves_room_for_the_target_token() -> None:
    verifier = ScriptedVerifier()
    await collect(parts(k=8, drafter=ScriptedDrafter([None]), verifier=verifier, max_tokens=5))
    assert verifier.rounds == [(4, 0)]


async def test_a_lost_drafter_means_plain_rounds_and_the_same_text() -> None:
    drafter = ScriptedDrafter([None], fails_at=[1, 2])
    _, ids, _ = await collect(parts(drafter=drafter))
    assert ids == continuation(PROMPT, 40)


async def test_a_drafter_that_is_not_ready_is_not_asked() -> None:
    drafter = ScriptedDrafter([None])
    drafter.is_ready = False
    _, ids, _ = await collect(parts(drafter=drafter))
    assert drafter.num_calls == 0
    assert ids == continuation(PROMPT, 40)


async def test_where_nobody_will_draft_again_the_target_goes_on_alone() -> None:
    """As without a drafter: not one message for every second token."""
    drafter, verifier = ScriptedDrafter([None]), ScriptedVerifier()
    drafter.is_ready, drafter.is_over = False, True
    await collect(parts(drafter=drafter, verifier=verifier, max_tokens=20))
    assert verifier.rounds == [(0, 8), (0, 8), (0, 1)]


async def test_plain_steps_that_end_early_are_taken_up_again() -> None:
    verifier = ScriptedVerifier(end_parts_after=2)
    _, ids, _ = await collect(parts(k=0, verifier=verifier))
    assert ids == continuation(PROMPT, 40)


@pytest.mark.parametrize("k", [0, 3, 6])
async def test_eos_within_a_round_ends_the_text(k: int) -> None:
    verifier = ScriptedVerifier(eos_at=len(PROMPT) + 5)
    session = parts(k=k, drafter=ScriptedDrafter([None]), verifier=verifier)
    text, ids, finish = await collect(session)
    assert ids == [*continuation(PROMPT, 5), 0]
    assert text == letters(ids[:-1])
    assert finish == "stop"
    assert session.stops.num_tokens == 6


@pytest.mark.parametrize("k", [0, 1, 4, 7])
async def test_a_stop_string_counts_the_same_tokens_for_every_k(k: int) -> None:
    whole = letters(continuation(PROMPT, 40))
    session = parts(k=k, drafter=ScriptedDrafter([None, 1]), stop=[whole[9:12]])
    text, ids, finish = await collect(session)
    at = whole.find(whole[9:12])
    assert text == whole[:at]
    assert len(ids) == at + 3
    assert finish == "stop"


async def test_nothing_invalid_is_emitted() -> None:
    session = parts(k=4, drafter=ScriptedDrafter([None]), constrainer=ScriptedConstrainer(7))
    emitted: list[int] = []

    async def drain() -> None:
        async for delta in run_session(session):
            emitted.extend(delta.token_ids)

    with pytest.raises(ConstraintViolation, match="output position 7"):
        await drain()
    assert emitted == continuation(PROMPT, 40)[: len(emitted)]
    assert len(emitted) <= 7


async def test_the_grammar_sees_exactly_what_is_emitted() -> None:
    constrainer = ScriptedConstrainer()
    _, ids, _ = await collect(parts(drafter=ScriptedDrafter([2, None]), constrainer=constrainer))
    assert constrainer.committed == ids


@pytest.mark.parametrize("has_grammar", [False, True])
async def test_tokens_that_the_client_has_are_committed_without_a_pass(has_grammar: bool) -> None:
    expected = continuation(PROMPT, 700)
    constrainer = ScriptedConstrainer() if has_grammar else None
    verifier = ScriptedVerifier()
    session = parts(k=0, verifier=verifier, constrainer=constrainer, max_tokens=700)
    session = dataclasses.replace(session, resumed_ids=tuple(expected[:690]))
    turns: list[int] = []
    other = asyncio.create_task(_taking_turns(turns, session))
    deltas = await deltas_of(session)
    other.cancel()
    assert {512, 690} <= set(turns), "others have their turn in between"
    assert [token for delta in deltas for token in delta.token_ids] == expected
    assert "".join(delta.text for delta in deltas) == letters(expected)
    known = [len(delta.token_ids) for delta in deltas if delta.num_verdicts == 0]
    assert known == [512, 178]
    assert verifier.rounds == [(0, 8), (0, 0)], "only the rest takes passes"
    assert constrainer is None or constrainer.committed == expected


async def _taking_turns(turns: list[int], session: Session) -> None:
    while True:
        turns.append(len(session.generated))
        await asyncio.sleep(0)


async def test_tokens_that_the_client_has_may_end_the_text() -> None:
    expected = continuation(PROMPT, 40)
    whole, verifier = letters(expected), ScriptedVerifier()
    for tokens, text, reason in (
        ([*expected[:6], 0, 3], whole[:6], "stop"),
        (expected[:20], whole[:9], "stop"),
    ):
        session = parts(verifier=verifier, stop=[whole[9:12]])
        session = dataclasses.replace(session, resumed_ids=tuple(tokens))
        found, _, finish = await collect(session)
        assert (found, finish) == (text, reason)
    assert verifier.rounds == []


async def test_tokens_of_the_client_that_break_the_grammar_are_refused() -> None:
    session = parts(constrainer=ScriptedConstrainer(7))
    session = dataclasses.replace(session, resumed_ids=tuple(continuation(PROMPT, 20)))
    with pytest.raises(InvalidRequest, match=r"resume_token_ids: token .* position 7 breaks"):
        await collect(session)
    assert session.committed.ids == [*PROMPT]


class MaskLosingVerifier(ScriptedVerifier):
    def __init__(self, losses: int) -> None:
        super().__init__()
        self.losses = losses

    async def verify(self, committed, draft, run_on, draft_probs=None):  # type: ignore[no-untyped-def]
        if self.losses > 0:
            self.losses -= 1
            raise MaskUnavailable("scripted")
        async for verdict in super().verify(committed, draft, run_on):
            yield verdict


async def test_lost_masks_reopen_the_grammar_and_the_text_goes_on() -> None:
    constrainer = ScriptedConstrainer()
    session = parts(constrainer=constrainer, verifier=MaskLosingVerifier(3))
    _, ids, _ = await collect(session)
    assert constrainer.num_reopened == 3
    assert ids == continuation(PROMPT, 40)


async def test_masks_lost_for_good_fail_the_request() -> None:
    clock = asyncio.get_running_loop().time
    began_s = clock()
    with pytest.raises(MaskUnavailable, match=r"lost 7 times in a row, at most 6 .*: scripted"):
        await collect(parts(constrainer=ScriptedConstrainer(), verifier=MaskLosingVerifier(99)))
    assert 8.0 < clock() - began_s < 16.0, "a connection that broke has no time to come back"


async def test_statistics_count_what_happened() -> None:
    session = parts(k=3, drafter=ScriptedDrafter([None, 1]), max_tokens=12)
    await collect(session)
    stats = session.watch.stats.snapshot()
    assert stats.per_step_drafted == (3, 3, 3, 1)
    assert stats.per_step_accepted == (3, 1, 3, 1)
    assert stats.num_accepted_draft_tokens == 8
    assert stats.num_draft_tokens == 10
    assert stats.acceptance_histogram == (0, 2, 0, 2)
    assert stats.mean_acceptance_length == 1 + 8 / 4
    assert stats.draft_acceptance_rate == 0.8
    assert stats.time.draft_ms == pytest.approx(4.0)
    assert stats.time.verify_ms == pytest.approx(4.0)


async def test_a_drafted_eos_that_the_target_draws_counts_as_standing() -> None:
    """The engine answers it as its own token, so that nothing can follow it."""

    class EosVerifier(ScriptedVerifier):
        async def verify(self, committed, draft, run_on, draft_probs=None):  # type: ignore[no-untyped-def]
            yield replies.verdict(len(draft) - 1, draft[-1])

    class Spy(FixedPlanner):
        seen: tuple[int, int] = (0, 0)

        def observe(self, drafter: DrafterTraits, num_drafted: int, num_accepted: int) -> None:
            self.seen = (num_drafted, num_accepted)

    class EosDrafter(ScriptedDrafter):
        async def propose(self, committed: TokenSequence, num_draft_tokens: int) -> Proposal:
            proposal = await super().propose(committed, 2)
            return msgspec.structs.replace(proposal, tokens=[*proposal.tokens, 0])

    spy = Spy(3, run_on=8)
    _, ids, finish = await collect(
        parts(drafter=EosDrafter([None]), verifier=EosVerifier(), planner=spy)
    )
    assert spy.seen == (3, 3)
    assert ids[-1] == 0
    assert finish == "stop"


async def test_the_distributions_of_a_draft_go_with_it_to_the_target() -> None:
    class WithProbs(ScriptedDrafter):
        async def propose(self, committed: TokenSequence, num_draft_tokens: int) -> Proposal:
            proposal = await super().propose(committed, num_draft_tokens)
            size = 4 * len(proposal.tokens)
            probs = DraftProbs(num_pairs=1, token_ids=bytes(size), probs=b"%d" % self.num_calls)
            return msgspec.structs.replace(proposal, draft_probs=probs)

    verifier = ScriptedVerifier()
    session = parts(k=3, drafter=WithProbs([None, 1], fails_at=[1]), verifier=verifier)
    await collect(session)
    calls = [probs and int(probs.probs) for probs in verifier.draft_probs]
    assert calls[:3] == [1, None, 3]
    for (num_drafted, _), probs in zip(verifier.rounds, verifier.draft_probs, strict=True):
        assert (probs is None) == (num_drafted == 0)
        assert probs is None or len(probs.token_ids) == 4 * num_drafted


async def test_where_lookup_never_matches_the_target_goes_on_alone() -> None:
    verifier = ScriptedVerifier()
    drafter = NgramDrafter("s", min_len=3, max_len=4)
    session = parts(k=4, drafter=drafter, kind=NGRAM, verifier=verifier, max_tokens=30)
    _, ids, _ = await collect(session)
    assert ids == continuation(PROMPT, 30)
    assert verifier.rounds == [(0, n) for n in (1, 1, 2, 2, 3, 3, 4, 4, 1)]
    stats = session.watch.stats.snapshot()
    assert (stats.num_spec_steps, stats.num_draft_tokens) == (0, 0)


async def test_lookup_drafts_what_repeats_and_is_counted_by_name() -> None:
    class Repeating(ScriptedVerifier):
        """Says the same five tokens over and over."""

        def _next(self, ids: Sequence[int]) -> int:
            return 1 + len(ids) % 5

    verifier = Repeating()
    lookup = NgramDrafter("s", min_len=1, max_len=4)
    session = parts(k=4, drafter=lookup, kind=NGRAM, verifier=verifier)
    _, ids, _ = await collect(session)
    assert ids == [1 + (3 + position) % 5 for position in range(40)]
    stats = session.watch.stats.snapshot()
    assert stats.num_drafted_by == {"ngram": stats.num_draft_tokens}
    assert stats.draft_acceptance_rate > 0.8
    assert len(verifier.rounds) < 16


class _CachedPrompt(ScriptedVerifier):
    """Says of each verdict that it found 3, 4, 5, ... tokens in its cache."""

    async def verify(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Verdict, None]:
        async with aclosing(super().verify(*args, **kwargs)) as verdicts:
            async for verdict in verdicts:
                self.num_cached = getattr(self, "num_cached", 2) + 1
                yield msgspec.structs.replace(verdict, num_cached_tokens=self.num_cached)


@pytest.mark.parametrize("k", [0, 2])
async def test_the_first_verdict_says_how_much_of_the_prompt_was_cached(k: int) -> None:
    session = parts(k=k, verifier=_CachedPrompt(), drafter=ScriptedDrafter([None]))
    await collect(session)
    assert session.watch.stats.num_cached_tokens == 3
