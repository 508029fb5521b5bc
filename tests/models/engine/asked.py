"""Engines that one sender asks, and that have given back all their blocks when a test is over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import pytest

from models.engine.base import Engine
from models.engine.draft import DraftEngine
from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.protocol.messages import DraftProbs, EngineReply, Proposal
from tests.cases.messages import opening, proposing, verifying
from tests.cases.target import PROMPT
from tests.fakes.engines import FakeClock, drain

Kind = TypeVar("Kind", bound=Engine)


class TickingClock(FakeClock):
    """So much time passes with each look."""

    def __init__(self, tick_s: float) -> None:
        super().__init__()
        self._tick_s = tick_s

    def __call__(self) -> float:
        self.now += self._tick_s
        return self.now


class Asked(Generic[Kind]):
    """An engine and the messages of one sender, each with the next number of its session.

    A session that was not opened is, with its first message, whose text is the prompt. Engines over
    one checkpoint share a runner: a test is through with the first when it makes the second.
    """

    def __init__(self, engine: Kind, **terms: Any) -> None:
        self.engine = engine
        self.pool = engine.runner.pool
        self._terms = {"prompt_len": len(PROMPT)} | terms
        self._seqs: dict[str, int] = {}

    def open(self, name: str = "s", **changes: Any) -> None:
        self._seqs.setdefault(name, 0)
        self.engine.submit(opening(name, **(self._terms | changes)), "r")

    def step(self) -> list[EngineReply]:
        return [reply for _, reply in self.engine.step()]

    def drain(self) -> list[EngineReply]:
        replies = drain(self.engine)
        self.pool.check(self.engine.block_tables())
        return replies

    def end(self) -> None:
        for name in self.engine.idle_s():
            self.engine.close(name)
        self.pool.check([])
        assert self.pool.num_free == self.pool.num_blocks

    def _number(self, name: str, ids: Sequence[int], seq: int | None) -> int:
        if name not in self._seqs:
            self.open(name, prompt_len=len(ids))
        self._seqs[name] = self._seqs[name] + 1 if seq is None else seq
        return self._seqs[name]


class AskedTarget(Asked[TargetEngine]):
    """A target that is asked to verify."""

    def send(
        self,
        ids: Sequence[int] = PROMPT,
        draft: Sequence[int] = (),
        probs: DraftProbs | None = None,
        *,
        name: str = "s",
        seq: int | None = None,
        reply_to: object = "r",
        **header: Any,
    ) -> None:
        number = self._number(name, ids, seq)
        self.engine.submit(verifying(name, number, ids, draft, probs, **header), reply_to)

    def ask(self, *question: Any, **terms: Any) -> list[Any]:
        """Return all that is answered to one question."""
        self.send(*question, **terms)
        return self.drain()


class AskedDraft(Asked[DraftEngine]):
    """A draft model that is asked to propose."""

    def send(
        self, ids: Sequence[int], k: int, *, name: str = "s", seq: int | None = None, **header: Any
    ) -> None:
        self.engine.submit(proposing(name, self._number(name, ids, seq), ids, k, **header), "r")

    def only_proposal(self) -> Proposal:
        (reply,) = self.drain()
        assert isinstance(reply, Proposal)
        return reply

    def ask(self, ids: Sequence[int], k: int, **terms: Any) -> Proposal:
        """Return the draft, the only answer to it."""
        self.send(ids, k, **terms)
        return self.only_proposal()


TargetOf = Callable[..., AskedTarget]  # of an engine, or of limits for one over the tiny checkpoint
DraftOf = Callable[..., AskedDraft]


def rows_of_passes(runner: ModelRunner, patch: pytest.MonkeyPatch) -> list[list[int]]:
    """Return a list to which each pass from now on adds the rows of each of its sequences."""
    passes: list[list[int]] = []
    forward = runner.forward

    def noted(sequences: Sequence[Any], *arguments: Any) -> Any:
        passes.append([len(each.token_ids) for each in sequences])
        return forward(sequences, *arguments)

    patch.setattr(runner, "forward", noted)
    return passes
