"""The Llama family's forward pass in few operations, around a paged attention kernel.

transformers asks a GPU for 41 operations a layer, most of them small, and each is a launch. Here
they are 14, or 16 with query and key norms: query, key and value share one product, gate and up
another, heads of query and key are normed and rotated together, and a residual is added by the
product before it. Which kernel computes an operation is torch's choice. Other architectures, and
models that ranks share, keep transformers' layers.

Shape letters: R rows, H query heads, K key heads, D head size, F hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from models.attention.features import AttentionFeatures, layer_windows
from models.attention.interface import AttentionPass
from models.layers.family import forget_linears, joined_weight, like_of, rotary_tables
from models.layers.linear import MakeLinear


class _Norm(NamedTuple):
    weight: Tensor
    epsilon: float

    def __call__(self, rows: Tensor) -> Tensor:
        return F.rms_norm(rows, rows.shape[-1:], self.weight, self.epsilon)


class _HeadNorm(NamedTuple):
    """Of queries and keys together: each head has a weight of its own."""

    weight: Tensor  # [H + K, D]
    epsilon: float

    def __call__(self, heads: Tensor) -> Tensor:  # [R, H + K, D]
        return F.rms_norm(heads, heads.shape[-1:], None, self.epsilon) * self.weight


@dataclass(frozen=True, slots=True)
class _Layer:
    """One decoder layer."""

    index: int
    num_heads: int
    num_key_heads: int
    head_dim: int
    features: AttentionFeatures
    head_norm: _HeadNorm | None
    before_attention: _Norm
    query_key_value: nn.Module
    output: nn.Module
    before_mlp: _Norm
    gate_up: nn.Module
    down: nn.Module

    def __call__(
        self,
        hidden: Tensor,  # [R, F]
        rotation: tuple[Tensor, Tensor],  # cosine and signed sine, [R, 1, D]
        paged: AttentionPass,
    ) -> Tensor:  # [R, F]
        mixed = self.query_key_value(self.before_attention(hidden))
        hidden = _added(self.output, self._attended(mixed, rotation, paged), hidden)
        gate, up = self.gate_up(self.before_mlp(hidden)).chunk(2, dim=-1)
        return _added(self.down, F.silu(gate) * up, hidden)

    def _attended(
        self, mixed: Tensor, rotation: tuple[Tensor, Tensor], paged: AttentionPass
    ) -> Tensor:  # [R, H * D]
        heads = mixed.view(len(mixed), -1, self.head_dim)
        num_rotated = self.num_heads + self.num_key_heads
        rotated, value = heads[:, :num_rotated], heads[:, num_rotated:]
        if self.head_norm is not None:
            rotated = self.head_norm(rotated)
        cos, sin = rotation
        swapped = rotated.roll(self.head_dim // 2, dims=-1)
        rotated = torch.addcmul(rotated * cos, swapped, sin)
        query, key = rotated[:, : self.num_heads], rotated[:, self.num_heads :]
        paged.store(self.index, key.transpose(0, 1), value.transpose(0, 1))
        return paged.attend(self.index, query, self.features).reshape(len(mixed), -1)

    @property
    def products(self) -> list[nn.Module]:
        """In order."""
        return [self.query_key_value, self.output, self.gate_up, self.down]


class MergedDecoder:
    """Implements `ModelForward`: a model of the Llama family, taken apart.

    Args:
        model: on its device, with plain linear layers; it loses them.
        num_positions: positions a session may have.
        make_linear: makes a product of its weight and bias; None: torch's own.
    """

    def __init__(
        self, model: PreTrainedModel, num_positions: int, make_linear: MakeLinear | None = None
    ) -> None:
        make = _plain_linear if make_linear is None else make_linear
        inner: Any = model.model
        self._embedding: nn.Module = inner.embed_tokens
        self._final_norm = _norm(inner.norm)
        self._cos, self._sin = rotary_tables(inner.rotary_emb, num_positions, like_of(model))
        head: Any = model.get_output_embeddings()
        self._head = make(head.weight.detach(), None if head.bias is None else head.bias.detach())
        model.set_output_embeddings(nn.Identity())
        self._layers = [
            _take_apart(layer, window, make)
            for layer, window in zip(inner.layers, layer_windows(model.config), strict=True)
        ]

    def __call__(
        self, token_ids: Tensor, positions: Tensor, paged: AttentionPass, keep: Tensor | None
    ) -> Tensor:
        """See `ModelForward`."""
        hidden: Tensor = self._embedding(token_ids)
        rotation = self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)
        for layer in self._layers:
            hidden = layer(hidden, rotation, paged)
        if keep is not None:
            hidden = hidden.index_select(0, keep)
        logits: Tensor = self._head(self._final_norm(hidden))
        return logits

    def products(self) -> list[nn.Module]:
        """See `ModelForward`."""
        return [product for layer in self._layers for product in layer.products] + [self._head]


def _added(product: nn.Module, rows: Tensor, residual: Tensor) -> Tensor:
    """`residual` and what the product makes of `rows`; by torch's own product in one operation."""
    if type(product) is nn.Linear and product.bias is None:
        return torch.addmm(residual, rows, product.weight.t())
    result: Tensor = product(rows)
    return residual + result


def _take_apart(layer: Any, window: int | None, make_linear: MakeLinear) -> _Layer:
    """Join a layer's weights, and free the ones it had, so that memory does not double."""
    attention, mlp = layer.self_attn, layer.mlp
    head_dim = attention.head_dim
    num_heads = attention.q_proj.out_features // head_dim
    num_key_heads = attention.k_proj.out_features // head_dim
    mixed = joined_weight(attention.q_proj, attention.k_proj, attention.v_proj)
    merged = _Layer(
        index=attention.layer_idx,
        num_heads=num_heads,
        num_key_heads=num_key_heads,
        head_dim=head_dim,
        features=AttentionFeatures(attention.scaling, window),
        head_norm=_head_norm(attention, num_heads, num_key_heads),
        before_attention=_norm(layer.input_layernorm),
        query_key_value=make_linear(*mixed),
        output=make_linear(*joined_weight(attention.o_proj)),
        before_mlp=_norm(layer.post_attention_layernorm),
        gate_up=make_linear(*joined_weight(mlp.gate_proj, mlp.up_proj)),
        down=make_linear(*joined_weight(mlp.down_proj)),
    )
    forget_linears(attention, mlp)
    if layer.input_layernorm.weight.is_cuda:
        torch.cuda.empty_cache()  # joined weights fit in no place that the parts leave
    return merged


def _norm(module: Any) -> _Norm:
    return _Norm(module.weight.detach(), module.variance_epsilon)


def _head_norm(attention: Any, num_heads: int, num_key_heads: int) -> _HeadNorm | None:
    if not hasattr(attention, "q_norm"):
        return None
    query, key = attention.q_norm, attention.k_norm
    assert query.variance_epsilon == key.variance_epsilon, "both are the config's"
    weights = [query.weight.detach()] * num_heads + [key.weight.detach()] * num_key_heads
    return _HeadNorm(torch.stack(weights), query.variance_epsilon)


def _plain_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """torch's own linear layer with this weight."""
    num_outputs, num_inputs = weight.shape
    linear = nn.Linear(num_inputs, num_outputs, bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear
