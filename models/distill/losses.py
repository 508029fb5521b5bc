"""Losses that train a drafter, and measures that judge its drafts.

Let p be the target's distribution of the next token and q the drafter's. The rejection rule then
accepts a token with probability sum min(p, q). The probability is the coupling's formula under
shared noise. Its gradient is not cheap, and the same sum is close to it (LK losses 2602.23881, nla;
Daliri et al. 2408.07978). Columns stand for the ids that are drafted. Other ids have q = 0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

LOSSES = ("kl", "lk_hybrid", "nla")
KL_SHARE = 0.9  # the rest is cross entropy of the text itself
_HYBRID_RATE = 3.0  # how fast lk_hybrid turns from divergence to distance as acceptance grows


class Acceptance(NamedTuple):
    """The probability that a drafted token is accepted after accepted ones; shares.

    Attributes:
        greedy: at temperature 0.
        coupled: at temperature 1 under shared noise, the expectation over the noise.
        rejection: at temperature 1 by the rejection rule.
    """

    greedy: float
    coupled: float
    rejection: float


def token_losses(logits: Tensor, log_probs: Tensor, columns: Tensor, kind: str) -> Tensor:
    """Return the loss [K] of each place.

    Args:
        logits: [K, N] of the drafter.
        log_probs: [K, N] of the target.
        columns: [K] of the tokens that the text goes on with; -1: not drafted.
        kind: one of `LOSSES`: `kl` is mostly the divergence, `lk_hybrid` turns from it to the
            total variation as acceptance grows, `nla` is -log acceptance.
    """
    student = torch.log_softmax(logits.float(), dim=-1)
    teacher = log_probs.exp()
    if kind == "nla":
        return -_overlap(student, teacher).clamp_min(1e-6).log()
    divergence = (teacher * (log_probs - student)).sum(dim=-1)
    if kind == "kl":
        surprise = -student.gather(-1, columns.clamp_min(0).unsqueeze(-1)).squeeze(-1)
        return KL_SHARE * divergence + (1 - KL_SHARE) * surprise * (columns >= 0)
    accepted = _overlap(student, teacher)
    share = torch.exp(-_HYBRID_RATE * accepted.detach())
    return share * divergence + (1 - share) * (1 - accepted)


def _overlap(student: Tensor, teacher: Tensor) -> Tensor:
    return torch.minimum(student.exp(), teacher).sum(dim=-1)


@torch.no_grad()
def acceptance_of(logits: Tensor, log_probs: Tensor) -> Acceptance:
    """Means over places; see `token_losses`."""
    p, q = log_probs.exp(), torch.softmax(logits.float(), dim=-1)
    left = 1.0 - p.sum(dim=-1)  # probability of the ids that are not drafted
    best = p.max(dim=-1)
    # An id that is not drafted is the target's own choice only if it has more than the best here,
    # which is certain where less than that is left.
    same = (best.indices == q.argmax(dim=-1)) & (best.values > left)
    shared = [coupled(*each) for each in zip(p, q, left.tolist(), strict=True)]
    return Acceptance(
        float(same.float().mean()),
        float(torch.stack(shared).mean()),
        float(torch.minimum(p, q).sum(dim=-1).mean()),
    )


def coupled(p: Tensor, q: Tensor, left: float = 0.0) -> Tensor:
    """Return the chance that argmax(log p + g) is argmax(log q + g).

    It is the sum over x of 1 / sum over y of max(p_y / p_x, q_y / q_x). An x that is unlikely for
    one of them adds nothing.

    Args:
        p: [N] of the target.
        q: [N] of the drafter.
        left: what the target gives to ids beside these.
    """
    is_likely = (p > 1e-4) & (q > 1e-6)
    own_p, own_q = p[is_likely, None], q[is_likely, None]
    ratios = torch.maximum(p / own_p, q / own_q).sum(dim=1) + left / own_p[:, 0]
    return (1.0 / ratios).sum()
