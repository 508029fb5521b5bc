"""Chooses the tokens that a head drafts.

The most frequent ones are enough if the whole vocabulary would cost more than it brings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor

from models.distill.answers import Answer


def frequent_ids(answers: Iterable[Answer], count: int) -> Tensor:
    """[N] the `count` most frequent ids of the answers, or as many as there are, rising."""
    seen = Counter(token for answer in answers for token in answer.answer_ids)
    return torch.tensor(sorted(token for token, _ in seen.most_common(count)))
