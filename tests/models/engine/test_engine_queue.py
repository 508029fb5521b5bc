"""Waiting in an engine: signs of life, its load, and two hundred sessions on far too few blocks."""

from __future__ import annotations

import random
from collections import deque

import pytest
from torch import Tensor

from models.engine.draft import DraftEngine
from models.engine.load import EngineLoad
from models.engine.runner import SequenceRows
from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.protocol.messages import EngineReply, Queued, Sampling, Verdict
from tests.cases.kv_tokens import num_kv_tokens
from tests.cases.messages import opening, proposing, verifying
from tests.fakes.engines import (
    BLOCK,
    EPOCH,
    Client,
    FakeClock,
    Link,
    drain,
    make_draft,
    make_runner,
    make_target,
    random_prompt,
)
from tests.models.engine.asked import TickingClock

pytestmark = pytest.mark.every_engine

GREEDY = Sampling(temperature=0.0)


def send(engine: TargetEngine, name: str, seq: int, ids: list[int], *, run_on: int = 0) -> None:
    engine.submit(opening(name, GREEDY, len(ids)), name)
    engine.submit(verifying(name, seq, ids, [], run_on=run_on), name)


def test_who_waits_for_blocks_hears_so_until_there_are_some() -> None:
    clock = FakeClock()
    engine = TargetEngine(make_runner(kv_cache_tokens=96), NoMaskSource(), EPOCH, clock=clock)
    send(engine, "old", 1, random_prompt(1, 80))
    assert [type(reply) for reply in drain(engine)] == [Verdict]
    send(engine, "young", 5, random_prompt(2, 40))
    assert engine.step() == []
    assert not engine.has_work
    heard: list[tuple[object, EngineReply]] = []
    for _ in range(40):
        clock.now += 0.1
        if engine.has_work:
            heard += engine.step()
    assert len(heard) in (3, 4)  # one a second, or a look later
    assert set(heard) == {("young", Queued(session_id="young", seq=5))}
    assert (engine.load().num_waiting, engine.load().num_running) == (1, 0)
    assert engine.load().num_waiting_tokens == 39
    engine.close("old")
    assert [type(reply) for reply in drain(engine)] == [Verdict]
    clock.now += 100.0
    assert not engine.has_work  # nobody waits any more


def test_the_time_in_passes_is_summed() -> None:
    clock = FakeClock()
    engine = TargetEngine(
        make_runner(kv_cache_tokens=6 * BLOCK), NoMaskSource(), EPOCH, clock=clock
    )
    assert engine.load() == EngineLoad(num_free_blocks=6, num_blocks=6, block_size=BLOCK)
    forward = engine.runner.forward

    seen = []  # while the pass runs

    def slow_forward(rows: list[SequenceRows]) -> Tensor:
        clock.now += 0.25
        seen.append(engine.pass_rows)
        return forward(rows)

    engine.runner.forward = slow_forward  # type: ignore[method-assign]
    try:
        send(engine, "a", 1, random_prompt(1, 40), run_on=3)
        clock.now += 7.0  # waiting is not busy
        drain(engine)
    finally:
        engine.runner.forward = forward  # type: ignore[method-assign]
    load = engine.load()
    assert (load.num_passes, load.passes_s) == (4, 1.0)
    assert (load.num_prefill_rows, load.num_decode_rows) == (39, 4)
    assert seen == [40, 1, 1, 1]
    engine.step()
    assert engine.pass_rows == 0
    assert load.kv_use == 1 - (6 - -(-43 // BLOCK)) / 6  # 40 + 3 tokens
    assert num_kv_tokens(engine) == 43


def test_a_repeated_message_gets_no_stored_notice() -> None:
    clock = FakeClock()
    engine = TargetEngine(make_runner(kv_cache_tokens=96), NoMaskSource(), EPOCH, clock=clock)
    send(engine, "old", 1, random_prompt(1, 80))
    drain(engine)
    prompt = random_prompt(2, 40)
    send(engine, "young", 5, prompt)
    clock.now += 1.0
    assert [type(reply) for _, reply in engine.step()] == [Queued]
    engine.submit(verifying("young", 5, prompt, []), "young")
    assert engine.step() == []
    engine.close("old")
    (verdict,) = drain(engine)
    engine.submit(verifying("young", 5, prompt, []), "young")
    assert drain(engine) == [verdict]


@pytest.mark.parametrize("kind", [TargetEngine, DraftEngine])
def test_a_long_prompt_hears_that_it_is_worked_on(kind: type[TargetEngine | DraftEngine]) -> None:
    runner = make_runner(max_num_batched_tokens=8)
    engine = kind(runner, NoMaskSource(), EPOCH, clock=TickingClock(0.1))
    prompt = random_prompt(1, 200)
    engine.submit(opening("s", GREEDY, len(prompt)), "s")
    message = verifying("s", 1, prompt, [])
    if kind is DraftEngine:
        message = proposing("s", 1, prompt, 1)
    engine.submit(message, "s")
    replies = drain(engine)
    assert [type(reply) for reply in replies[:-1]] == [Queued] * (len(replies) - 1)
    assert len(replies) > 3
    assert not isinstance(replies[-1], Queued)
    done = [reply.num_rows_done for reply in replies if isinstance(reply, Queued)]
    assert done == sorted(set(done))  # each says how far it has come since the last
    assert 0 < done[0] < done[-1] < len(prompt)


def test_shared_tokens_count_once_and_rows_by_kind() -> None:
    engine = make_target()
    prompt = random_prompt(3, 40)
    send(engine, "a", 1, prompt, run_on=4)
    drain(engine)
    load = engine.load()
    assert (load.num_prefill_rows, load.num_decode_rows) == (39, 5)
    assert (num_kv_tokens(engine), load.num_running, load.num_waiting) == (44, 0, 0)
    send(engine, "b", 1, prompt)  # finds two blocks of the prompt in the prefix cache
    drain(engine)
    assert num_kv_tokens(engine) == 44 + 40 - 32
    engine.close("a")
    assert num_kv_tokens(engine) == 40
    engine.close("b")


def test_the_text_does_not_depend_on_how_prompts_are_cut() -> None:
    """Streams run while prompts of others are computed, with passes and budgets of all sizes."""
    prompts = [random_prompt(40 + i, 30 + 35 * i) for i in range(5)]
    sampling = [Sampling(seed=i, temperature=(0.0, 0.9)[i % 2]) for i in range(5)]
    texts = set()
    num_ticks = set()
    for max_rows, slowdown in [(64, 1.01), (64, 50.0), (256, 2.0), (24, 2.0)]:
        runner = make_runner(max_num_batched_tokens=max_rows, max_prefill_slowdown=slowdown)
        clock = TickingClock(0.1)
        engine = TargetEngine(runner, NoMaskSource(), EPOCH, clock=clock, queued_interval_s=1e6)
        link = Link(engine)
        clients = [
            Client(f"s{i}", prompts[i], sampling[i], 25, link, run_on=lambda: 3) for i in range(2)
        ]
        waiting = deque(range(2, 5))
        ticks = 0
        while not all(client.is_done for client in clients) or waiting:
            if waiting and len(clients[-1].text) > 2:
                i = waiting.popleft()
                clients.append(Client(f"s{i}", prompts[i], sampling[i], 25, link))
            replies = link.tick()
            ticks += 1
            for client in clients:
                client.on_replies([], replies)
        texts.add(tuple(tuple(client.text) for client in clients))
        num_ticks.add(ticks)
        for client in clients:
            client.close()
    assert len(texts) == 1
    assert len(num_ticks) > 2  # they were cut in different ways


# --- two hundred sessions ---------------------------------------------------------------------


class Crowd:
    """Random sessions that come, are cancelled or end, over engines with too few blocks."""

    def __init__(self, target: Link, draft: Link | None, *, seed: int, num_sessions: int) -> None:
        self._links = [target, *([] if draft is None else [draft])]
        self._random = random.Random(seed)
        choose = self._random
        self._make = []
        for i in range(num_sessions):
            is_rejection = draft is not None and i % 4 == 3
            terms = {
                "session_id": f"s{i}",
                "prompt": random_prompt(1000 + i, choose.randint(1, 90)),
                "sampling": Sampling(
                    seed=i,
                    temperature=choose.choice([0.0, 0.8, 1.0]),
                    verification="rejection" if is_rejection else "coupled",
                ),
                "num_tokens": choose.randint(1, 30),
                "draft_link": draft,
                "num_draft_tokens": lambda: choose.choice([0, 1, 2, 4, 7]),
                "run_on": lambda: choose.choice([0, 0, 2, 6]),
                "patience_ticks": 10**6,
            }
            self._make.append((terms, choose.random() < 0.15))
        self._target = target

    def run(self) -> list[tuple[Client, bool]]:
        """All sessions, and whether each was cancelled."""
        choose = self._random
        to_come = deque(self._make)
        live: list[tuple[Client, bool]] = []
        ended: list[tuple[Client, bool]] = []
        for _ in range(60_000):
            if not to_come and not live:
                return ended
            while to_come and len(live) < 40 and choose.random() < 0.7:
                terms, is_doomed = to_come.popleft()
                live.append((Client(target_link=self._target, **terms), is_doomed))
            replies = [link.tick() for link in self._links]
            from_draft = replies[1] if len(replies) > 1 else []
            for client, is_doomed in list(live):
                client.on_replies(from_draft, replies[0])
                is_cancelled = is_doomed and choose.random() < 0.05
                if client.is_done or is_cancelled:
                    client.close()
                    live.remove((client, is_doomed))
                    ended.append((client, not client.is_done))
            for link in self._links:
                link.engine.runner.pool.check(link.engine.block_tables())
        raise AssertionError(f"{len(live)} sessions never ended")


def alone(client: Client) -> list[int]:
    """The session's text from an engine of its own."""
    engine = make_target()
    engine.submit(opening("a", client.sampling, len(client.prompt)), "a")
    engine.submit(verifying("a", 1, client.prompt, [], run_on=client.num_tokens - 1), "a")
    return [reply.token for reply in drain(engine) if isinstance(reply, Verdict)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("has_draft", [False, True])
def test_two_hundred_sessions_on_far_too_few_blocks(has_draft: bool) -> None:
    """Forty at once on blocks for three: constant preemption, and everybody's own text."""
    # Prompts come in whole, however long passes take here: so it is always the same crowd.
    target = Link(make_target(kv_cache_tokens=336, max_prefill_slowdown=1_000_000))
    draft = Link(make_draft(noise=0.02, kv_cache_tokens=512)) if has_draft else None
    ended = Crowd(target, draft, seed=7 + has_draft, num_sessions=200).run()
    assert len(ended) == 200
    load = target.engine.load()
    assert load.num_preemptions > 200
    assert (load.num_sessions, load.num_free_blocks) == (0, load.num_blocks)
    if draft is not None:
        assert draft.engine.load().num_free_blocks == draft.engine.load().num_blocks
        assert sum(bool(c.proposals) for c, _ in ended) > 100
    assert 5 < sum(is_cancelled for _, is_cancelled in ended) < 60
    for client, is_cancelled in ended:
        assert not client.failures
        if not is_cancelled:
            assert len(client.text) == client.num_tokens
            if client.sampling.verification == "coupled":
                assert client.text == alone(client)
