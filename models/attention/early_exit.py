"""Drafts by a model's first layers, with its own last norm and output layer.

Nothing is loaded and nothing is kept beside the model. The keys of the layers that run are those
that the whole pass writes there when it verifies. It pays where a checkpoint was trained to be
right early (LayerSkip, 2404.16710); any other serves too.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from models.attention.backend import ModelForward

NUM_TOKENS = 4  # the longest draft
_NAMES = ("layers", "h")  # a decoder's name for its layers, by architecture


class ExitForward:
    """`DraftLayer` by the same code as the model's passes, with fewer layers in it meanwhile.

    Args:
        forward: of the whole model.
        model: of transformers, which `forward` runs.
        num_layers: that draft.

    Raises:
        ValueError: its layers are under a name that is not known.
    """

    num_tokens, num_bytes, takes_states, hidden = NUM_TOKENS, 0, False, None

    def __init__(self, forward: ModelForward, model: nn.Module, num_layers: int) -> None:
        inner: Any = model.base_model
        found = [name for name in _NAMES if isinstance(getattr(inner, name, None), nn.ModuleList)]
        if not found:
            raise ValueError(f"early_exit is not served for {type(model).__name__}")
        self._forward, self._inner, self._name = forward, inner, found[0]
        self._all: nn.ModuleList = getattr(inner, self._name)
        self._first = self._all[:num_layers]

    def take(self, states: Tensor) -> None:
        """See `DraftLayer`."""
        raise AssertionError("the first layers take no states")

    def __call__(
        self, token_ids: Tensor, positions: Tensor, paged: Any, keep: Tensor | None
    ) -> Tensor:
        """See `DraftLayer`."""
        setattr(self._inner, self._name, self._first)
        try:
            return self._forward(token_ids, positions, paged, keep)
        finally:
            setattr(self._inner, self._name, self._all)
