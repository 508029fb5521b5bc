"""Medusa heads: each guesses one further token from the target's last hidden state alone.

Head i adds residual layers of its own to the state that gave the newest token's logits. Its output
layer gives logits for the token i + 1 places behind that token. The heads do not see one another's
tokens. So all of them are one small pass, with no keys to keep (Cai et al., 2401.10774). If ranks
share the target, its leader has the residual layers. Each rank has its words' rows of the output
layers.

Shape letters: S sessions, H heads, F hidden size, V columns of the logits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from models.heads.draft_ids import IdsOutput
from models.heads.medusa_folder import HeadWeights
from models.layers.linear import MakeLinear, plain_linear


class MedusaHeads:
    """Heads ready to draft.

    Args:
        weights: as they were read.
        vocab_size: columns of the target's logits, of this rank where ranks share it.
        make_linear: makes layers; None: torch's own.
        gather: makes all ranks' columns of this rank's.

    Attributes:
        num_bytes: what they take, a copy of the target's output layer among it where they share it.
    """

    def __init__(
        self,
        weights: HeadWeights,
        vocab_size: int,
        make_linear: MakeLinear | None = None,
        gather: Callable[[Tensor], Tensor] = lambda logits: logits,
    ) -> None:
        make = plain_linear if make_linear is None else make_linear
        self._layers: list[list[Any]] = [[make(*each) for each in head] for head in weights.layers]
        made: dict[int, IdsOutput] = {}
        for output in weights.outputs:  # one layer where they share a weight
            if id(output) not in made:
                made[id(output)] = IdsOutput(output, weights.token_ids, vocab_size, make)
        self._outputs = [made[id(output)] for output in weights.outputs]
        self._gather = gather
        self.num_bytes = weights.num_bytes

    def __len__(self) -> int:
        """Return the number of heads: the longest draft."""
        return len(self._outputs)

    @torch.inference_mode()
    def states(self, hidden: Tensor, num_heads: int) -> Tensor:
        """States [S, H, F] of the first `num_heads` heads from those [S, F] of the target."""
        states = []
        for layers in self._layers[:num_heads]:
            state = hidden
            for layer in layers:
                state = state + F.silu(layer(state))
            states.append(state)
        return torch.stack(states, dim=1)

    @torch.inference_mode()
    def logits(self, states: Tensor) -> Tensor:
        """Logits [S, H, V] float32 of the first heads, as many as there are states [S, H, F]."""
        outputs = self._outputs[: states.shape[1]]
        if all(output is outputs[0] for output in outputs):
            logits = outputs[0](states.flatten(0, 1)).unflatten(0, states.shape[:2])
        else:
            each = [output(states[:, head].contiguous()) for head, output in enumerate(outputs)]
            logits = torch.stack(each, dim=1)
        return self._gather(logits)
