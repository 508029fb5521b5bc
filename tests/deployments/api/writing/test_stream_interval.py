"""`router.http.stream_interval`: several tokens in one write, none of them lost."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import suppress

import pytest

from deployments.api.jobs import chat_job
from deployments.api.running import event_stream
from deployments.api.schemas.requests import ChatCompletionRequest
from models.protocol.errors import Unavailable
from router.types import Delta, Finished
from tests.deployments.api.asking import read
from tests.fakes.http import CHAT, ScriptedGenerator, served_model

WORDS = tuple("abcdefgh")


async def written(interval: int, *generators: ScriptedGenerator) -> list[str]:
    """The text of each write, of one choice after the other; an error ends them."""
    asked = read(ChatCompletionRequest, CHAT, stream=True, n=len(generators))
    job = chat_job(asked, served_model())
    detokenizer = served_model().tokenizer.detokenizer()

    async def items() -> AsyncGenerator[tuple[int, Delta | Finished], None]:
        for index, generator in enumerate(generators):
            async for item in generator.generate(job.requests[index], detokenizer):
                yield index, item

    texts = []
    with suppress(Unavailable, KeyError):
        async for chunk in event_stream(items(), job, interval):
            lines = [line for line in chunk.split(b"\n") if line.startswith(b"data: {")]
            choices = [choice for line in lines for choice in json.loads(line[6:])["choices"]]
            texts.append("".join(choice["delta"].get("content") or "" for choice in choices))
    return texts


@pytest.mark.parametrize(
    ("interval", "texts"),
    [
        (1, [*WORDS, ""]),
        (3, ["a", "bcd", "efg", "h"]),
        (7, ["a", "bcdefgh", ""]),
        (8, ["a", "bcdefgh"]),
        (100, ["a", "bcdefgh"]),
    ],
)
async def test_tokens_are_gathered_but_for_the_first(interval: int, texts: list[str]) -> None:
    assert await written(interval, ScriptedGenerator(WORDS)) == texts


@pytest.mark.parametrize(
    ("interval", "texts"),
    [(1, ["a", "b", "c", "", "x", "y", "z", ""]), (3, ["a", "bc", "xyz", ""])],
)
async def test_the_end_of_a_choice_waits_for_no_other(interval: int, texts: list[str]) -> None:
    assert await written(interval, ScriptedGenerator("abc"), ScriptedGenerator("xyz")) == texts


@pytest.mark.parametrize("error", [Unavailable("gone"), KeyError("a bug")], ids=["told", "bug"])
@pytest.mark.parametrize(
    ("error_at", "texts"), [(0, []), (1, ["a"]), (3, ["a", "bc"]), (4, ["a", "bcd"])]
)
async def test_an_error_comes_after_all_that_was_gathered(
    error_at: int, texts: list[str], error: Exception
) -> None:
    generator = ScriptedGenerator(WORDS, error=error, error_at=error_at)
    assert await written(3, generator) == texts
    assert generator.closed == 1
