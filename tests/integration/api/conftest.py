"""A client of the demo pair with rewards, for who has no client of another kind."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest

from tests.harness.rewards.workers import reward_workers
from tests.harness.served_demo import demo_client


@pytest.fixture
async def client() -> AsyncIterator[openai.AsyncOpenAI]:
    async with demo_client(rewards=reward_workers()) as made:
        yield made
