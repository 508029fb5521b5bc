"""The demo over HTTP with drafts and without writes the same texts; other seeds write others.

Two services of real engines, each behind a port of its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from loadtest.same.__main__ import main
from tests.harness.served_demo import demo_over_http


@asynccontextmanager
async def two_demos() -> AsyncIterator[list[str]]:
    """One with the draft model, one in which nobody drafts, as words of the command line."""
    async with demo_over_http() as drafted, demo_over_http(draft=None) as plain:
        yield ["--url", drafted.root_url, "--url", f"{plain.root_url}/v1"]


async def ask(folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    output = folder / "same.json"
    fixed = ["--tokens", "24", "--per-task", "1", "--output", str(output)]
    status = await asyncio.to_thread(main, [*words, *fixed])
    return status, json.loads(output.read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_drafts_leave_every_text_as_it_is(tmp_path: Path) -> None:
    ways = ["--route", "chat", "completions", "--delivery", "stream", "whole", "--runs", "1"]
    ways += ["--a-body", '{"speculation": {"k": 4}}']  # adaptive k may find that drafts do not pay
    ways += ["--b-body", '{"speculation": {"enabled": false}}']  # nor is forced text drafted
    async with two_demos() as urls:
        status, result = await ask(tmp_path, *urls, *ways, "--task", "json", "story", "chat")
    assert status == 0, result["samples"]
    # Three prompts as chats, two of them as plain texts; three temperatures.
    assert result["fates"] == {"same": 15}
    assert result["sides"]["A"]["num_draft_tokens"] > 100
    assert result["sides"]["B"]["num_draft_tokens"] == 0
    assert result["sides"]["A"]["num_tokens"] == result["sides"]["B"]["num_tokens"] > 15 * 4 * 10
    assert result["unanswered"] == []


@pytest.mark.timeout(300)
async def test_other_seeds_are_found_at_their_tokens_and_nothing_else_is(tmp_path: Path) -> None:
    words = ["--b-body", '{"seed": 5}', "--concurrency", "2", "--temperature", "0", "1"]
    async with two_demos() as urls:
        status, result = await ask(tmp_path, *urls, *words, "--task", "story", "question")
    assert status == 1
    assert result["fates"] == {"same": 2, "differs": 2}  # greedy texts have no seed
    assert len(result["samples"]) == 2
    for sample in result["samples"]:
        assert "temperature 1" in sample["question"]
        place = sample["place"]
        assert place["source"] == "logprobs"
        assert 0 <= place["index"] < 24
        texts = zip((sample["a"], sample["b"]), place["tokens"], strict=True)
        assert any(holds(sample["before"], text, token) for text, token in texts)


def holds(before: str, text: str, token: str) -> bool:
    """Whether the token stands where the first character of `text` is."""
    starts = range(max(0, len(before) - len(token) + 1), len(before) + 1)
    return any((before + text).startswith(token, start) for start in starts)
