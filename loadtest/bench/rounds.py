"""Rounds of a draft and a target engine in this process, with nothing between them.

All prompts of a batch go in lock-step: one proposal each, one verdict each. Every round drafts
exactly k tokens. Neither engine knows an eos. A text ends only after the round that brought its eos
or its last wanted token. So no round is cut short. The end of a text depends on the past alone, so
ending there does not bias tokens per round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TypeVar

import msgspec

from models.config import DtypeName, EngineConfig, QuantizationName
from models.engine.base import Engine
from models.engine.draft import DraftEngine
from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.protocol.messages import (
    Close,
    Open,
    Proposal,
    Propose,
    Queued,
    Sampling,
    Verdict,
    Verify,
)
from models.protocol.token_sequence import TokenSequence

Reply = TypeVar("Reply", Proposal, Verdict)

_EPOCH = 1
_NO_DEADLINE_MS = 1e9


@dataclass
class _Text:
    """One prompt on its way."""

    session_id: str
    committed: TokenSequence
    prompt_len: int
    target_len: int = 0  # committed tokens that the target's log holds
    draft_len: int = 0  # and the draft's
    accepted: list[int] = field(default_factory=list)  # by round
    is_ended: bool = False


class EnginePair:
    """Draft and target engine of one pair of checkpoints.

    Args:
        pair: directory with `target/` and `draft/`.
        dtype: of both models.
        batch: texts at a time.
        max_model_len: tokens of prompt, completion and draft together.
        num_threads: of a pass.
        draft_quantization: of the draft, as `EngineConfig.quantization`.

    Attributes:
        drafts_greedily: whether a draft has the draft model's likeliest tokens, not samples.
    """

    def __init__(
        self,
        pair: Path,
        *,
        dtype: DtypeName,
        batch: int,
        max_model_len: int,
        num_threads: int,
        draft_quantization: QuantizationName | None = None,
    ) -> None:
        def runner(name: str, quantization: QuantizationName | None = None) -> ModelRunner:
            return ModelRunner(
                EngineConfig(
                    model_path=str(pair / name),
                    dtype=dtype,
                    max_model_len=max_model_len,
                    kv_cache_tokens=batch * max_model_len,
                    num_threads=num_threads,
                    quantization=quantization,
                )
            )

        target = runner("target")
        self._eos_ids = target.eos_ids
        self._target = TargetEngine(target, NoMaskSource(), _EPOCH)
        self._draft = DraftEngine(runner("draft", draft_quantization), NoMaskSource(), _EPOCH)
        self._batch = batch
        self._ids = count()
        self.drafts_greedily = False

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        k: int,
        max_tokens: int,
        on_text: Callable[[], None] = lambda: None,
    ) -> list[list[int]]:
        """Accepted tokens of each round of each prompt; prompt i is drawn with seed + i.

        A text ends with the round in which it has an eos or at least `max_tokens`.

        Raises:
            RuntimeError: an engine did not answer as it must.
        """
        results: list[list[int]] = []
        for first in range(0, len(prompts), self._batch):
            batch = prompts[first : first + self._batch]
            texts = [
                self._open(prompt, msgspec.structs.replace(sampling, seed=sampling.seed + index))
                for index, prompt in enumerate(batch, start=first)
            ]
            for seq in count():
                running = [text for text in texts if not text.is_ended]
                if not running:
                    break
                self._round(running, seq, k)
                for text in running:
                    if self._has_ended(text, max_tokens):
                        self._close(text)
                        on_text()
            results += [text.accepted for text in texts]
        return results

    def _open(self, prompt: Sequence[int], sampling: Sampling) -> _Text:
        text = _Text(f"text-{next(self._ids)}", TokenSequence(prompt), len(prompt))
        opening = Open(
            session_id=text.session_id,
            epoch=_EPOCH,
            sampling=sampling,
            eos_ids=[],
            prompt_len=len(prompt),
        )
        self._target.submit(opening, None)
        if self.drafts_greedily:
            greedy = msgspec.structs.replace(sampling, temperature=0.0)
            opening = msgspec.structs.replace(opening, sampling=greedy)
        self._draft.submit(opening, None)
        return text

    def _close(self, text: _Text) -> None:
        text.is_ended = True
        for engine in (self._draft, self._target):
            engine.submit(Close(session_id=text.session_id, epoch=_EPOCH), None)

    def _has_ended(self, text: _Text, max_tokens: int) -> bool:
        new = text.committed.ids[-1 - text.accepted[-1] :]
        num_generated = len(text.committed) - text.prompt_len
        return num_generated >= max_tokens or not set(self._eos_ids).isdisjoint(new)

    def _round(self, texts: list[_Text], seq: int, k: int) -> None:
        for text in texts:
            self._draft.submit(_propose(text, seq, k), None)
        proposals = _answers(self._draft, Proposal, [text.session_id for text in texts])
        for text in texts:
            proposal = proposals[text.session_id]
            if len(proposal.tokens) != k:
                raise RuntimeError(f"{len(proposal.tokens)} of {k} drafted: {proposal.cut}")
            self._target.submit(_verify(text, seq, proposal), None)
        verdicts = _answers(self._target, Verdict, [text.session_id for text in texts])
        for text in texts:
            verdict = verdicts[text.session_id]
            drafted = proposals[text.session_id].tokens
            # The draft has the id of its last drafted token, but a message must bring one more.
            text.draft_len = len(text.committed) + verdict.num_accepted
            text.committed.extend([*drafted[: verdict.num_accepted], verdict.token])
            text.target_len = len(text.committed) - 1
            text.accepted.append(verdict.num_accepted)


def _propose(text: _Text, seq: int, k: int) -> Propose:
    return Propose(
        session_id=text.session_id,
        epoch=_EPOCH,
        seq=seq,
        base_len=text.draft_len,
        prefix_hash=text.committed.hash_at(text.draft_len),
        tokens=text.committed.ids[text.draft_len :],
        num_draft_tokens=k,
        deadline_ms=_NO_DEADLINE_MS,
    )


def _verify(text: _Text, seq: int, proposal: Proposal) -> Verify:
    return Verify(
        session_id=text.session_id,
        epoch=_EPOCH,
        seq=seq,
        base_len=text.target_len,
        prefix_hash=text.committed.hash_at(text.target_len),
        tokens=text.committed.ids[text.target_len :],
        draft=proposal.tokens,
        run_on=0,
        draft_probs=proposal.draft_probs,
    )


def _answers(engine: Engine, kind: type[Reply], session_ids: Collection[str]) -> dict[str, Reply]:
    """Return one answer of that kind for each session."""
    answers: dict[str, Reply] = {}
    while len(answers) < len(session_ids):
        if not engine.has_work:
            missing = sorted(set(session_ids) - answers.keys())
            raise RuntimeError(f"an engine has nothing to do but owes answers to {missing}")
        for _, reply in engine.step():
            if isinstance(reply, Queued):
                continue
            if not isinstance(reply, kind):
                raise RuntimeError(f"an engine answered {reply}")
            answers[reply.session_id] = reply
    return answers
