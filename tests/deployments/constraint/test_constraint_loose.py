"""Schemas that may be loosened, with the real children: opened, told, masked."""

from __future__ import annotations

import json
from typing import Any

from deployments.constraint.workers import ConstraintWorkers
from models.protocol.messages import (
    Grammar,
    GrammarCommitted,
    GrammarOpen,
    GrammarReady,
    Masks,
)
from models.protocol.token_sequence import TokenSequence
from tests.cases.grammar import allowed, small_tokenizer
from tests.harness.constraint import ask, asking, committing, pids, serving


def opening(session_id: str, schema: Any) -> GrammarOpen:
    grammar = Grammar(kind="json_schema", text=json.dumps(schema), loose=(0,))
    return GrammarOpen(session_id=session_id, epoch=1, grammar=grammar)


async def after(workers: ConstraintWorkers, text: str) -> set[str]:
    """The texts of the tokens that a mask allows in session `s` after `text`."""
    tokenizer = small_tokenizer()
    ids = tokenizer.encode(text).ids
    assert isinstance(await ask(workers, committing("s", ids)), GrammarCommitted)
    masks = await ask(workers, asking("s", TokenSequence(ids)))
    assert isinstance(masks, Masks)
    return {tokenizer.decode([i]) for i in allowed(masks.rows[: masks.row_bytes])}


async def test_a_loosened_grammar_opens_is_told_and_masks(tokenizer_path: str) -> None:
    """The pattern is gone; the longest length beside it is enforced."""
    name = {"type": "string", "pattern": "(?<=x)a", "maxLength": 2}
    schema = {"type": "object", "properties": {"a": name}, "additionalProperties": False}
    async with serving(tokenizer_path) as workers:
        ready = await ask(workers, opening("s", schema))
        assert isinstance(ready, GrammarReady)
        assert [part.path for part in ready.loosened] == ["$.properties.a.pattern"]
        assert "look-behind" in ready.loosened[0].reason
        texts = await after(workers, '{"a": "uv')
        assert texts
        assert all(text.startswith('"') for text in texts)
        assert workers.stats.loosened == 1


async def test_a_schema_that_is_too_costly_becomes_any_object(tokenizer_path: str) -> None:
    """Thirty patterns take seconds of CPU time; the reason says how much was allowed."""
    slow = {f"k{i}": {"type": "string", "pattern": rf"\bcat{i}\b"} for i in range(30)}
    schema = {"type": "object", "properties": slow, "additionalProperties": False}
    async with serving(tokenizer_path, compile_cpu_s=0.3) as workers:
        ready = await ask(workers, opening("s", schema))
        assert isinstance(ready, GrammarReady)
        [part] = ready.loosened
        assert part.path == "$"
        assert "the limit is 0.30 s (compile_cpu_s)" in part.reason
        assert "z" in await after(workers, '{"')  # as in any object
        assert len(pids(workers)) == workers.num_running - 1
        assert workers.stats.refusals == 0
