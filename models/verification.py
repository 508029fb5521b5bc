"""Drawing tokens and judging drafts. Pure functions; they know neither sessions nor engines.

`coupled`: the target draws t = argmax(score + g(seed, position, token)) in every row, and a draft
token stands iff it equals t. The text is then a function of the seed and the target's logits
alone: no draft, k or batch can change it, and only ids travel (Daliri et al., arXiv 2408.07978).
Greedy is the same with no noise. A rule that also looks at draft probabilities (`rejection`)
belongs here as another function that returns an `Acceptance`; it must take its noise from
domains of its own, because this one's noise has already chosen the draft.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from models.messages import Sampling
from models.noise import gumbel_noise


class Acceptance(NamedTuple):
    """`num_accepted` draft tokens stand and `token` follows them."""

    num_accepted: int
    token: int


def draw_tokens(
    scores: Tensor,  # [R, V] float32 from `process_logits`
    samplings: Sequence[Sampling],  # [R]
    positions: Sequence[int],  # [R] absolute index of the token drawn from the row
) -> list[int]:
    """One token id per row; the lowest id where scores tie. Safe to repeat.

    A row of nothing but -inf gives some id: the caller checks constrained draws by their mask.
    """
    rows = [row for row, sampling in enumerate(samplings) if sampling.temperature > 0]
    if rows:
        noise = gumbel_noise(
            [samplings[row].seed for row in rows],
            [positions[row] for row in rows],
            scores.shape[1],
            scores.device,
        )
        if len(rows) == len(samplings):
            scores = noise.add_(scores)
        else:
            index = torch.tensor(rows, device=scores.device)
            scores = scores.index_copy(0, index, noise.add_(scores[index]))
    return scores.argmax(dim=1).tolist()


def accept_matching(
    draft: Sequence[int],  # [k]
    drawn: Sequence[int],  # [m] target's draws, 1 <= m <= k + 1; row i follows draft[:i]
    eos_ids: Collection[int],
) -> Acceptance:
    """The longest prefix of the draft that the target drew too, and the target's next token.

    It stops at an eos the target drew, which is then `token`: nothing follows it. With fewer rows
    than k + 1 the draft tokens without a row are refused.
    """
    for num_accepted, token in enumerate(drawn[:-1]):
        if token != draft[num_accepted] or token in eos_ids:
            return Acceptance(num_accepted, token)
    return Acceptance(len(drawn) - 1, drawn[-1])
