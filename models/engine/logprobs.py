"""Computes a model's own probabilities of tokens: log-softmax of its logits before any sampling.

vLLM calls these `raw_logprobs`. They come from the target's passes alone. So they do not depend on
drafters or on the number of tokens that were verified at once. Every value is a function of its
row, and of its mask if a session asks for that. Then it knows only allowed tokens. Only the
likeliest tokens and the one asked for are kept of a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from models.device import fetch, to_device
from models.protocol.messages import TokenLogprobs
from models.protocol.packed_logprobs import pack
from models.sampling.logits import mask_logits
from models.sampling.verification import accept_in_tree, accept_matching
from models.scheduler.sessions import Job, Session

_ROWS_AT_ONCE = 64  # rows whose log-softmax is in memory together


@torch.inference_mode()
def token_logprobs(
    logits: Tensor,  # [R, V] float32, not changed
    tokens: Sequence[int],  # [R] the token whose probability each row gives
    num_top: int,  # likeliest tokens to name; at most V are, and none that is impossible
) -> list[TokenLogprobs]:
    """Return one entry per row."""
    entries: list[TokenLogprobs] = []
    for first in range(0, len(tokens), _ROWS_AT_ONCE):
        stop = first + _ROWS_AT_ONCE
        entries += _some_rows(logits[first:stop], tokens[first:stop], num_top)
    return entries


def note_logprobs(jobs: Sequence[tuple[Session, Job]], sampled: Sequence[Sequence[int]]) -> None:
    """Give each job whose session asks for them the entries of the tokens it is to commit.

    `sampled` are the samples of its rows or the tokens of its rule. The committed tokens are its
    beginning, see `accept_matching`, or those of a path, see `accept_in_tree`.
    """
    for (session, job), tokens in zip(jobs, sampled, strict=True):
        num_top = session.opened.sampling.num_logprobs
        if num_top < 0 or job.logits is None or not tokens:
            continue
        if job.tree is None:
            verdict = accept_matching(job.draft, tokens, session.opened.eos_ids)
            committed = tokens[: verdict.num_accepted + 1]
            logits = job.logits[: len(committed)]
        else:
            rows, _ = accept_in_tree(job.tree, tokens, session.opened.eos_ids)
            committed = [tokens[row] for row in rows]
            logits = job.logits[to_device(rows, job.logits.device)]
        if session.opened.sampling.masks_logprobs and job.mask is not None:
            # A mask is of one path: there is no tree.
            logits = mask_logits(logits, (job.mask.rows or [])[: len(logits)])
        job.logprobs = token_logprobs(logits, committed, num_top)


def note_prompt_logits(session: Session, start: int, logits: Tensor) -> None:
    """Add what the rows of prompt tokens [start, start + R) say of the tokens after them.

    Args:
        session: it has the entries of the rows before `start`.
        start: position of the first row.
        logits: float32 [R, V].
    """
    if session.taker is not None:
        session.taker.take(start, logits)
        return
    tokens = session.tokens.ids[start + 1 : start + 1 + len(logits)]
    num_top = session.opened.sampling.num_prompt_logprobs
    session.prompt_logprobs += map(pack, token_logprobs(logits, tokens, num_top))


def _some_rows(logits: Tensor, tokens: Sequence[int], num_top: int) -> list[TokenLogprobs]:
    num_top = min(num_top, logits.shape[1])
    logprobs = torch.log_softmax(logits, dim=1)
    ids = to_device(tokens, logits.device, torch.int64)[:, None]
    ranks = (logits >= logits.gather(1, ids)).sum(dim=1, keepdim=True)
    top_ids = torch.topk(logits, num_top, dim=1).indices
    of_ids = logprobs.gather(1, torch.cat([ids, top_ids], dim=1))
    # In one download; float64 holds every float32 and every id.
    rows = fetch(torch.cat([of_ids.double(), ranks.double(), top_ids.double()], dim=1))
    return [
        TokenLogprobs(
            token,
            row[0],
            int(row[1 + num_top]),
            tuple(
                (int(top_id), logprob)
                for top_id, logprob in zip(row[2 + num_top :], row[1 : 1 + num_top], strict=True)
                if logprob > -math.inf  # a mask may allow fewer
            ),
        )
        for token, row in zip(tokens, rows, strict=True)
    ]
