"""Logits to scores: the one function that draft rows, verify rows and plain decoding share.

Order as in vLLM's sampler (v1): mask, forbidden tokens (bad words, min_tokens), logit bias,
penalties, temperature, min-p, top-k, top-p; top-k counts and top-p adds up what those before it
left. A score is a biased and penalised logit divided by the temperature, or -inf where the token
may not be drawn; nothing is normalised, because a draw is `argmax(score + noise)`. Rows with
temperature 0 keep their masked, biased and penalised logits.

Invariant: a row's scores are a function of that row and the tokens before it alone, bit for bit.
Truncation cuts by value, so tokens of equal score stay or go together, and it adds weights as
64-bit integers, whose sum does not depend on the order in which a device adds them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from models.messages import Sampling
from models.penalties import RowCounts, penalise
from models.token_rules import add_bias, forbid

_WEIGHT_ONE = float(1 << 40)  # fixed point of the largest weight; 2^22 of them still fit in int64
_FIRST_CANDIDATES = 256  # top-p of usual text needs fewer; rows that need more are done again


def process_logits(
    logits: Tensor,  # [R, V] float32, not changed
    samplings: Sequence[Sampling],  # [R]
    masks: Sequence[bytes | memoryview | None],  # [R] allowed-token bits, None: unconstrained
    counts: Sequence[RowCounts | None] = (),  # [R] or none: tokens so far; None: no penalties
    forbidden: Sequence[Sequence[int]] = (),  # [R] or none: ids as `token_rules` has them
) -> Tensor:
    """Scores, float32 [R, V]; may be `logits` itself where there is nothing to do.

    A mask is a row of little-endian 32-bit words, bit t for token t, as llguidance fills it;
    tokens behind its end are forbidden.
    """
    scores = forbid(_masked(logits, masks), forbidden)
    scores = _penalised(add_bias(scores, samplings), samplings, counts)
    if all(sampling.temperature == 0 for sampling in samplings):
        return scores
    temperatures = [sampling.temperature or 1.0 for sampling in samplings]
    scores = scores / torch.tensor(temperatures, device=logits.device)[:, None]
    if any(sampling.min_p > 0 for sampling in samplings):
        scores.masked_fill_(scores < _min_p_cut(scores, samplings), -torch.inf)
    vocab_size = logits.shape[1]
    rows = [row for row, sampling in enumerate(samplings) if _truncates(sampling, vocab_size)]
    if rows:
        index = torch.tensor(rows, device=logits.device)
        truncated = _truncate(scores[index], [samplings[row] for row in rows])
        scores.index_copy_(0, index, truncated)
    return scores


def is_allowed(mask: bytes | memoryview, token_id: int) -> bool:
    """Whether a mask row allows `token_id`."""
    byte = token_id >> 3
    return byte < len(mask) and bool(mask[byte] >> (token_id & 7) & 1)


def _truncates(sampling: Sampling, vocab_size: int) -> bool:
    if sampling.temperature == 0:
        return False
    return 0 < sampling.top_k < vocab_size or sampling.top_p < 1


def _penalised(
    scores: Tensor, samplings: Sequence[Sampling], counts: Sequence[RowCounts | None]
) -> Tensor:
    """Scores [R, V] less the penalties of the rows that have any."""
    found = [(row, count) for row, count in enumerate(counts) if count is not None]
    if not found:
        return scores
    penalised = [samplings[row] for row, _ in found]
    if len(found) == len(samplings):
        return penalise(scores, penalised, [count for _, count in found])
    index = torch.tensor([row for row, _ in found], device=scores.device)
    changed = penalise(scores[index], penalised, [count for _, count in found])
    return scores.index_copy(0, index, changed)


def _masked(logits: Tensor, masks: Sequence[bytes | memoryview | None]) -> Tensor:
    """Logits [R, V] with -inf where a row's mask forbids the token."""
    rows = [row for row, mask in enumerate(masks) if mask is not None]
    if not rows:
        return logits
    vocab_size = logits.shape[1]
    num_bytes = -(-vocab_size // 8)
    packed = bytearray()
    for mask in masks:
        if mask is not None:
            packed += bytes(mask[:num_bytes]).ljust(num_bytes, b"\0")
    words = torch.frombuffer(packed, dtype=torch.uint8).to(logits.device)
    bits = words.view(len(rows), num_bytes, 1) & _bit_values(logits.device)
    forbidden = (bits == 0).view(len(rows), num_bytes * 8)[:, :vocab_size]
    if len(rows) == len(masks):
        return logits.masked_fill(forbidden, -torch.inf)
    index = torch.tensor(rows, device=logits.device)
    return logits.index_copy(0, index, logits[index].masked_fill_(forbidden, -torch.inf))


@lru_cache(maxsize=8)
def _bit_values(device: torch.device) -> Tensor:
    return torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=device)


def _min_p_cut(scores: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """The lowest score that stays, [R, 1]: that of min_p times the largest probability."""
    depths = [
        math.log(sampling.min_p) if sampling.min_p > 0 and sampling.temperature > 0 else -math.inf
        for sampling in samplings
    ]
    depth = torch.tensor(depths, dtype=torch.float32, device=scores.device)[:, None]
    return scores.amax(dim=1, keepdim=True) + depth


def _truncate(scores: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Scores [R, V] with -inf below each row's top-k and top-p cut."""
    vocab_size = scores.shape[1]
    top_k = torch.tensor(
        [min(sampling.top_k or vocab_size, vocab_size) for sampling in samplings],
        device=scores.device,
    )[:, None]
    top_p = torch.tensor([sampling.top_p for sampling in samplings], dtype=torch.float64)
    top_p = top_p.to(scores.device)[:, None]
    wanted_k = max((s.top_k for s in samplings if s.top_k < vocab_size), default=0)
    num_candidates = min(vocab_size, max(_FIRST_CANDIDATES, wanted_k))
    while True:
        cut, is_known = _cut_values(scores, top_k, top_p, num_candidates)
        if num_candidates == vocab_size or bool(is_known.all()):
            return scores.masked_fill(scores < cut, -torch.inf)
        num_candidates = vocab_size


def _cut_values(
    scores: Tensor,  # [R, V]
    top_k: Tensor,  # [R, 1] int64, V where off
    top_p: Tensor,  # [R, 1] float64, 1 where off
    num_candidates: int,
) -> tuple[Tensor, Tensor]:
    """The lowest score that stays, [R, 1], and whether the candidates were enough to tell.

    Top-p keeps the smallest set of the largest scores whose weight reaches top_p of what min-p and
    top-k left: a token stays if the weight before it is below that.
    """
    values = torch.topk(scores, num_candidates, dim=1).values  # falling
    last = (top_k - 1).clamp(max=num_candidates - 1)
    kth_value = torch.where(top_k <= num_candidates, values.gather(1, last), -torch.inf)
    top = values[:, :1]
    total = _weights(scores, top, kth_value).sum(dim=1, keepdim=True)
    weights = _weights(values, top, kth_value)
    before = weights.cumsum(dim=1) - weights
    stays = before.to(torch.float64) < top_p * total.to(torch.float64)
    num_staying = stays.sum(dim=1, keepdim=True)
    nucleus_value = values.gather(1, (num_staying - 1).clamp(min=0))
    nucleus_value = torch.where(top_p < 1, nucleus_value, -torch.inf)
    is_known = (num_staying < num_candidates) | (top_p >= 1)
    return torch.maximum(kth_value, nucleus_value), is_known


def _weights(scores: Tensor, top: Tensor, lowest: Tensor) -> Tensor:
    """exp(score - top) in fixed point, int64; 0 below `lowest`."""
    weights = torch.exp(scores - top).to(torch.float64).mul_(_WEIGHT_ONE).to(torch.int64)
    return weights.masked_fill_(scores < lowest, 0)
