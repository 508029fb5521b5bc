"""A router's grammar session over real children that are stopped or killed within a text."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal

import jsonschema
import pytest

from deployments.constraint.workers import ConstraintWorkers
from models.protocol.messages import (
    ConstraintReply,
    ConstraintRequest,
    Endpoint,
    Grammar,
    LeaseGrant,
    MaskMiss,
    Masks,
)
from models.protocol.token_sequence import TokenSequence
from router.limits import SessionLimits
from router.remote.grammar import RemoteConstrainer
from tests.cases.grammar import json_schema, random_text, small_tokenizer, small_vocabulary
from tests.harness.constraint import NESTED, ask, asking, pids, serving

LIMITS = SessionLimits(token_gap_s=20.0, resend_interval_s=10.0, rejoin_interval_s=0.2)


class WorkersPool:
    """Pool, lease and channel in one, over the workers of this process; no socket between."""

    def __init__(self, workers: ConstraintWorkers) -> None:
        self.grant = LeaseGrant(endpoint=Endpoint(address="here", public_key="", epoch=1))
        self._workers = workers
        self._inbox: asyncio.Queue[ConstraintReply] = asyncio.Queue()

    @property
    def channel(self) -> WorkersPool:
        return self

    async def lease(self, session_id: str, *, timeout_s: float) -> WorkersPool:
        return self

    async def release(self) -> None:
        pass

    def send(self, message: ConstraintRequest) -> None:
        self._workers.submit(message, self._inbox.put_nowait)

    async def receive(self) -> ConstraintReply:
        return await self._inbox.get()

    def peek(self) -> None:
        """Nothing is read ahead."""


def a_text(grammar: Grammar) -> list[int]:
    vocabulary = small_vocabulary()
    return random_text(vocabulary.compiler().compile(grammar), vocabulary, random.Random(4))


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "killed"])
@pytest.mark.parametrize("by", ["commit", "masks"])
async def test_a_session_goes_on_in_a_new_child(
    tokenizer_path: str, how: signal.Signals, by: str
) -> None:
    grammar = json_schema(NESTED)
    tokens = a_text(grammar)
    generated = TokenSequence()
    async with serving(tokenizer_path, mask_timeout_s=0.3) as workers:
        session = RemoteConstrainer(WorkersPool(workers), "s", grammar, generated, LIMITS)
        await session.open()
        for i, token in enumerate(tokens):
            if i == len(tokens) // 2:
                (child,) = pids(workers)
                os.kill(child, how)
                if by == "masks":  # as the loop does it: a lost mask, then a new matcher
                    lost = await ask(workers, asking("s", generated))
                    assert isinstance(lost, MaskMiss)
                    await session.reopen()
            answer = await session.commit(generated, [token])
            assert answer.num_valid == 1
            generated.extend((token,))
            assert isinstance(await ask(workers, asking("s", generated)), Masks)
        assert answer.is_complete
        assert workers.stats.restarts == 1
        assert pids(workers) != [child]
        await session.close()
    text = small_tokenizer().decode(generated.ids, skip_special_tokens=False)
    jsonschema.validate(json.loads(text), NESTED)


async def test_a_stopped_canary_delays_new_grammars_only(tokenizer_path: str) -> None:
    known, new = json_schema(NESTED), Grammar(kind="regex", text="[a-c]{2,9}")
    async with serving(tokenizer_path, mask_timeout_s=0.3, compile_timeout_s=0.5) as workers:
        pool = WorkersPool(workers)
        first = RemoteConstrainer(pool, "a", known, TokenSequence(), LIMITS)
        await first.open()
        os.kill(workers.pids[-1], signal.SIGSTOP)
        late = RemoteConstrainer(WorkersPool(workers), "b", new, TokenSequence(), LIMITS)
        opening = asyncio.create_task(late.open())
        await asyncio.sleep(0.05)
        assert not opening.done()
        again = RemoteConstrainer(WorkersPool(workers), "c", known, TokenSequence(), LIMITS)
        await again.open()
        assert isinstance(await ask(workers, asking("a")), Masks)
        await opening  # tried again in a new canary; nobody is to blame
        assert isinstance(await ask(workers, asking("b")), Masks)
        assert workers.stats.refusals == 0
