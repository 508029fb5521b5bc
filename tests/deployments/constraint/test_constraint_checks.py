"""Texts compared with grammars in the canary, within its limits; sessions do not notice."""

from __future__ import annotations

import asyncio

from models.protocol.grammars import GrammarCheck, GrammarChecked
from models.protocol.messages import (
    Grammar,
    GrammarReady,
    GrammarRefused,
    Masks,
)
from tests.harness.constraint import ask, asking, opening, pids, serving

RULES = Grammar(kind="lark", text='start: "a"+ "b"')
# Each letter takes more work than the one before it: all splits of the text are kept.
AMBIGUOUS = Grammar(kind="ebnf", text='root ::= root root root? | "a" | root "a" | "a" root')


def checking(grammar: Grammar, text: str, session_id: str = "check") -> GrammarCheck:
    return GrammarCheck(session_id=session_id, epoch=1, grammar=grammar, text=text)


async def test_a_text_is_compared_in_the_canary(tokenizer_path: str) -> None:
    async with serving(tokenizer_path) as workers:
        found = await ask(workers, checking(RULES, "aac"))
        assert isinstance(found, GrammarChecked)
        assert (found.num_bytes, found.may_end, found.expected[:2]) == (2, False, ["a", "b"])
        whole = await ask(workers, checking(RULES, "aab"))
        assert isinstance(whole, GrammarChecked)
        assert (whole.num_bytes, whole.may_end, whole.expected) == (3, True, [])
        assert workers.stats.opens == 0


async def test_refusals_say_whose_fault_it_is(tokenizer_path: str) -> None:
    async with serving(tokenizer_path) as workers:
        bad = await ask(workers, checking(Grammar(kind="lark", text="start: x"), "a"))
        long = await ask(workers, checking(RULES, "a" * 65_537))
        several = [checking(RULES, "a" * 5_000, f"check-{i}") for i in range(12)]
        answers = await asyncio.gather(*(ask(workers, message) for message in several))
    assert isinstance(bad, GrammarRefused)
    assert (bad.is_client_error, bad.message) == (True, 'line 1: unknown name: "x"')
    assert isinstance(long, GrammarRefused)
    assert (long.is_client_error, "65537 bytes" in long.message) == (True, True)
    refused = [answer for answer in answers if isinstance(answer, GrammarRefused)]
    assert len(refused) == 3  # one is with the canary, eight wait
    assert all("8 requests are waiting" in answer.message for answer in refused)
    assert not any(answer.is_client_error for answer in refused)


async def test_a_hostile_text_ends_at_its_limit_and_sessions_go_on(tokenizer_path: str) -> None:
    async with serving(tokenizer_path) as workers:
        assert isinstance(await ask(workers, opening("s")), GrammarReady)
        before = pids(workers)
        hostile = asyncio.create_task(ask(workers, checking(AMBIGUOUS, "a" * 20_000)))
        while not hostile.done():
            assert isinstance(await ask(workers, asking("s")), Masks)
            await asyncio.sleep(0.02)
        answer = hostile.result()
        assert isinstance(answer, GrammarRefused)
        assert answer.is_client_error
        assert pids(workers) == before
        assert isinstance(await ask(workers, checking(RULES, "ab")), GrammarChecked)


async def test_a_lost_canary_is_told_at_once(tokenizer_path: str) -> None:
    async with serving(tokenizer_path) as workers:
        hostile = asyncio.create_task(ask(workers, checking(AMBIGUOUS, "a" * 20_000)))
        await asyncio.sleep(0.05)
        await workers.stop()
        answer = await hostile
    assert isinstance(answer, GrammarRefused)
    assert not answer.is_client_error
