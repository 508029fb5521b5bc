"""Texts compared with grammars over a pool of constraint replicas."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from deployments.local.pool import LocalConstraintPool
from models.grammar.host import GrammarHost
from models.protocol.errors import Unavailable, UnsupportedGrammar
from models.protocol.messages import Grammar
from router.limits import SessionLimits
from router.remote.check import check_grammar
from tests.cases.grammar import small_vocabulary

LIMITS = SessionLimits()
RULES = Grammar(kind="ebnf", text='root ::= "a" root | "b"')


@pytest.fixture
async def pool() -> AsyncIterator[LocalConstraintPool]:
    pool = LocalConstraintPool(GrammarHost(small_vocabulary().compiler()))
    yield pool
    await pool.close()


async def test_the_answer_is_the_replicas(pool: LocalConstraintPool) -> None:
    found = await check_grammar(pool, RULES, "aac", LIMITS)
    assert (found.num_bytes, found.may_end, found.expected[:2]) == (2, False, ["a", "b"])
    whole = await check_grammar(pool, RULES, "aab", LIMITS)
    assert (whole.num_bytes, whole.may_end) == (3, True)


async def test_a_refusal_is_the_clients_fault(pool: LocalConstraintPool) -> None:
    with pytest.raises(UnsupportedGrammar, match="no rule is named root"):
        await check_grammar(pool, Grammar(kind="ebnf", text='rot ::= "a"'), "a", LIMITS)


async def test_nobody_to_ask_is_told(pool: LocalConstraintPool) -> None:
    pool.fail()
    with pytest.raises(Unavailable):
        await check_grammar(pool, RULES, "a", LIMITS.model_copy(update={"queue_wait_s": 0.01}))
