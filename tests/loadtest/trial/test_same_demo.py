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

from loadtest.__main__ import main
from tests.harness.served_demo import demo_over_http


@asynccontextmanager
async def two_demos() -> AsyncIterator[list[str]]:
    """One with the draft model, one in which nobody drafts, as words of the command line."""
    async with demo_over_http() as drafted, demo_over_http(draft=None) as plain:
        yield ["--url", drafted.root_url, "--url", f"{plain.root_url}/v1"]


async def ask(folder: Path, urls: list[str], **terms: object) -> tuple[int, dict[str, Any]]:
    output = folder / "same.json"
    terms = {"tokens": 24, "per_task": 1, **terms}
    given = [f"{name}={value}" for name, value in terms.items()]
    words = ["same", *urls, "--output", str(output), "--set", *given]
    status = await asyncio.to_thread(main, words)
    return status, json.loads(output.read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_drafts_leave_every_text_as_it_is(tmp_path: Path) -> None:
    async with two_demos() as urls:
        status, result = await ask(
            tmp_path,
            urls,
            tasks="json,story,chat",
            routes="chat,completions",
            deliveries="stream,whole",
            runs=1,
            a_body='{"speculation": {"k": 4}}',  # adaptive k may find that drafts do not pay
            b_body='{"speculation": {"enabled": false}}',  # nor is forced text drafted
        )
    assert status == 0, result["differences"]
    # Three prompts as chats, two of them as plain texts; three temperatures.
    assert result["fates"] == {"same": 15}
    rows = [row for row in result["samples"] if row["workload"] == "answers"]
    drafted, tokens = (
        {
            side: sum(sum(row["runs"][name]) for row in rows if row["way"].startswith(side))
            for side in "AB"
        }
        for name in ("drafted", "tokens")
    )
    assert drafted["A"] > 100
    assert drafted["B"] == 0
    assert tokens["A"] == tokens["B"] > 15 * 4 * 10
    assert result["unanswered"] == []
