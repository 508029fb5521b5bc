"""Top-k and top-p cuts of a pass: rows that need a whole sort get one, and nobody else.

`test_logits.py` holds up where they cut.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from models.protocol.messages import Sampling
from models.sampling.truncation import truncate

VOCAB_SIZE = 4000
NARROW = Sampling(temperature=1.0, top_p=0.9)
WIDE = Sampling(temperature=2.0, top_p=0.999)
LARGE_K = Sampling(temperature=1.0, top_k=700)
KINDS = {
    "narrow": NARROW,
    "wide": WIDE,
    "large-k": LARGE_K,
    "off": Sampling(temperature=1.0),
    "both": Sampling(temperature=1.0, top_k=30, top_p=0.5),
}


class Sorted(TorchDispatchMode):
    """Notes (rows, candidates) of every `topk`, and of every whole sort."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[tuple[int, int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.topk.default:
            self.sizes.append((args[0].shape[0], args[1]))
        if func is torch.ops.aten.sort.default:
            self.sizes.append((args[0].shape[0], args[0].shape[1]))
        return func(*args, **(kwargs or {}))


def scores_of(kinds: list[Sampling], seed: int = 0) -> torch.Tensor:
    """Peaked rows, flat ones for those with a wide nucleus; some scores equal, some masked."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(len(kinds), VOCAB_SIZE, generator=generator)
    peaked = torch.tensor([kind.temperature == 1.0 for kind in kinds])
    rows[peaked] *= 4.0
    rows = (rows * 8).round() / 8
    rows[:, 17] = -torch.inf
    return rows


@pytest.mark.parametrize(
    ("kinds", "sizes"),
    [
        ([NARROW] * 16, [(16, 256)]),
        ([*[NARROW] * 16, WIDE], [(17, 256), (1, VOCAB_SIZE)]),
    ],
    ids=["narrow ones", "a wide one among them"],
)
def test_only_a_row_with_a_wide_nucleus_is_sorted_whole(
    kinds: list[Sampling], sizes: list[tuple[int, int]]
) -> None:
    with Sorted() as seen:
        truncate(scores_of(kinds), kinds)
    assert seen.sizes == sizes


@pytest.mark.parametrize("seed", range(4))
def test_neighbours_change_no_bit_of_a_row(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    names = list(KINDS)
    kinds = [KINDS[names[i]] for i in torch.randint(len(names), (12,), generator=generator)]
    scores = scores_of(kinds, seed)
    together = truncate(scores, kinds)
    for row, kind in enumerate(kinds):
        alone = truncate(scores[row : row + 1], [kind])
        assert torch.equal(together[row].view(torch.int32), alone[0].view(torch.int32)), row
