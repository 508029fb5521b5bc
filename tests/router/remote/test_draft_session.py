"""A draft model that joins, is late, or has no room: what is asked of it, and its lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest

from models.protocol.errors import Unavailable
from models.protocol.messages import (
    Close,
    Cut,
    EngineReply,
    EngineRequest,
    Failed,
    Open,
    Proposal,
    Propose,
)
from models.protocol.token_sequence import TokenSequence
from router.limits import SessionLimits
from router.remote.draft import RemoteDrafter
from router.remote.engine import EngineClient
from tests.fakes.pools import ScriptedPool
from tests.fakes.router import TIMING, AnsweringEngine, continuation
from tests.fakes.sessions import OPENING, PROMPT

LIMITS = SessionLimits(
    queue_wait_s=1.0,
    first_token_s=0.5,
    token_gap_s=0.5,
    draft_ms=200,
    resend_interval_s=0.1,
    rejoin_interval_s=0.02,
)
WAIT_S = 5.0


class EmptyAnswers:
    """Answers `Propose` by an empty proposal while `cut` says why, at most `most` times."""

    def __init__(self, cut: Cut, most: int = 1000) -> None:
        self.cut: Cut = cut
        self.most = most
        self.asked: list[Propose] = []
        self.asked_s: list[float] = []

    def __call__(self, message: EngineRequest) -> list[EngineReply] | None:
        if not isinstance(message, Propose) or not self.cut:
            return None
        self.asked.append(message)
        self.asked_s.append(asyncio.get_running_loop().time())
        if len(self.asked) > self.most:
            return None
        empty = Proposal(
            session_id="s", seq=message.seq, tokens=[], timing=TIMING, step_ms=0.1, cut=self.cut
        )
        return [empty]


Answer = Callable[[EngineRequest], list[EngineReply] | None]


def started(
    answers: Answer = lambda message: None, num_refusals: int = 0
) -> tuple[RemoteDrafter, ScriptedPool, TokenSequence]:
    pool = ScriptedPool()
    pool.process, pool.num_refusals_left = AnsweringEngine(answers), num_refusals
    committed = TokenSequence(PROMPT)
    session = RemoteDrafter(EngineClient(pool, OPENING, LIMITS), LIMITS, committed)
    session.start()
    return session, pool, committed


async def joined(session: RemoteDrafter) -> None:
    await asyncio.wait_for(session.joined(), WAIT_S)


async def test_a_session_that_is_closed_while_it_joins_stops_trying() -> None:
    session, pool, _ = started(num_refusals=10_000)
    await asyncio.sleep(0.1)
    await session.close()
    left = pool.num_refusals_left
    assert left < 10_000
    await asyncio.sleep(10 * LIMITS.rejoin_interval_s)
    assert pool.num_refusals_left == left


async def test_a_long_prefill_is_not_cut_short_and_counts_only_when_done() -> None:
    answers = EmptyAnswers("deadline", most=1)
    session, _, committed = started(answers)
    await joined(session)
    assert session.is_ready
    assert len(answers.asked) == 2
    assert answers.asked[0].deadline_ms == LIMITS.first_token_s * 1e3
    await session.propose(committed, 2)
    assert answers.asked[-1].deadline_ms < LIMITS.draft_s * 1e3
    await session.close()


async def test_a_draft_that_was_only_late_keeps_its_lease_and_cache() -> None:
    is_late = False

    def keep_back(message: EngineRequest) -> list[EngineReply] | None:
        return [] if is_late and isinstance(message, Propose) else None

    session, pool, committed = started(keep_back)
    await joined(session)
    is_late = True
    with pytest.raises(Unavailable, match="no draft within"):
        await session.propose(committed, 2)
    assert not session.is_ready
    is_late = False
    await joined(session)
    assert session.is_ready
    assert [type(message) for message in pool.process.received].count(Open) == 1
    assert not any(isinstance(message, Close) for message in pool.process.received)
    await session.close()


async def test_without_room_it_asks_again_after_growing_pauses_and_keeps_its_lease() -> None:
    answers = EmptyAnswers("starved")
    session, pool, committed = started(answers)
    async with asyncio.timeout(WAIT_S):
        while len(answers.asked) < 6:  # noqa: ASYNC110  # a script
            await asyncio.sleep(0.005)
    assert not session.is_ready
    assert not session.is_over
    pauses = [b - a for a, b in pairwise(answers.asked_s)]
    assert pauses[:4] == pytest.approx([0.02 * 2**i for i in range(4)], rel=0.21)
    answers.cut = ""
    await joined(session)
    assert session.is_ready
    proposal = await session.propose(committed, 2)
    assert proposal.tokens == continuation(committed.ids, 2)
    assert len(pool.leases) == 1
    assert [type(message) for message in pool.process.received].count(Open) == 1
    await session.close()


async def test_who_runs_out_of_room_is_not_asked_in_every_round() -> None:
    answers = EmptyAnswers("")
    session, pool, committed = started(answers)
    await joined(session)
    answers.cut = "starved"
    proposal = await session.propose(committed, 2)
    assert (proposal.tokens, proposal.cut) == ([], "starved")
    assert not session.is_ready
    with pytest.raises(Unavailable, match="not ready"):
        await session.propose(committed, 2)
    assert len(answers.asked) == 1
    answers.cut = ""
    await joined(session)
    assert session.is_ready
    assert len(pool.leases) == 1
    await session.close()


async def test_a_text_that_replicas_refuse_is_not_sent_for_ever() -> None:
    """Say, one with a token that the draft model has not."""
    refused: list[Propose] = []

    def refuse(message: EngineRequest) -> list[EngineReply] | None:
        if not isinstance(message, Propose):
            return None
        refused.append(message)
        text = "token ids must be within 0..7, got 2..9"
        return [Failed(session_id="s", seq=message.seq, code="invalid", message=text)]

    session, pool, _ = started(refuse)
    await joined(session)
    await asyncio.sleep(10 * LIMITS.rejoin_interval_s)
    assert (session.is_ready, session.is_over) == (False, True)
    assert [lease.is_released for lease in pool.leases] == [True] * 3
    assert len(refused) == 3
    await session.close()


async def test_a_draft_model_that_is_always_late_gets_the_prompt_less_and_less_often() -> None:
    """It reads the prompt each time, and then drafts too slowly."""
    began_s: list[float] = []

    def slow(message: EngineRequest) -> list[EngineReply] | None:
        if isinstance(message, Open):
            began_s.append(asyncio.get_running_loop().time())
        is_read = isinstance(message, Propose) and message.num_draft_tokens == 1
        if isinstance(message, Propose) and (not is_read or message.base_len > 0):
            return []
        return None

    session, pool, committed = started(slow)
    async with asyncio.timeout(4 * WAIT_S):
        while len(began_s) < 6:
            await joined(session)
            with pytest.raises(Unavailable):
                await session.propose(committed, 2)
            await asyncio.sleep(0)
    gaps = [b - a for a, b in pairwise(began_s)]
    waits_s = 2 * LIMITS.draft_s  # for the draft, and to see whether it comes back
    assert gaps[4] - waits_s > 4 * LIMITS.rejoin_interval_s
    assert len(pool.leases) == len(began_s)
    await session.close()


@pytest.mark.parametrize("is_early", [True, False], ids=["from-the-start", "later"])
async def test_a_text_the_draft_model_cannot_read_ends_the_lease_for_good(is_early: bool) -> None:
    """Also where the grant did not say how much it can read."""
    answers = EmptyAnswers("context" if is_early else "")
    session, pool, committed = started(answers)
    if not is_early:
        await joined(session)
        answers.cut = "context"
        with pytest.raises(Unavailable, match="no room for a text of 3 tokens"):
            await session.propose(committed, 2)
    await joined(session)
    assert (session.is_ready, session.is_over) == (False, True)
    await asyncio.sleep(4 * LIMITS.rejoin_interval_s)
    assert [lease.is_released for lease in pool.leases] == [True]
    assert isinstance(pool.process.received[-1], Close)
    assert len(answers.asked) <= 2
    await session.close()


@pytest.mark.parametrize("num_right", [0, 1, 2])
async def test_behind_the_beginning_of_a_chain_it_knows_what_of_that_stood(num_right: int) -> None:
    """What is asked next names exactly the tokens that the replica holds: none is sent twice."""
    session, pool, committed = started()
    await joined(session)
    truth = continuation(PROMPT, 9)
    front = [*truth[:num_right], *(0 for _ in range(2 - num_right))]
    text = committed.followed_by(front)
    proposal = await session.propose(text, 3)
    assert proposal.tokens == continuation(text.ids, 3)
    num_new = 6 if num_right == 2 else num_right + 1  # three drafted ones and one more, or one
    committed.extend(truth[:num_new])
    proposal = await session.propose(committed, 2)
    assert proposal.tokens == truth[num_new : num_new + 2]
    [_, behind, last] = [m for m in pool.process.received if isinstance(m, Propose)]
    assert behind.base_len + len(behind.tokens) == len(PROMPT) + 2
    # The replica wrote no KV for the last token that it drafted.
    assert last.base_len == len(PROMPT) + min(num_right, 1) + (3 if num_right == 2 else 0)
    await session.close()
