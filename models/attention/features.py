"""Features of a layer's attention beyond a softmax over all earlier keys of its session.

    scores = scale * (query . key)
    scores = softcap * tanh(scores / softcap)    Gemma 2
    scores = -inf where a key is later than the row, or `window` and more positions before it
    weights = softmax of the scores and of one constant, the head's sink, that has no value

Windows are read from the checkpoint's config, so that masks can be made before the first layer. The
window that a layer itself asks for is compared with it in every pass (`window_of_layer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from transformers import PreTrainedConfig


@dataclass(frozen=True, slots=True)
class AttentionFeatures:
    """The attention of one layer.

    Attributes:
        scale: factor of the scores.
        window: a row sees itself and the `window - 1` positions before it; None: all.
        softcap: bound of the scaled scores; None: none.
        sinks: [H], the sink of each query head; None: none.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    def is_like(self, other: AttentionFeatures) -> bool:
        """Return whether both are the same, the sinks the very same tensor."""
        return (
            self.scale == other.scale
            and self.window == other.window
            and self.softcap == other.softcap
            and self.sinks is other.sinks
        )


def layer_windows(text: PreTrainedConfig) -> tuple[int | None, ...]:
    """Return the window of each layer by the checkpoint's config."""
    size = getattr(text, "sliding_window", None)
    if not size:
        return (None,) * text.num_hidden_layers
    kinds = getattr(text, "layer_types", None)
    if kinds is not None:
        return tuple(size if kind == "sliding_attention" else None for kind in kinds)
    is_on = getattr(text, "use_sliding_window", True)
    return (size if is_on else None,) * text.num_hidden_layers


def window_of_layer(
    module: nn.Module, layer: int, windows: Sequence[int | None], asked: int | None
) -> int | None:
    """Return the layer's window by the config; `asked` is what the layer hands to its attention.

    A layer that asks for nothing may have one all the same: some models tell their mask alone.

    Raises:
        ValueError: the layer asks for another window.
    """
    window = windows[layer]
    if asked is not None and asked != window:
        raise ValueError(
            f"{type(module).__name__} {layer} attends to a window of {asked} tokens where the "
            f"checkpoint's config has {window}: not served"
        )
    return window
