"""Real processes of rewards, and questions to them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any

from deployments.config.schema import GrammarServiceConfig
from deployments.constraint.pipe import ConstraintConfig
from deployments.constraint.reward_workers import RewardWorkers
from deployments.constraint.workers import children_config
from models.grammar.compiler import GrammarCompiler, VocabularyInfo
from models.grammar.host import GrammarHost
from models.protocol.messages import ConstraintReply
from models.protocol.rewards import RewardScore
from tests.cases.grammar import EOS_IDS, PADDED_VOCAB_SIZE, small_tokenizer

_SEQS = count(1)


def reward_config(**changes: Any) -> ConstraintConfig:
    plain = children_config(GrammarServiceConfig(), tokenizer_path="", vocab_size=1, eos_ids=(0,))
    return replace(plain, **changes)


def reward_workers(**changes: Any) -> RewardWorkers:
    """Those of a replica; its child begins with the first question."""
    return RewardWorkers(reward_config(**changes))


@asynccontextmanager
async def serving_rewards(**changes: Any) -> AsyncIterator[RewardWorkers]:
    workers = reward_workers(**changes)
    try:
        yield workers
    finally:
        await workers.stop()


async def ask(
    workers: RewardWorkers,
    reward: Mapping[str, Any],
    text: str = "",
    lookaheads: Sequence[str] = ("",),
    *,
    is_end: bool = False,
    seq: int = 0,
) -> ConstraintReply:
    future: asyncio.Future[ConstraintReply] = asyncio.get_running_loop().create_future()
    question = RewardScore(
        session_id="s",
        epoch=1,
        seq=seq or next(_SEQS),
        reward=json.dumps(reward),
        text=text,
        lookaheads=list(lookaheads),
        ends=[is_end] * len(lookaheads),
    )
    workers.submit(question, future.set_result)
    return await asyncio.wait_for(future, 60)


def grammar_host() -> GrammarHost:
    """Of a small vocabulary, for services whose tests ask for no grammar."""
    vocabulary = VocabularyInfo(
        tokenizer_json=small_tokenizer().to_str(),
        vocab_size=PADDED_VOCAB_SIZE,
        eos_ids=EOS_IDS,
    )
    return GrammarHost(GrammarCompiler(vocabulary))
