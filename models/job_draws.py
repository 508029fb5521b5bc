"""Draws tokens for jobs of several sessions together: their logits, masks and terms in one batch.

The step between a pass and what an engine makes of it. A constrained row without a mask is never
drawn from, and a token its mask forbids never leaves here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from models.logits import is_allowed, process_logits
from models.messages import Sampling
from models.session_table import Job, Session
from models.verification import draw_tokens


def is_drawable(job: Job) -> bool:
    """Whether its logits and, if it is constrained, its masks are there."""
    return job.logits is not None and (job.mask is None or job.mask.rows is not None)


def num_drawable(job: Job) -> int:
    """Rows with logits and, if constrained, a mask."""
    if job.mask is None or job.mask.rows is None:
        return job.num_logits
    return min(job.num_logits, len(job.mask.rows))


@torch.inference_mode()
def draw_rows(jobs: list[tuple[Session, Job]], whole: Tensor | None) -> list[list[int]]:
    """Tokens for each job's rows; `whole` [R, V] are their logits in order, if they are in one."""
    if not jobs:
        return []
    samplings: list[Sampling] = []
    positions: list[int] = []
    masks: list[memoryview | None] = []
    parts: list[Tensor] = []
    counts: list[int] = []
    for session, job in jobs:
        count = num_drawable(job)
        first = len(session.log) - job.num_logits + 1  # absolute index of the first token drawn
        counts.append(count)
        samplings += [session.opened.sampling] * count
        positions += range(first, first + count)
        masks += [None] * count if job.mask is None else (job.mask.rows or [])[:count]
        if whole is None and job.logits is not None:
            parts.append(job.logits[:count])
    logits = torch.cat(parts) if whole is None else whole
    tokens = draw_tokens(process_logits(logits, samplings, masks), samplings, positions)
    drawn: list[list[int]] = []
    for count in counts:
        drawn.append(tokens[:count])
        del tokens[:count]
    return drawn


def legal_prefix(job: Job, tokens: list[int]) -> list[int]:
    """The tokens before the first one its mask forbids (a row may allow none at all)."""
    if job.mask is None or job.mask.rows is None:
        return tokens
    for i, (mask, token) in enumerate(zip(job.mask.rows, tokens, strict=False)):
        if not is_allowed(mask, token):
            return tokens[:i]
    return tokens
