"""The Llama family's forward pass in few launches, around a paged attention kernel.

transformers asks a GPU for 41 operations a layer, most of them small, and each is a launch. Here
they are 9. Query, key and value share one product, gate and up another. The work between products
and attention is one operation each (`operations.py`). Which kernel computes a product is torch's
choice. Ranks that share the model each have their heads and columns; the sums over ranks are those
of `models.parallel`. Other architectures keep transformers' layers.

Shape letters: R rows, H query heads, K key heads, D head size, F hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from models.attention.features import AttentionFeatures, layer_windows
from models.gpu.kernel import VarlenPass
from models.gpu.operands import Norm, Rotation, Slots
from models.gpu.operations import LayerOperations, layer_operations
from models.layers.family import (
    forget_linears,
    joined_scales,
    joined_weight,
    like_of,
    rotary_tables,
)
from models.layers.linear import MakeLinear, plain_linear
from models.parallel.layers import GatheredLinear, RowParallelLinear, local_tensor


@dataclass(frozen=True, slots=True)
class _Layer:
    """One decoder layer."""

    index: int
    features: AttentionFeatures
    head_norm: Norm | None
    before_attention: Norm
    query_key_value: nn.Module
    output: nn.Module
    before_mlp: Norm
    gate_up: nn.Module
    down: nn.Module

    @property
    def products(self) -> list[nn.Module]:
        """The products in order."""
        return [self.query_key_value, self.output, self.gate_up, self.down]


class MergedDecoder:
    """Implements `ModelForward`: a model of the Llama family, taken apart.

    Args:
        model: on its device, with plain linear layers or a rank's; it loses them.
        num_positions: positions a session may have.
        make_linear: makes a product of its weight and bias; None: torch's own.
        make_head: the same for the one that gives the logits; None: as the others.
        operations: between products; None: the fastest for the device.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        num_positions: int,
        make_linear: MakeLinear | None = None,
        make_head: MakeLinear | None = None,
        operations: LayerOperations | None = None,
    ) -> None:
        make = plain_linear if make_linear is None else make_linear
        inner: Any = model.model
        self._operations = operations or layer_operations(model.device)
        self._embedding: nn.Module = inner.embed_tokens
        self._cos, self._sin = rotary_tables(inner.rotary_emb, num_positions, like_of(model))
        self._head = _product(model.get_output_embeddings(), make_head or make)
        model.set_output_embeddings(nn.Identity())
        self._layers = [
            _take_apart(layer, window, make)
            for layer, window in zip(inner.layers, layer_windows(model.config), strict=True)
        ]
        norms = [layer.before_attention for layer in self._layers] + [_norm(inner.norm)]
        self._norms_after = [after for _, after in pairwise(norms)]

    def __call__(
        self, token_ids: Tensor, positions: Tensor, paged: VarlenPass, keep: Tensor | None
    ) -> Tensor:
        """See `ModelForward`."""
        operations = self._operations
        rotation = Rotation(self._cos, self._sin, positions)
        hidden: Tensor = self._embedding(token_ids)
        normed = operations.norm(hidden, self._layers[0].before_attention)
        for layer, norm_after in zip(self._layers, self._norms_after, strict=True):
            mixed = layer.query_key_value(normed)
            slots = Slots(*paged.storage.slots(layer.index), paged.row_slots)
            query = operations.place(mixed, rotation, layer.head_norm, slots)
            attended = paged.attend(layer.index, query, layer.features).flatten(1)
            hidden, normed = operations.add_norm(layer.output(attended), hidden, layer.before_mlp)
            gated = operations.gate(layer.gate_up(normed))
            hidden, normed = operations.add_norm(layer.down(gated), hidden, norm_after)
        logits: Tensor = self._head(normed if keep is None else normed.index_select(0, keep))
        return logits

    def keep_hidden(self, layers: Sequence[int] = ()) -> None:
        """See `ModelForward`."""
        raise ValueError("heads are served on CPUs only so far, not around a paged kernel")

    @property
    def hidden(self) -> Tensor | None:
        """See `ModelForward`."""
        return None

    def products(self) -> list[nn.Module]:
        """See `ModelForward`."""
        return [product for layer in self._layers for product in layer.products] + [self._head]


def _take_apart(layer: Any, window: int | None, make_linear: MakeLinear) -> _Layer:
    """Join a layer's weights, and free the ones it had, so that memory does not double."""
    attention, mlp = layer.self_attn, layer.mlp
    merged = _Layer(
        index=attention.layer_idx,
        features=AttentionFeatures(attention.scaling, window),
        head_norm=_head_norm(attention),
        before_attention=_norm(layer.input_layernorm),
        query_key_value=_joined(make_linear, attention.q_proj, attention.k_proj, attention.v_proj),
        output=_product(attention.o_proj, make_linear),
        before_mlp=_norm(layer.post_attention_layernorm),
        gate_up=_joined(make_linear, mlp.gate_proj, mlp.up_proj),
        down=_product(mlp.down_proj, make_linear),
    )
    forget_linears(attention, mlp)
    if layer.input_layernorm.weight.is_cuda:
        torch.cuda.empty_cache()  # joined weights fit in no place that the parts leave
    return merged


def _product(linear: Any, make_linear: MakeLinear) -> nn.Module:
    """Return a linear layer's product; for a rank's part, with its exchange with the others."""
    if isinstance(linear, RowParallelLinear | GatheredLinear):
        linear.linear = _product(linear.linear, make_linear)
        return linear
    return _joined(make_linear, linear)


def _joined(make_linear: MakeLinear, *linears: nn.Linear) -> nn.Module:
    """Join linear layers of the same input into one product."""
    scales = joined_scales(*linears)  # first: it refuses weights that cannot be joined
    weight, bias = joined_weight(*linears)
    made: nn.Module = (
        make_linear(weight, bias) if scales is None else make_linear(weight, bias, scales)
    )
    return made


def _norm(module: Any) -> Norm:
    return Norm(local_tensor(module.weight), module.variance_epsilon)


def _head_norm(attention: Any) -> Norm | None:
    if not hasattr(attention, "q_norm"):
        return None
    query, key = attention.q_norm, attention.k_norm
    assert query.variance_epsilon == key.variance_epsilon, "both are the config's"
    num_heads, num_key_heads = (
        projection.out_features // attention.head_dim
        for projection in (attention.q_proj, attention.k_proj)
    )
    weights = [local_tensor(query.weight)] * num_heads
    weights += [local_tensor(key.weight)] * num_key_heads
    return Norm(torch.stack(weights), query.variance_epsilon)
