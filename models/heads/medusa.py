"""Medusa heads: each guesses one further token from the target's last hidden state alone.

Head i adds residual layers of its own to the state that gave the newest token's logits, and its
output layer gives logits for the token i + 1 places behind that token. The heads do not see one
another's tokens, so all of them are one small pass, with no keys to keep (Cai et al., 2401.10774).

Shape letters: S sessions, H heads, F hidden size, V columns of the logits.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from models.heads.medusa_folder import HeadWeights
from models.layers.linear import MakeLinear, plain_linear


class MedusaHeads:
    """Heads ready to draft.

    Args:
        weights: as they were read.
        vocab_size: columns of the target's logits.
        make_linear: makes layers; None: torch's own.

    Attributes:
        num_bytes: what they take, a copy of the target's output layer among it where they share it.
    """

    def __init__(
        self, weights: HeadWeights, vocab_size: int, make_linear: MakeLinear | None = None
    ) -> None:
        make = plain_linear if make_linear is None else make_linear
        self._layers: list[list[Any]] = [[make(*each) for each in head] for head in weights.layers]
        made: dict[int, Any] = {}
        for output in weights.outputs:  # one layer where they share a weight
            if id(output) not in made:
                made[id(output)] = make(output, None)
        self._outputs = [made[id(output)] for output in weights.outputs]
        self._token_ids = weights.token_ids
        self.num_bytes = weights.num_bytes
        self._vocab_size = vocab_size

    def __len__(self) -> int:
        """How many heads there are: the longest draft."""
        return len(self._layers)

    @torch.inference_mode()
    def logits(self, hidden: Tensor, num_heads: int) -> Tensor:
        """Logits [S, H, V] float32 of the first `num_heads` heads from states [S, F]."""
        states = []
        for layers in self._layers[:num_heads]:
            state = hidden
            for layer in layers:
                state = state + F.silu(layer(state))
            states.append(state)
        outputs = self._outputs[:num_heads]
        if all(output is outputs[0] for output in outputs):
            stacked = torch.stack(states, dim=1)
            logits = outputs[0](stacked.flatten(0, 1)).unflatten(0, stacked.shape[:2])
        else:
            each = [output(state) for output, state in zip(outputs, states, strict=True)]
            logits = torch.stack(each, dim=1)
        return self._on_all_ids(logits.float())

    def _on_all_ids(self, logits: Tensor) -> Tensor:
        if self._token_ids is None:
            return logits
        whole = logits.new_full((*logits.shape[:2], self._vocab_size), -torch.inf)
        return whole.index_copy_(2, self._token_ids, logits)
