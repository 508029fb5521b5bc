"""The attention function that transformers' models call, and what it needs of a pass.

A back-end makes an `AttentionPass` for every pass and hands it to the model's forward. transformers
passes it on to the attention of each layer, which is `paged_attention`. So models of transformers
read and write keys in blocks of sessions without knowing it.

Shape letters: R rows of the pass, H query heads, K key heads, D head size.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn
from transformers import AttentionInterface

from models.attention.features import AttentionFeatures, window_of_layer
from models.kv.storage import KVBlocks

ATTENTION_NAME = "outrider_paged"
# Some architectures give these to their attention. They change its result and are not built.
_UNKNOWN_ARGUMENTS = ("position_bias", "indices", "block_indices", "sinks")


class AttentionPass(Protocol):
    """One pass as its layers need it: `GatherPass`, `CpuPass` or `VarlenPass`."""

    @property
    def storage(self) -> KVBlocks:
        """The storage of keys and values."""
        ...

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The window of each layer."""
        ...

    def store(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Store the rows' keys and values [K, R, D]."""
        ...

    def attend(self, layer: int, query: Tensor, features: AttentionFeatures) -> Tensor:
        """Attention of rows `query` [R, H, D] to the stored keys of their sessions, [R, H, D]."""
        ...


def paged_attention(  # noqa: PLR0913  (transformers calls it)
    module: nn.Module,
    query: Tensor,  # [1, H, R, D]
    key: Tensor,  # [1, K, R, D]
    value: Tensor,  # [1, K, R, D]
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    paged: AttentionPass | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sliding_window: int | None = None,
    **others: object,
) -> tuple[Tensor, None]:  # [1, R, H, D]
    """Attention of every row to its own session's keys, which are stored on the way.

    Signature and return are those of transformers' AttentionInterface; `paged` comes through the
    keyword arguments of the model's forward.

    Raises:
        ValueError: the layer wants something of its attention that is not built, or another window
            than its config says, or the model does not pass keyword arguments on to its layers.
    """
    name = type(module).__name__
    if paged is None:
        raise ValueError(f"{name} got no plan of the pass: not served")
    unknown = [key for key in _UNKNOWN_ARGUMENTS if others.get(key) is not None]
    if unknown or not getattr(module, "is_causal", True):
        raise ValueError(f"{name} uses {', '.join(unknown) or 'later positions'}: not served")
    head_shape = (paged.storage.num_heads, paged.storage.head_dim)
    if key.shape[1::2] != head_shape or value.shape[1::2] != head_shape:
        raise ValueError(f"{name} has other heads than its config says: not served")
    layer = int(module.layer_idx)  # type: ignore[arg-type]  # a plain int on attention modules
    features = AttentionFeatures(
        scale=query.shape[3] ** -0.5 if scaling is None else scaling,
        window=window_of_layer(module, layer, paged.windows, sliding_window),
        softcap=softcap,
        sinks=s_aux,
    )
    paged.store(layer, key[0], value[0])
    return paged.attend(layer, query[0].transpose(0, 1), features).unsqueeze(0), None


AttentionInterface.register(ATTENTION_NAME, paged_attention)
