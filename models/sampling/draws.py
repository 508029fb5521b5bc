"""Adjusted logits to tokens: in one step where there are kernels for it, through scores elsewhere.

Both give the same token, but for near ties that the last bit of a logarithm decides. GPUs have
kernels of this room. Those of CPUs are of a room above, which hands its draw over (`use_on_cpu`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from models.device import array_to_device
from models.protocol.messages import Sampling
from models.sampling.logits import min_p_depth, shaped_scores
from models.sampling.noise import stream_keys
from models.sampling.truncation import truncates
from models.sampling.verification import draw_ids, noisy_scores
from models.torch_library import has_kernels

# Of logits [R, V] float32 and what `pack_draws` returns: see `models.cpu.draw`.
DrawByTerms = Callable[[Tensor, np.ndarray], Tensor]
_draw_on_cpu: DrawByTerms | None = None


def draw_from_logits(
    logits: Tensor,  # [R, V] float32 from `adjust_logits`
    samplings: Sequence[Sampling],  # [R]
    positions: Sequence[int],  # [R] absolute index of the token sampled from the row
) -> Tensor:
    """Return the ids that `draw_ids` samples from the rows' scores, on the device: [R] int64."""
    if all(one.temperature == 0 for one in samplings):
        return draw_ids(logits, samplings, positions)
    if has_kernels(logits.device):
        return draw_by_kernels(logits, samplings, positions)
    if _draw_on_cpu is not None and logits.device.type == "cpu":
        return _draw_on_cpu(logits, pack_draws(samplings, positions, logits.shape[1]))
    return draw_ids(shaped_scores(logits, samplings), samplings, positions)


def use_on_cpu(draw: DrawByTerms) -> None:
    """Have all later draws of this process on a CPU made by a compiled kernel."""
    global _draw_on_cpu
    _draw_on_cpu = draw


def rank_from_logits(
    logits: Tensor,  # [R, V] float32 from `adjust_logits`
    samplings: Sequence[Sampling],  # [R]
    positions: Sequence[int],  # [R]
    num_ranks: int,
) -> Tensor:
    """Return the sample of `draw_from_logits`, the sample without that one, and so on: [R, ranks].

    Near ties may come in another order than by kernels: a guess, not a target's text, is ranked so.
    Another model with the same noise may sample these instead. If fewer tokens may be sampled, some
    id comes again.
    """
    if num_ranks == 1:
        return draw_from_logits(logits, samplings, positions).unsqueeze(1)
    return rank_with_margins(logits, samplings, positions, num_ranks)[0]


def rank_with_margins(
    logits: Tensor,  # [R, V] float32 from `adjust_logits`
    samplings: Sequence[Sampling],  # [R]
    positions: Sequence[int],  # [R]
    num_ranks: int,
) -> tuple[Tensor, Tensor]:
    """Return the ranks of `rank_from_logits`, at least 2, and each first one's margin: float32 [R].

    It is what the score of the first, with its noise, is above the second's.
    """
    scores = noisy_scores(shaped_scores(logits, samplings), samplings, positions)
    if scores is logits:
        scores = scores.clone()
    ranked, values = [], []
    for _ in range(num_ranks):  # the lowest of equal ones, as a draw does it
        ranked.append(scores.argmax(dim=1, keepdim=True))
        values.append(scores.gather(1, ranked[-1]))
        scores.scatter_(1, ranked[-1], -torch.inf)
    ids, found = torch.cat(ranked, dim=1), torch.cat(values, dim=1)
    ids = torch.where(found == -torch.inf, ids[:, :1], ids)
    return ids, found[:, 0] - found[:, 1]


def load_kernels(device: torch.device, vocab_size: int) -> None:
    """Draw once, by kernels where there are some: a first draw compiles them for seconds.

    Args:
        device: of the logits that will be drawn from.
        vocab_size: their columns, for which kernels are compiled.
    """
    of_all = Sampling(temperature=1.0, top_k=1, top_p=0.5)
    draw_from_logits(torch.zeros(1, vocab_size, device=device), [of_all], [0])


def draw_by_kernels(
    logits: Tensor, samplings: Sequence[Sampling], positions: Sequence[int]
) -> Tensor:
    """Draw by kernels, on any device."""
    from models.sampling.kernels.cut import row_cuts
    from models.sampling.kernels.draw import draw_rows

    num_rows, vocab_size = logits.shape
    terms = array_to_device(pack_draws(samplings, positions, vocab_size), logits.device)
    if any(truncates(one, vocab_size) or min_p_depth(one) > -torch.inf for one in samplings):
        cuts = row_cuts(logits, terms)
    else:
        cuts = logits.new_full((num_rows,), -torch.inf)
    return draw_rows(logits, terms, cuts)


def pack_draws(
    samplings: Sequence[Sampling],  # [R]
    positions: Sequence[int],  # [R]
    vocab_size: int,
) -> np.ndarray:  # [R, NUM_TERMS] int64
    """Return the rows' terms as the kernels of a draw take them."""
    from models.sampling.kernels.terms import pack_terms

    streams = stream_keys([one.seed for one in samplings], positions)
    distinct = {id(one): one for one in samplings}  # those of a session are one object
    places = {key: place for place, key in enumerate(distinct)}
    terms = [_terms_of(one, vocab_size) for one in distinct.values()]
    return pack_terms(streams, terms, [places[id(one)] for one in samplings])


def _terms_of(sampling: Sampling, vocab_size: int) -> tuple[float, float, int, float]:
    if sampling.temperature == 0:
        return 0.0, -torch.inf, vocab_size, 1.0
    top_k = min(sampling.top_k or vocab_size, vocab_size)
    return sampling.temperature, min_p_depth(sampling), top_k, sampling.top_p
