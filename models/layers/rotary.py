"""Rotary embeddings as tables: a position's cosines and sines do not depend on the pass.

Some variants look at the longest position of a call. For example, longrope has one set of factors
for short texts and one for long ones. Such a variant would let one session change its neighbours.
They see the configured maximum in every call here, so that choice is made once, for all sessions. A
long `max_model_len` means the long factors for short texts too, as in vLLM.
"""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

_ROWS_PER_CALL = 64  # small enough that torch computes them in one thread


class RotaryTable(nn.Module):
    """Cosines and sines of every position, computed once instead of in every pass.

    Args:
        rotary: a rotary embedding of transformers.
        num_positions: positions a session may have.
        like: a tensor of the model's dtype and device.
        kinds: the layer types it has frequencies of their own for; empty: all layers share one set.
    """

    def __init__(
        self, rotary: nn.Module, num_positions: int, like: Tensor, kinds: tuple[str, ...] = ()
    ) -> None:
        super().__init__()
        self._tables = {
            kind: _table(rotary, num_positions, like, kind) for kind in kinds or (None,)
        }

    def forward(
        self, rows: Tensor, position_ids: Tensor, layer_type: str | None = None
    ) -> tuple[Tensor, Tensor]:
        """Cosine and sine, [1, R, D], of `position_ids`, [1, R]."""
        cos, sin = self._tables[layer_type]
        index = position_ids[0]
        return cos[index].unsqueeze(0), sin[index].unsqueeze(0)


def _table(
    rotary: nn.Module, num_positions: int, like: Tensor, kind: str | None
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of all positions, [num_positions, D]."""
    arguments = {} if kind is None else {"layer_type": kind}
    positions = torch.arange(num_positions, device=like.device)
    last = positions[-1:]
    parts = []
    with torch.inference_mode():
        for part in positions.split(_ROWS_PER_CALL):
            # The last position comes along in every call, for variants that adapt to the longest.
            cos, sin = rotary(like, position_ids=torch.cat((part, last))[None], **arguments)
            parts.append((cos[0, :-1], sin[0, :-1]))
    return torch.cat([cos for cos, _ in parts]), torch.cat([sin for _, sin in parts])


def fix_rotary_tables(model: PreTrainedModel, num_positions: int) -> None:
    """Replace, in place, rotary embeddings that map (rows, position_ids) to (cos, sin).

    So also those that are asked with the type of the layer: Gemma 3 rotates its windows otherwise.
    """
    like = torch.empty(1, 1, 1, dtype=model.dtype, device=model.device)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if not name.endswith("rotary_emb"):
                continue
            parameters = list(inspect.signature(child.forward).parameters)
            if parameters == ["x", "position_ids"]:
                setattr(parent, name, RotaryTable(child, num_positions, like))
            elif parameters == ["x", "position_ids", "layer_type"]:
                rope_types = getattr(child, "rope_type", None)  # by type of layer, here
                kinds = tuple(rope_types) if isinstance(rope_types, dict) else ()
                setattr(parent, name, RotaryTable(child, num_positions, like, kinds))
