"""The truncated distribution a draft token is sampled from under `rejection`, here and on the wire.

The draft model keeps its `NUM_PAIRS` most likely tokens, renormalises them and samples from exactly
that float32 distribution. So the target needs only a few pairs per token. The draft's probability
is 0 outside them. The rule is exact for the real distribution of each token (Leviathan, Kalman,
Matias, arXiv 2211.17192). None of this is computed or sent under `coupled`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.protocol.messages import DraftProbs
from models.sampling.noise import DOMAIN_DRAFT, gumbel_noise_at

NUM_PAIRS = 64  # out of 128k tokens; the tail it cuts costs far less than a point of acceptance
_SUM_TOLERANCE = 1e-4  # float32 rows sum to 1 within 1e-6; more says that something else was sent


@dataclass(frozen=True, slots=True, eq=False)
class DraftRow:
    """The distribution one draft token was sampled from; tokens not named have probability 0."""

    token_ids: np.ndarray  # [m] int32; an id may repeat, with probability 0
    probs: np.ndarray  # [m] float32

    def prob_of(self, token_id: int) -> float:
        """Return the probability of a token."""
        return float(self.probs[self.token_ids == token_id].sum())


def certain_row(token_id: int) -> DraftRow:
    """Return the row of a certain token that was not sampled (prompt lookup, forced text)."""
    return DraftRow(np.array([token_id], dtype=np.int32), np.ones(1, dtype=np.float32))


def draw_truncated(
    scores: Tensor,  # [R, V] float32 from `process_logits`, temperature above 0
    seeds: Sequence[int],  # [R]
    positions: Sequence[int],  # [R] absolute index of the token sampled from the row
) -> tuple[list[int], list[DraftRow]]:
    """Draw one draft token per row and return its distribution. Safe to repeat.

    If scores tie at the cut, the lowest ids stay. A row of nothing but -inf gives some id: the
    caller checks constrained samples by their mask.
    """
    token_ids = _top_ids(scores, min(NUM_PAIRS, scores.shape[1]))
    probs = _renormalised(scores, token_ids)
    noise = gumbel_noise_at(seeds, positions, token_ids, DOMAIN_DRAFT)
    sampled = (probs.double().log() + noise).argmax(dim=1, keepdim=True)
    # One download has ids, probabilities and the sampled token of each row.
    ids_sampled = torch.cat([token_ids, token_ids.gather(1, sampled)], dim=1).to(torch.int32)
    packed = torch.cat([ids_sampled, probs.view(torch.int32)], dim=1).cpu().numpy()
    num_ids = token_ids.shape[1]
    rows = [DraftRow(row[:num_ids], row[num_ids + 1 :].view(np.float32)) for row in packed]
    return packed[:, num_ids].tolist(), rows


def pack(rows: Sequence[DraftRow]) -> DraftProbs | None:
    """Rows of one width as they travel; None where there are none."""
    if not rows:
        return None
    return DraftProbs(
        num_pairs=len(rows[0].token_ids),
        token_ids=b"".join(row.token_ids.astype("<i4", copy=False).tobytes() for row in rows),
        probs=b"".join(row.probs.astype("<f4", copy=False).tobytes() for row in rows),
    )


def unpack(message: DraftProbs, draft: Sequence[int], vocab_size: int) -> list[DraftRow]:
    """Return the row of each token of `draft`.

    Raises:
        ValueError: sizes do not fit the draft, or the values are no distributions its tokens can
            have been sampled from; the message names field, limit and value.
    """
    num_pairs, num_rows = message.num_pairs, len(draft)
    if not 1 <= num_pairs <= vocab_size:
        raise ValueError(f"draft_probs.num_pairs must be within 1..{vocab_size}, got {num_pairs}")
    num_bytes = 4 * num_rows * num_pairs
    for name, data in (("token_ids", message.token_ids), ("probs", message.probs)):
        if len(data) != num_bytes:
            raise ValueError(
                f"draft_probs.{name} must have {num_bytes} bytes for {num_rows} draft tokens "
                f"of {num_pairs} pairs, got {len(data)}"
            )
    token_ids = np.frombuffer(message.token_ids, dtype="<i4").reshape(num_rows, num_pairs)
    probs = np.frombuffer(message.probs, dtype="<f4").reshape(num_rows, num_pairs)
    _check_values(token_ids, probs, vocab_size)
    rows = [DraftRow(ids, row) for ids, row in zip(token_ids, probs, strict=True)]
    for i, (row, token_id) in enumerate(zip(rows, draft, strict=True)):
        if row.prob_of(token_id) <= 0:
            raise ValueError(f"draft_probs row {i} gives draft token {token_id} probability 0")
    return rows


def _check_values(token_ids: np.ndarray, probs: np.ndarray, vocab_size: int) -> None:
    if not probs.size:
        return
    lowest, highest = int(token_ids.min()), int(token_ids.max())
    if lowest < 0 or highest >= vocab_size:
        raise ValueError(
            f"draft_probs.token_ids must be within 0..{vocab_size - 1}, got {lowest}..{highest}"
        )
    if not (np.isfinite(probs) & (probs >= 0)).all():
        raise ValueError("draft_probs.probs must be finite and not negative")
    sums = probs.sum(axis=1, dtype=np.float64)
    worst = float(sums[np.abs(sums - 1).argmax()])
    if abs(worst - 1) > _SUM_TOLERANCE:
        raise ValueError(
            f"draft_probs.probs must sum to 1 in each row within {_SUM_TOLERANCE}, got {worst:.6g}"
        )


def _renormalised(scores: Tensor, token_ids: Tensor) -> Tensor:
    """Softmax over the tokens that stay, float32 [R, m]."""
    return torch.softmax(scores.gather(1, token_ids).double(), dim=1).to(torch.float32)


def _top_ids(scores: Tensor, num_ids: int) -> Tensor:
    """Ids of the `num_ids` largest scores of each row, rising, int64 [R, num_ids].

    `topk` alone may choose any of equal scores.
    """
    if scores.device.type != "cpu":
        return _top_ids_unseen(scores, num_ids)
    cut = torch.topk(scores, num_ids, dim=1).values[:, -1:]
    stays = scores >= cut
    if int(stays.sum()) > num_ids * len(scores):
        stays = _without_late_ties(scores, stays, cut, num_ids)
    return stays.nonzero()[:, 1].view(len(scores), num_ids)


def _top_ids_unseen(scores: Tensor, num_ids: int) -> Tensor:
    """Return the top ids without a look at any value, which would wait for a GPU."""
    cut = torch.topk(scores, num_ids, dim=1).values[:, -1:]
    stays = _without_late_ties(scores, scores >= cut, cut, num_ids)
    ids = torch.arange(scores.shape[1], device=scores.device).expand_as(scores)
    kept = ids.masked_fill(~stays, scores.shape[1])
    return torch.topk(kept, num_ids, dim=1, largest=False, sorted=True).values


def _without_late_ties(scores: Tensor, stays: Tensor, cut: Tensor, num_ids: int) -> Tensor:
    """`stays` [R, V] less the highest ids that tie at the cut, so that `num_ids` are left."""
    above = scores > cut
    tied = stays & ~above
    num_free = num_ids - above.sum(dim=1, keepdim=True)
    return above | (tied & (tied.cumsum(dim=1) <= num_free))
