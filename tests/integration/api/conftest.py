"""A client of the demo pair with rewards, for who has no client of another kind."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest

from tests.harness.rewards.workers import reward_workers
from tests.harness.served_demo import demo_over_http


@pytest.fixture
async def client() -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        demo_over_http(rewards=reward_workers()) as target,
        openai.AsyncOpenAI(base_url=f"{target.root_url}/v1", api_key="none", max_retries=0) as made,
    ):
        yield made
