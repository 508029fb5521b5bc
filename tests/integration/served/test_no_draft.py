"""`serve run configs/no-draft.yaml`: no draft model anywhere, suffix decoding drafts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.harness.served_demo import ServedDemo, served_demo

MODEL = "outrider-demo"
ORDER = "Turn this order into JSON.\nImogen from Delhi wants 6 blue lamps at $62.29 each."

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def served() -> Iterator[ServedDemo]:
    with served_demo("no-draft.yaml") as service:
        yield service


@pytest.fixture
def client(served: ServedDemo) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{served.base_url}/v1", api_key="none", timeout=120, max_retries=0
    ) as opened:
        yield opened


def ask(
    client: openai.OpenAI, text: str, speculation: dict[str, Any], **options: Any
) -> tuple[str, dict[str, Any]]:
    """The answer's text, and what speculation did for it."""
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": text}],
        max_tokens=80,
        extra_body={"speculation": speculation},
        **options,
    )
    content = answer.choices[0].message.content
    assert content
    return content, answer.model_dump()["metrics"]["speculative_decoding"]


def test_lookup_drafts_and_changes_no_text(client: openai.OpenAI) -> None:
    for options in ({"temperature": 0}, {"temperature": 1, "seed": 5}):
        plain, stats = ask(client, ORDER, {"enabled": False}, **options)
        assert stats["num_draft_tokens"] == 0
        text, stats = ask(client, ORDER, {}, **options)  # the live plan may choose to draft nothing
        assert text == plain
        assert set(stats["num_draft_tokens_by"]) <= {"suffix"}
        text, stats = ask(client, ORDER, {"k": 4}, **options)
        assert text == plain
        assert stats["num_draft_tokens_by"] == {"suffix": stats["num_draft_tokens"]}
        assert stats["num_draft_tokens"] > 0


def test_a_stream_is_the_same_text(client: openai.OpenAI) -> None:
    whole, _ = ask(client, ORDER, {"k": 4}, temperature=0)
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": ORDER}],
        max_tokens=80,
        temperature=0,
        stream=True,
    )
    assert whole == "".join(
        chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices
    )


def test_there_is_no_draft_process(served: ServedDemo) -> None:
    assert httpx.get(f"{served.base_url}/health", timeout=20).status_code == 200
    assert "target: ready" in served.log()
    assert "draft: ready" not in served.log()
