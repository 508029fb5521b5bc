"""`serve run` of heads.yaml and no-draft.yaml: no draft model anywhere, and no text changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from tests.harness.served_demo import ServedDemo, served_demo

MODEL = "outrider-demo"
ORDER = "Turn this order into JSON.\nImogen from Delhi wants 6 blue lamps at $62.29 each."
# Who drafts by config, as a refusal names them.
DRAFTERS = {"heads.yaml": "suffix, ngram, mtp, heads", "no-draft.yaml": "suffix, ngram"}

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

Ask = Callable[..., tuple[str, dict[str, Any]]]


@pytest.fixture(scope="module", params=DRAFTERS)
def config(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def served(config: str) -> Iterator[ServedDemo]:
    with served_demo(config) as service:
        yield service


@pytest.fixture
def client(served: ServedDemo) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{served.base_url}/v1", api_key="none", timeout=120, max_retries=0
    ) as opened:
        yield opened


@pytest.fixture
def ask(client: openai.OpenAI) -> Ask:
    """A function that returns the answer's text, and what speculation did for it."""

    def ask_for(speculation: dict[str, Any], **options: Any) -> tuple[str, dict[str, Any]]:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": ORDER}],
            max_tokens=80,
            extra_body={"speculation": speculation},
            **options,
        )
        content = answer.choices[0].message.content
        assert content
        return content, answer.model_dump()["metrics"]["speculative_decoding"]

    return ask_for


def test_heads_and_lookup_draft_and_change_no_text(
    config: str, ask: Ask, served: ServedDemo
) -> None:
    has_heads = "heads" in DRAFTERS[config]
    num_drafted = 0
    sampled = [{"temperature": 1, "seed": seed} for seed in range(5, 12)]
    for options in ({"temperature": 0}, *sampled):
        plain, stats = ask({"enabled": False}, **options)
        assert stats["num_draft_tokens"] == 0
        text, stats = ask({}, **options)  # the live plan may choose to draft nothing
        assert text == plain
        assert set(stats["num_draft_tokens_by"]) <= {"suffix", "heads"}
        num_drafted += stats["num_draft_tokens_by"].get("heads", 0)
        text, stats = ask({"drafter": "suffix", "k": 4}, **options)
        assert text == plain
        assert stats["num_draft_tokens_by"] == {"suffix": stats["num_draft_tokens"]}
        assert stats["num_draft_tokens"] > 0
        if has_heads:
            text, stats = ask({"drafter": "mtp", "k": 2}, **options)
            assert text == plain
            assert list(stats["num_draft_tokens_by"]) == ["heads"]
            assert stats["num_spec_tokens"] == 2
    assert (num_drafted > 0) == has_heads  # some are tried by then, however slow they seemed
    assert "target: ready" in served.log()
    assert "draft: ready" not in served.log()


def test_a_stream_is_the_same_text(ask: Ask, client: openai.OpenAI) -> None:
    whole, _ = ask({"k": 4}, temperature=0)
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


def test_a_drafter_that_is_not_here_is_refused(config: str, ask: Ask) -> None:
    with pytest.raises(openai.BadRequestError, match=f"one of {DRAFTERS[config]} here"):
        ask({"drafter": "medusa"}, temperature=0)
