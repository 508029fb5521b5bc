"""Top-k and top-p: scores below each row's cut become -inf.

Cuts are by value, so tokens of equal score stay or go together. Weights are added as 64-bit
integers, whose sum does not depend on the order in which a device adds them. A CPU sorts the most
likely tokens and looks whether they were enough. A GPU must not wait for such a look. There whole
rows are sorted, some at a time because a sort needs several times their memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from models.device import to_device
from models.protocol.messages import Sampling

# Probabilities are added in fixed point: the largest weight, 2^22 of which still fit in int64.
WEIGHT_ONE = float(1 << 40)
_FIRST_CANDIDATES = 256  # top-p of usual text needs fewer; rows that need more are done again
_SORTED_AT_ONCE = 32  # rows: of 152,000 scores each they take some 300 MB, by their types


def truncates(sampling: Sampling, vocab_size: int) -> bool:
    """Return whether `truncate` would change anything."""
    if sampling.temperature == 0:
        return False
    return 0 < sampling.top_k < vocab_size or sampling.top_p < 1


def truncate(scores: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Scores [R, V] float32 with -inf below each row's top-k and top-p cut."""
    vocab_size = scores.shape[1]
    wanted = [min(sampling.top_k or vocab_size, vocab_size) for sampling in samplings]
    top_k = to_device(wanted, scores.device)[:, None]
    top_ps = [sampling.top_p for sampling in samplings]
    top_p = to_device(top_ps, scores.device, torch.float64)[:, None]
    if scores.device.type != "cpu":
        return scores.masked_fill(scores < whole_cut(scores, top_k, top_p), -torch.inf)
    wanted_k = max((s.top_k for s in samplings if s.top_k < vocab_size), default=0)
    num_candidates = min(vocab_size, max(_FIRST_CANDIDATES, wanted_k))
    cut, is_known = sorted_cut(scores, top_k, top_p, num_candidates)
    if num_candidates < vocab_size:
        wide = (~is_known[:, 0]).nonzero()[:, 0]  # only these: a whole sort takes 20 times as long
        if len(wide) > 0:
            cut[wide] = sorted_cut(scores[wide], top_k[wide], top_p[wide], vocab_size)[0]
    return scores.masked_fill(scores < cut, -torch.inf)


def sorted_cut(
    scores: Tensor,  # [R, V]
    top_k: Tensor,  # [R, 1] int64, V where off
    top_p: Tensor,  # [R, 1] float64, 1 where off
    num_candidates: int,
) -> tuple[Tensor, Tensor]:
    """Return the lowest score that stays, [R, 1], and whether there were enough candidates to tell.

    Top-p keeps the smallest set of the largest scores whose weight reaches top_p of the weight
    after min-p and top-k. A token stays if the weight before it is below that.
    """
    if num_candidates == scores.shape[1]:
        values = scores.sort(dim=1, descending=True).values
    else:
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


def whole_cut(
    scores: Tensor,  # [R, V]
    top_k: Tensor,  # [R, 1] int64, V where off
    top_p: Tensor,  # [R, 1] float64, 1 where off
) -> Tensor:
    """Return the lowest score that stays, [R, 1], without a look at any value on the host."""
    vocab_size = scores.shape[1]
    parts = zip(*(each.split(_SORTED_AT_ONCE) for each in (scores, top_k, top_p)), strict=True)
    return torch.cat([sorted_cut(rows, ks, ps, vocab_size)[0] for rows, ks, ps in parts])


def _weights(scores: Tensor, top: Tensor, lowest: Tensor) -> Tensor:
    """exp(score - top) in fixed point, int64; 0 below `lowest`."""
    weights = torch.exp(scores - top).to(torch.float64).mul_(WEIGHT_ONE).to(torch.int64)
    return weights.masked_fill_(scores < lowest, 0)
