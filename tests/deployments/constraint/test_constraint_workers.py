from __future__ import annotations

import asyncio
import os
import signal
import tracemalloc

import pytest

from deployments.constraint.workers import ConstraintWorkers
from models.protocol.messages import (
    ConstraintReply,
    GrammarClose,
    GrammarCommitted,
    GrammarReady,
    GrammarRefused,
    GrammarStale,
    MaskMiss,
    Masks,
)
from models.protocol.token_sequence import TokenSequence
from tests.cases.grammar import (
    NEVER_COMPILES,
    PADDED_VOCAB_SIZE,
    TEN_SCHEMAS,
    small_tokenizer,
)
from tests.harness.constraint import (
    ask,
    asking,
    committing,
    config,
    opening,
    pids,
    serving,
    until,
)
from tests.harness.waiting import wait_until


async def test_sessions_are_spread_and_answered(tokenizer_path: str) -> None:
    async with serving(tokenizer_path, num_children=2) as workers:
        assert len(set(pids(workers))) == 2
        names = [f"s{i}" for i in range(12)]
        opened = await asyncio.gather(*(ask(workers, opening(name)) for name in names))
        assert all(isinstance(reply, GrammarReady) for reply in opened)
        replies = await asyncio.gather(*(ask(workers, asking(name)) for name in names))
        assert [reply.session_id for reply in replies] == names
        assert all(isinstance(reply, Masks) for reply in replies)
        sizes = {reply.row_bytes for reply in replies if isinstance(reply, Masks)}
        assert sizes == {PADDED_VOCAB_SIZE // 8}
        stats = workers.stats
        assert (stats.opens, stats.cache_hits) == (12, 10)  # compiled once in each child
        assert stats.compile_ms_total > 0
        assert stats.queue_length == 0


async def test_messages_of_a_session_keep_their_order(tokenizer_path: str) -> None:
    async with serving(tokenizer_path) as workers:
        replies: list[ConstraintReply] = []
        first = small_tokenizer().encode('{"user"').ids
        for message in (
            opening("s"),
            committing("s", first),
            asking("s", TokenSequence(first)),
            GrammarClose(session_id="s", epoch=1),
            asking("s"),
        ):
            workers.submit(message, replies.append)
        await wait_until(lambda: len(replies) == 4)
        assert [type(r) for r in replies] == [GrammarReady, GrammarCommitted, Masks, MaskMiss]


async def test_a_bad_tokenizer_fails_the_start(tmp_path: object) -> None:
    workers = ConstraintWorkers(config(f"{tmp_path}/none.json"))
    with pytest.raises(ValueError, match=r"none\.json"):
        await workers.start()
    await workers.stop()
    assert pids(workers) == []


async def test_sigkill_is_replaced_and_the_session_can_be_replayed(tokenizer_path: str) -> None:
    async with serving(tokenizer_path) as workers:
        tokens = small_tokenizer().encode('{"user": {"na').ids
        await ask(workers, opening("s"))
        await ask(workers, committing("s", tokens))
        before = await ask(workers, asking("s", TokenSequence(tokens)))
        (old,) = pids(workers)
        await ask(workers, opening("other"))
        os.kill(old, signal.SIGSTOP)  # so that the requests below are unanswered for sure
        waiting = [
            asyncio.create_task(ask(workers, message))
            for message in (asking("s"), committing("s", tokens, seq=2), opening("t"))
        ]
        for _ in range(2):  # submitted, then sent; later the service ends the stopped child itself
            await asyncio.sleep(0)
        os.kill(old, signal.SIGKILL)
        miss, stale, refused = await asyncio.gather(*waiting)
        assert isinstance(miss, MaskMiss)
        assert miss.reason == "failed"
        assert stale == GrammarStale(session_id="s", seq=2, is_unknown=True)
        assert isinstance(refused, GrammarRefused)
        assert not refused.is_client_error
        ready = await until(lambda: ask(workers, opening("s")), GrammarReady)
        assert isinstance(ready, GrammarReady)
        assert ready.committed_len == 0
        assert pids(workers) != [old]
        await ask(workers, committing("s", tokens))
        assert await ask(workers, asking("s", TokenSequence(tokens))) == before
        assert workers.stats.restarts == 1
        with pytest.raises(ProcessLookupError):  # reaped
            os.kill(old, 0)


async def test_other_children_do_not_notice(tokenizer_path: str) -> None:
    async with serving(tokenizer_path, num_children=2) as workers:
        names = [f"s{i}" for i in range(8)]
        for name in names:
            await ask(workers, opening(name))
        os.kill(pids(workers)[0], signal.SIGKILL)
        await wait_until(lambda: workers.stats.restarts == 1)
        await until(lambda: ask(workers, opening("again")), GrammarReady)
        replies = [await ask(workers, asking(name)) for name in names]
        unknown = [reply for reply in replies if isinstance(reply, MaskMiss)]
        assert {reply.reason for reply in unknown} == {"unknown"}
        assert 0 < len(unknown) < len(names)


async def test_a_stopped_child_counts_as_dead_and_blames_nobody(tokenizer_path: str) -> None:
    async with serving(tokenizer_path, mask_timeout_s=300.0) as workers:  # not waited for
        await ask(workers, opening("s"))
        (old,) = pids(workers)
        os.kill(old, signal.SIGSTOP)
        reply = await ask(workers, asking("s"))
        assert isinstance(reply, MaskMiss)
        assert reply.reason == "failed"
        assert "it is stopped, and owes an answer" in reply.message
        assert isinstance(
            await until(lambda: ask(workers, opening("s")), GrammarReady), GrammarReady
        )
        assert pids(workers) != [old]


async def test_an_idle_child_is_not_timed(tokenizer_path: str) -> None:
    async with serving(tokenizer_path, mask_timeout_s=0.1, compile_timeout_s=0.1) as workers:
        await asyncio.sleep(0.4)
        assert workers.stats.restarts == 0


async def test_a_grammar_that_never_compiles_is_refused_by_name(tokenizer_path: str) -> None:
    limits = {"compile_cpu_s": 0.6, "compile_memory_mb": 400, "memory_limit_mb": 2048}
    async with serving(tokenizer_path, **limits) as workers:
        await ask(workers, opening("neighbour"))
        hostile = asyncio.create_task(ask(workers, opening("h1", NEVER_COMPILES)))
        twin = asyncio.create_task(ask(workers, opening("h2", NEVER_COMPILES)))
        orphan = asyncio.create_task(ask(workers, asking("h1")))
        await asyncio.sleep(0.05)
        # Neighbours do not notice: they are in another child.
        assert isinstance(await ask(workers, asking("neighbour")), Masks)
        assert isinstance(await ask(workers, opening("second")), GrammarReady)
        assert not hostile.done()
        for name, reply in zip(("h1", "h2"), await asyncio.gather(hostile, twin), strict=True):
            assert isinstance(reply, GrammarRefused)
            assert reply.is_client_error
            assert reply.session_id == name
            assert reply.message.startswith("the schema is too complex: after 0.")
            assert "the limit is 0.60 s (compile_cpu_s)" in reply.message
        missed = await orphan
        assert isinstance(missed, MaskMiss)
        assert missed.reason == "unknown"
        # Refused at once from now on, without a trial.
        assert isinstance(await ask(workers, opening("h3", NEVER_COMPILES)), GrammarRefused)
        assert len(workers._trials) == 0
        assert workers.stats.restarts == 0
        assert isinstance(await ask(workers, asking("neighbour")), Masks)


async def test_a_child_stopped_within_a_message_blames_nobody(tokenizer_path: str) -> None:
    async with serving(
        tokenizer_path, compile_timeout_s=1.0, compile_memory_mb=400, memory_limit_mb=2048
    ) as workers:
        canary = workers._children[-1]
        assert canary is not None
        assert canary.pid is not None
        page = canary._page
        assert page is not None
        asked = asyncio.create_task(ask(workers, opening("s", NEVER_COMPILES)))
        await wait_until(lambda: page.read().compiling.number is not None)
        os.kill(canary.pid, signal.SIGSTOP)
        reply = await asked
        assert isinstance(reply, GrammarRefused)
        assert not reply.is_client_error
        assert "it is stopped, and owes an answer" in reply.message


async def test_a_new_grammar_waits_for_no_dead_canary(tokenizer_path: str) -> None:
    async with serving(tokenizer_path) as workers:
        await ask(workers, opening("s"))
        os.kill(workers.pids[-1], signal.SIGKILL)
        await wait_until(lambda: workers.stats.restarts == 1)
        assert isinstance(await ask(workers, opening("t")), GrammarReady)  # known grammar
        other = opening("u", TEN_SCHEMAS["array"])
        assert isinstance(await until(lambda: ask(workers, other), GrammarReady), GrammarReady)
        assert isinstance(await ask(workers, asking("s")), Masks)


async def test_grammars_are_remembered_and_not_kept(tokenizer_path: str) -> None:
    num_grammars, size = 40, 60_000
    async with serving(tokenizer_path) as workers:
        tracemalloc.start()
        try:
            for i in range(num_grammars):
                schema = {"type": "boolean", "description": f"{i} " + size * "x"}
                assert isinstance(await ask(workers, opening("s", schema)), GrammarReady)
                workers.submit(GrammarClose(session_id="s", epoch=1), lambda reply: None)
            kept_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert kept_bytes < num_grammars * size / 4


async def test_a_full_queue_is_answered_at_once(tokenizer_path: str) -> None:
    async with serving(tokenizer_path, max_queue=3) as workers:
        await ask(workers, opening("s"))
        os.kill(pids(workers)[0], signal.SIGSTOP)
        replies = await asyncio.gather(*(ask(workers, asking("s")) for _ in range(5)))
        messages = [reply.message for reply in replies if isinstance(reply, MaskMiss)]
        assert sum("3 requests are waiting" in message for message in messages) == 2
        assert sum("it is stopped" in message for message in messages) == 3
        assert workers.stats.rejected == 2


async def test_stop_answers_what_is_open_and_what_comes_later(tokenizer_path: str) -> None:
    workers = ConstraintWorkers(config(tokenizer_path))
    await workers.start()
    (pid,) = pids(workers)
    os.kill(pid, signal.SIGSTOP)
    waiting = asyncio.create_task(ask(workers, opening("s")))
    await asyncio.sleep(0.05)
    await workers.stop()
    await workers.stop()
    for reply in (await waiting, await ask(workers, opening("t"))):
        assert isinstance(reply, GrammarRefused)
        assert not reply.is_client_error
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_child_that_dies_at_once_is_retried_after_a_pause(tokenizer_path: str) -> None:
    async with serving(tokenizer_path) as workers:
        for _ in range(2):  # the second may end before it is ready
            os.kill(pids(workers)[0], signal.SIGKILL)
            restarts = workers.stats.restarts
            await wait_until(lambda n=restarts: workers.stats.restarts > n and pids(workers))
        assert isinstance(
            await until(lambda: ask(workers, opening("s")), GrammarReady), GrammarReady
        )
        assert workers.stats.restarts == 2
