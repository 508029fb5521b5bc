"""Tokens a request forbids or favours: bad words, min_tokens, logit bias.

Forbidden tokens depend on the generated tokens before a row. So each row of a verify is asked with
the draft tokens before it. Meaning and order are those of vLLM (v1). Bad words are matched in
generated text only, and a bias is added to the logit, whatever its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from models.device import to_device
from models.protocol.messages import Sampling


def has_rules(sampling: Sampling) -> bool:
    """Return whether `forbidden_ids` may name any token."""
    return sampling.min_tokens > 0 or bool(sampling.bad_words)


def forbidden_ids(
    sampling: Sampling,
    eos_ids: Iterable[int],
    generated: Sequence[int],  # the generated tokens before the row
) -> list[int]:
    """Ids that must not follow `generated`."""
    ids = list(eos_ids) if len(generated) < sampling.min_tokens else []
    for word in sampling.bad_words:
        num_before = len(word) - 1
        if num_before < 0 or num_before > len(generated):
            continue
        if tuple(generated[len(generated) - num_before :]) == word[:-1]:
            ids.append(word[-1])
    return ids


def forbid(
    scores: Tensor,  # [R, V], not changed
    forbidden: Sequence[Sequence[int]],  # [R] ids, or nothing at all
) -> Tensor:
    """Scores with -inf at the forbidden ids of each row; ids beyond the vocabulary have none.

    A row that would be left with nothing stays as it is. The grammar allows only the end after a
    complete JSON text, and there min_tokens yields.
    """
    vocab_size = scores.shape[1]
    places = [
        (row, token_id)
        for row, ids in enumerate(forbidden)
        for token_id in ids
        if 0 <= token_id < vocab_size
    ]
    if not places:
        return scores
    rows = sorted({row for row, _ in places})
    index = to_device(rows, scores.device)
    place_of = {row: place for place, row in enumerate(rows)}
    before = scores[index]
    after = before.index_put(
        (
            to_device([place_of[row] for row, _ in places], scores.device),
            to_device([token_id for _, token_id in places], scores.device),
        ),
        to_device(-torch.inf, scores.device, scores.dtype),
    )
    is_empty = after.amax(dim=1, keepdim=True) == -torch.inf
    return scores.index_copy(0, index, torch.where(is_empty, before, after))


def add_bias(scores: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Scores [R, V] plus each row's logit bias; an id that comes twice is biased twice."""
    vocab_size = scores.shape[1]
    places = [
        (row, token_id, bias)
        for row, sampling in enumerate(samplings)
        for token_id, bias in sampling.logit_bias
        if 0 <= token_id < vocab_size
    ]
    if not places:
        return scores
    rows, token_ids, biases = zip(*places, strict=True)
    return scores.index_put(
        (
            to_device(rows, scores.device),
            to_device(token_ids, scores.device),
        ),
        to_device(biases, scores.device, scores.dtype),
        accumulate=True,
    )
