"""What sessions notice of hostile grammars, and an ordinary large schema of a busy machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from deployments.constraint.workers import ConstraintWorkers
from models.protocol.messages import (
    Grammar,
    GrammarClose,
    GrammarOpen,
    GrammarReady,
    GrammarRefused,
    MaskRequest,
    Masks,
)
from models.protocol.token_sequence import EMPTY_HASH, TokenSequence
from tests.cases.grammar import small_tokenizer
from tests.harness.constraint import ask, asking, committing, opening, pids, serving, until


def ordinary(num_fields: int) -> dict[str, object]:
    """A tool's schema with many fields: 900 are 47 KB and a twentieth of a second."""
    kinds = ("string", "integer", "number", "boolean")
    return {
        "type": "object",
        "properties": {
            f"field_{i}": {"type": kinds[i % 4], "description": "what it is"}
            for i in range(num_fields)
        },
        "required": [f"field_{i}" for i in range(0, num_fields, 3)],
    }


def hostile(i: int) -> object:
    """Small schemas, no two alike, each of which costs as much as the limits let it."""
    match i % 5:
        case 0:  # many multiples
            return {"properties": {f"a{j}": {"multipleOf": 9001 + 50 * i + j} for j in range(20)}}
        case 1:  # few, whose product is what counts
            return {"anyOf": [{"type": "integer", "multipleOf": n + i} for n in (1901, 1907, 1911)]}
        case 2:  # large arrays
            arrays = {f"a{j}": {"type": "array", "maxItems": 90_000 + i + j} for j in range(40)}
            return {"properties": arrays}
        case 3:  # nested quantifiers
            return {"type": "string", "pattern": f"^((a{{1,60}}){{1,60}}){{1,{20 + i % 7}}}$"}
        case _:  # sets of many ranges
            return {"type": "string", "pattern": r"^(?:\W\w|[^\d\s]){1,90}" + chr(97 + i % 26)}


def opening_regex(session_id: str, pattern: str) -> GrammarOpen:
    return GrammarOpen(session_id=session_id, epoch=1, grammar=Grammar(kind="regex", text=pattern))


async def test_hostile_schemas_at_once_hurt_no_neighbour(tokenizer_path: str) -> None:
    limits = {"compile_cpu_s": 0.3, "compile_timeout_s": 10.0}
    async with serving(tokenizer_path, **limits) as workers:
        assert isinstance(await ask(workers, opening("neighbour")), GrammarReady)
        before = pids(workers)
        attacks = [
            asyncio.create_task(ask(workers, opening(f"h{i}", hostile(i)))) for i in range(100)
        ]
        waits: list[float] = []
        while not all(attack.done() for attack in attacks):
            asked_at = time.monotonic()
            assert isinstance(await ask(workers, asking("neighbour")), Masks)
            waits.append(time.monotonic() - asked_at)
            await asyncio.sleep(0.02)
        assert max(waits) < 2.0  # mask_wait_s: the target gives up then
        assert pids(workers) == before
        assert workers.stats.restarts == 0
        refused = 0
        for attack in attacks:
            reply = attack.result()
            if isinstance(reply, GrammarRefused):  # by name, limit and value
                assert "limit" in reply.message, reply.message
                assert any(letter.isdigit() for letter in reply.message)
                refused += reply.is_client_error
            else:
                assert isinstance(reply, GrammarReady)
        assert refused >= 20
        ready = await ask(workers, opening("ordinary", ordinary(900)))
        assert isinstance(ready, GrammarReady), ready
        assert isinstance(await ask(workers, asking("neighbour")), Masks)
        assert pids(workers) == before
        assert workers.stats.restarts == 0


async def test_memory_of_others_is_no_reason_to_refuse(tokenizer_path: str) -> None:
    # Each takes 5 MB once compiled; together several times what a child may have.
    async with serving(tokenizer_path, memory_limit_mb=128) as workers:
        await ask(workers, opening("neighbour"))
        before = pids(workers)
        for i in range(60):
            schema = {
                "properties": {f"a{j}": {"multipleOf": 2900 + 3 * i + j} for j in range(3)},
                "required": ["a0"],
            }
            reply = await ask(workers, opening("h", schema))
            assert isinstance(reply, GrammarReady), (i, reply)
            workers.submit(GrammarClose(session_id="h", epoch=1), lambda reply: None)
            assert isinstance(await ask(workers, asking("neighbour")), Masks), i
        ready = await ask(workers, opening("ordinary", ordinary(900)))
        assert isinstance(ready, GrammarReady), ready
        assert pids(workers) == before
        assert workers.stats.restarts == 0


async def test_open_grammars_do_not_end_their_child(tokenizer_path: str) -> None:
    """Sessions that stay open keep their grammars: the child says that it is full."""
    async with serving(tokenizer_path, memory_limit_mb=128) as workers:
        before = pids(workers)
        replies = []
        for i in range(60):
            schema = {"properties": {f"a{j}": {"multipleOf": 2900 + 3 * i + j} for j in range(3)}}
            replies.append(await ask(workers, opening(f"h{i}", schema)))
        full = [reply for reply in replies if isinstance(reply, GrammarRefused)]
        assert full
        for reply in full:
            assert not reply.is_client_error
            assert "within 128 MB (memory_limit_mb)" in reply.message
        assert pids(workers) == before
        assert workers.stats.restarts == 0


async def test_a_slow_grammar_takes_no_more_than_its_turn(tokenizer_path: str) -> None:
    slow = {"anyOf": [{"type": "integer", "multipleOf": n} for n in (1901, 1907, 1911)]}
    memory = {"compile_memory_mb": 400, "memory_limit_mb": 1600}
    async with serving(tokenizer_path, compile_cpu_s=1.5, **memory) as workers:
        first = asyncio.create_task(ask(workers, opening("slow", slow)))
        await asyncio.sleep(0)
        others = [ask(workers, opening_regex(f"s{i}", f"[a-c]{{{i + 1}}}")) for i in range(6)]
        assert all(isinstance(reply, GrammarReady) for reply in await asyncio.gather(*others))
        assert not first.done()  # they came later, and were done within its trials
        reply = await first
        assert isinstance(reply, GrammarRefused)
        assert "the limit is 1.50 s (compile_cpu_s)" in reply.message


@contextlib.contextmanager
def busy(core: int, num_processes: int) -> Iterator[None]:
    """Processes of the usual priority that leave `core` no pause."""
    code = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    spinners = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(num_processes)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def pin(workers: ConstraintWorkers, core: int) -> None:
    assert len(workers.pids) == workers.num_running
    for pid in workers.pids:
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), {core})


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores are chosen: Linux")
async def test_an_ordinary_large_schema_compiles_on_a_busy_core(tokenizer_path: str) -> None:
    core = min(os.sched_getaffinity(0))
    async with serving(tokenizer_path) as workers:
        pin(workers, core)
        before = pids(workers)
        with busy(core, 3):
            reply = await ask(workers, opening("large", ordinary(900)))
            assert isinstance(reply, GrammarReady), reply
            assert isinstance(await until(lambda: ask(workers, asking("large")), Masks), Masks)
        assert pids(workers) == before
        assert workers.stats.restarts == 0


async def test_a_draft_of_the_highest_k_is_masked(tokenizer_path: str) -> None:
    tokens = small_tokenizer().encode("ab" * 40).ids
    log = TokenSequence(tokens[:4])
    async with serving(tokenizer_path) as workers:
        await ask(workers, opening_regex("s", "[ab]*"))
        await ask(workers, committing("s", log.ids))
        request = MaskRequest(
            session_id="s",
            epoch=1,
            ticket=1,
            base_len=0,
            prefix_hash=EMPTY_HASH,
            chain=tokens[:68],
            num_rows=65,
        )
        masks = await ask(workers, request)
        assert isinstance(masks, Masks), masks
        assert masks.num_valid_rows == 65
