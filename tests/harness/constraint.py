"""Real children of the constraint service, and one function for each message to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from deployments.config.schema import GrammarServiceConfig
from deployments.constraint.pipe import ConstraintConfig
from deployments.constraint.workers import ConstraintWorkers, children_config
from models.protocol.messages import (
    ConstraintReply,
    ConstraintRequest,
    GrammarCommit,
    GrammarOpen,
    MaskRequest,
)
from models.protocol.token_sequence import EMPTY_HASH, TokenSequence
from tests.cases.grammar import EOS_IDS, PADDED_VOCAB_SIZE, TEN_SCHEMAS, json_schema

NESTED = TEN_SCHEMAS["nested"]


def config(path: str, **changes: object) -> ConstraintConfig:
    plain = children_config(
        GrammarServiceConfig(),
        tokenizer_path=path,
        vocab_size=PADDED_VOCAB_SIZE,
        eos_ids=EOS_IDS,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]  # checked at run


@asynccontextmanager
async def serving(path: str, **changes: object) -> AsyncIterator[ConstraintWorkers]:
    workers = ConstraintWorkers(config(path, **changes))
    await workers.start()
    try:
        yield workers
    finally:
        await workers.stop()


async def ask(workers: ConstraintWorkers, message: ConstraintRequest) -> ConstraintReply:
    future: asyncio.Future[ConstraintReply] = asyncio.get_running_loop().create_future()
    workers.submit(message, future.set_result)
    return await asyncio.wait_for(future, 30)


def opening(session_id: str, schema: object = NESTED) -> GrammarOpen:
    return GrammarOpen(session_id=session_id, epoch=1, grammar=json_schema(schema))


def asking(session_id: str, base: TokenSequence | None = None) -> MaskRequest:
    log = base or TokenSequence()
    return MaskRequest(
        session_id=session_id,
        epoch=1,
        ticket=9,
        base_len=len(log),
        prefix_hash=log.hash_at(len(log)),
        chain=[],
        num_rows=1,
    )


def committing(session_id: str, tokens: list[int], seq: int = 1) -> GrammarCommit:
    return GrammarCommit(
        session_id=session_id,
        epoch=1,
        seq=seq,
        base_len=0,
        prefix_hash=EMPTY_HASH,
        tokens=tokens,
    )


def pids(workers: ConstraintWorkers) -> list[int]:
    """Of the children that hold sessions."""
    return workers.pids[:-1]


async def until(attempt: Callable[[], Awaitable[ConstraintReply]], kind: type) -> ConstraintReply:
    async with asyncio.timeout(30):
        while not isinstance(reply := await attempt(), kind):  # noqa: ASYNC110  # it is about another process
            await asyncio.sleep(0.02)
    return reply
