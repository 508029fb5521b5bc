"""Logits to scores: the one function that draft rows, verify rows and plain decoding share.

The order is that of vLLM's sampler (v1). First come mask, forbidden tokens (bad words, min_tokens),
logit bias and penalties. Temperature, min-p, top-k and top-p follow. top-k counts and top-p adds up
the tokens that the steps before it left. A score is a biased and penalised logit divided by the
temperature. It is -inf if the token may not be sampled. Nothing is normalised, because a sample is
`argmax(score + noise)`. Rows with temperature 0 keep their masked, biased and penalised logits.

Invariant: a row's scores are a function of that row and the tokens before it alone, bit for bit.
Truncation (`models/sampling/truncation.py`) cuts by value, so tokens of equal score stay or go
together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from models.device import array_to_device, to_device
from models.protocol.messages import Sampling
from models.sampling.penalties import RowCounts, penalise
from models.sampling.token_rules import add_bias, forbid
from models.sampling.truncation import truncate, truncates


def process_logits(
    logits: Tensor,  # [R, V] float32, not changed
    samplings: Sequence[Sampling],  # [R]
    masks: Sequence[bytes | memoryview | None],  # [R] allowed-token bits, None: unconstrained
    counts: Sequence[RowCounts | None] = (),  # [R] or none: tokens so far; None: no penalties
    forbidden: Sequence[Sequence[int]] = (),  # [R] or none: ids as `token_rules` has them
) -> Tensor:
    """Scores, float32 [R, V]; may be `logits` itself where there is nothing to do.

    A mask is a row of little-endian 32-bit words, bit t for token t, as llguidance fills it. Tokens
    after its end are forbidden.
    """
    return shaped_scores(adjust_logits(logits, samplings, masks, counts, forbidden), samplings)


def adjust_logits(
    logits: Tensor,  # [R, V] float32, not changed
    samplings: Sequence[Sampling],  # [R]
    masks: Sequence[bytes | memoryview | None],  # as `process_logits`
    counts: Sequence[RowCounts | None] = (),
    forbidden: Sequence[Sequence[int]] = (),
) -> Tensor:
    """Apply the steps before the temperature, if a row needs any: [R, V], may be `logits`."""
    allowed = forbid(mask_logits(logits, masks), forbidden)
    return _penalised(add_bias(allowed, samplings), samplings, counts)


def shaped_scores(logits: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Return scores [R, V] by the steps from the temperature on; the logits stay as they are.

    They may be `logits` itself if no row has a temperature.
    """
    if all(sampling.temperature == 0 for sampling in samplings):
        return logits
    temperatures = [sampling.temperature or 1.0 for sampling in samplings]
    scores = logits / to_device(temperatures, logits.device)[:, None]
    if any(sampling.min_p > 0 for sampling in samplings):
        scores.masked_fill_(scores < _min_p_cut(scores, samplings), -torch.inf)
    vocab_size = logits.shape[1]
    rows = [row for row, sampling in enumerate(samplings) if truncates(sampling, vocab_size)]
    if rows:
        index = to_device(rows, logits.device)
        truncated = truncate(scores[index], [samplings[row] for row in rows])
        scores.index_copy_(0, index, truncated)
    return scores


def is_allowed(mask: bytes | memoryview, token_id: int) -> bool:
    """Return whether a mask row allows `token_id`."""
    byte = token_id >> 3
    return byte < len(mask) and bool(mask[byte] >> (token_id & 7) & 1)


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
    index = to_device([row for row, _ in found], scores.device)
    changed = penalise(scores[index], penalised, [count for _, count in found])
    return scores.index_copy(0, index, changed)


def mask_logits(logits: Tensor, masks: Sequence[bytes | memoryview | None]) -> Tensor:
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
    forbidden = _unset_bits(np.frombuffer(packed, dtype=np.uint8), vocab_size, logits.device)
    if len(rows) == len(masks):
        return logits.masked_fill(forbidden, -torch.inf)
    index = to_device(rows, logits.device)
    return logits.index_copy(0, index, logits[index].masked_fill_(forbidden, -torch.inf))


def _unset_bits(packed: np.ndarray, num_bits: int, device: torch.device) -> Tensor:
    """Return the 0 bits of each row, bool [R, num_bits]; a GPU gets the bytes and unpacks them."""
    num_bytes = -(-num_bits // 8)
    rows = packed.reshape(-1, num_bytes)
    if device.type == "cpu":
        return torch.from_numpy(np.unpackbits(rows, axis=1, count=num_bits, bitorder="little") == 0)
    words = array_to_device(packed, device)
    bits = words.view(len(rows), num_bytes, 1) & _bit_values(device)
    return (bits == 0).view(len(rows), num_bytes * 8)[:, :num_bits]


@lru_cache(maxsize=8)
def _bit_values(device: torch.device) -> Tensor:
    return to_device([1, 2, 4, 8, 16, 32, 64, 128], device, torch.uint8)


def min_p_depth(sampling: Sampling) -> float:
    """Return how far below the best score a score may be, at most 0; -inf means no limit."""
    is_on = sampling.min_p > 0 and sampling.temperature > 0
    return math.log(sampling.min_p) if is_on else -math.inf


def _min_p_cut(scores: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Return the lowest score that stays, [R, 1].

    It is that of min_p times the largest probability.
    """
    depths = [min_p_depth(sampling) for sampling in samplings]
    depth = to_device(depths, scores.device, torch.float32)[:, None]
    return scores.amax(dim=1, keepdim=True) + depth
