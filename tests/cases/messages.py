"""Messages of a sender that names the whole text each time, or only what is behind `base_len`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from models.protocol.messages import DraftProbs, Open, Propose, Sampling, Verify
from models.protocol.token_sequence import TokenSequence

EPOCH = 7  # of the engines in `tests.fakes.engines`


def opening(session_id: str, sampling: Sampling, prompt_len: int, **changes: Any) -> Open:
    terms: dict[str, Any] = {"epoch": EPOCH, "eos_ids": []}
    return Open(
        session_id=session_id, sampling=sampling, prompt_len=prompt_len, **(terms | changes)
    )


def header(
    session_id: str, seq: int, ids: Sequence[int], base_len: int = 0, epoch: int = EPOCH
) -> dict[str, Any]:
    return {
        "session_id": session_id,
        "epoch": epoch,
        "seq": seq,
        "base_len": base_len,
        "prefix_hash": TokenSequence(ids[:base_len]).hash_at(base_len),
        "tokens": list(ids[base_len:]),
    }


def proposing(
    session_id: str,
    seq: int,
    ids: Sequence[int],
    k: int,
    *,
    epoch: int = EPOCH,
    base_len: int = 0,
    deadline_ms: float = 1e6,
    guess: Sequence[int] = (),
    ahead: int = 0,
) -> Propose:
    return Propose(
        **header(session_id, seq, ids, base_len, epoch),
        num_draft_tokens=k,
        deadline_ms=deadline_ms,
        guess=list(guess),
        ahead=ahead,
    )


def verifying(
    session_id: str,
    seq: int,
    ids: Sequence[int],
    draft: Sequence[int],
    draft_probs: DraftProbs | None = None,
    *,
    epoch: int = EPOCH,
    base_len: int = 0,
    run_on: int = 0,
) -> Verify:
    return Verify(
        **header(session_id, seq, ids, base_len, epoch),
        draft=list(draft),
        draft_probs=draft_probs,
        run_on=run_on,
    )
