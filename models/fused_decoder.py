"""The Llama family's forward pass with few, large operations: for CPUs, where each one costs.

transformers runs some forty operations per layer; here they are about twenty. Query, key and value
share one product, gate and up another; a residual is added inside the product before it, on its
float32 accumulators; keys are rotated in place and stored with the values in one write. Everything
stays independent of the other rows of a pass: products are `PackedLinear`, and every elementwise
operation is one that rounds the same in vector and in scalar code (products and sums), or is kept
in whole vector blocks (`silu_rows_`).

A model is taken apart by the names its layers have in transformers, so only the types in
`_FAMILY` are. Knows nothing of sessions; `models/runner.py` calls it in place of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from models.attention import attend
from models.attention_features import AttentionFeatures, layer_windows
from models.attention_plan import PagedPass
from models.linear import PackedLinear, silu_rows_
from models.quantization import Int8Linear
from models.varlen_attention import VarlenPass

# Layers of these types differ in biases, windows, and query and key norms only.
_FAMILY = frozenset({"llama", "mistral", "qwen2", "qwen3"})

RowLinear = PackedLinear | Int8Linear
MakeLinear = Callable[[Tensor, Tensor | None], RowLinear]  # of a weight and a bias


@dataclass(frozen=True, slots=True)
class _Norm:
    """A root mean square norm over the last dimension."""

    weight: Tensor
    epsilon: float

    @classmethod
    def of(cls, module: Any) -> _Norm:
        return cls(module.weight.detach(), module.variance_epsilon)

    def __call__(self, rows: Tensor) -> Tensor:
        # The weight apart, behind the rounding, as transformers does: bits agree.
        normed = torch.rms_norm(rows, rows.shape[-1:], None, self.epsilon)
        return normed.mul_(self.weight)


@dataclass(frozen=True, slots=True)
class _Layer:
    """One decoder layer."""

    index: int
    num_heads: int
    num_key_heads: int
    head_dim: int
    features: AttentionFeatures
    before_attention: _Norm
    query_key_value: RowLinear
    query_norm: _Norm | None
    key_norm: _Norm | None
    output: RowLinear
    before_mlp: _Norm
    gate_up: RowLinear
    down: RowLinear

    def __call__(
        self, rows: Tensor, cos: Tensor, sin: Tensor, paged: PagedPass | VarlenPass
    ) -> Tensor:
        mixed = self.query_key_value(self.before_attention(rows))
        heads = mixed.view(rows.shape[0], -1, self.head_dim)  # [R, H + 2 K, D]
        self._rotate(heads, cos, sin)
        keys_values = heads[:, self.num_heads :].unflatten(1, (2, self.num_key_heads))
        paged.storage.write(self.index, paged.row_slots, keys_values.permute(1, 2, 0, 3))
        attended = attend(self.index, heads[:, : self.num_heads], paged, self.features)
        rows = self.output.add_to(rows, attended.flatten(1))
        gate, up = self.gate_up(self.before_mlp(rows)).chunk(2, dim=-1)
        return self.down.add_product_to(rows, silu_rows_(gate), up)

    def _rotate(self, heads: Tensor, cos: Tensor, sin: Tensor) -> None:
        """Norm, where there is one, and rotate queries and keys in place."""
        if self.query_norm is not None and self.key_norm is not None:
            queries = heads[:, : self.num_heads]
            queries.copy_(self.query_norm(queries))
            keys = heads[:, self.num_heads : self.num_heads + self.num_key_heads]
            keys.copy_(self.key_norm(keys))
        both = heads[:, : self.num_heads + self.num_key_heads]
        turned = torch.roll(both, self.head_dim // 2, dims=-1).mul_(sin)
        both.mul_(cos).add_(turned)


class FusedDecoder:
    """A model of the Llama family, taken apart and packed.

    Args:
        model: on the CPU, with plain linear layers; it loses them.
        num_positions: positions a session may have.
        make_linear: packs a weight and its bias.
    """

    def __init__(
        self, model: PreTrainedModel, num_positions: int, make_linear: MakeLinear = PackedLinear
    ) -> None:
        inner: Any = model.model
        self._embedding = inner.embed_tokens
        self._final_norm = _Norm.of(inner.norm)
        self._cos, self._sin = _rotary_tables(inner.rotary_emb, num_positions, model.dtype)
        head: Any = model.get_output_embeddings()
        self._head = make_linear(head.weight, head.bias)
        model.set_output_embeddings(nn.Identity())
        windows = layer_windows(model.config)
        self._layers = [
            _take_apart(layer, window, make_linear)
            for layer, window in zip(inner.layers, windows, strict=True)
        ]

    def __call__(
        self, token_ids: Tensor, positions: Tensor, paged: PagedPass | VarlenPass
    ) -> Tensor:
        """Hidden rows [R, hidden] of `token_ids` [R] at `positions` [R]; keys are stored."""
        rows = nn.functional.embedding(token_ids, self._embedding.weight)
        cos = self._cos[positions].unsqueeze(1)
        sin = self._sin[positions].unsqueeze(1)
        for layer in self._layers:
            rows = layer(rows, cos, sin, paged)
        return rows

    def logits(self, rows: Tensor) -> Tensor:
        """Logits [n, V] of hidden rows [n, hidden]."""
        return self._head(self._final_norm(rows))

    @property
    def products(self) -> list[RowLinear]:
        """All matrix products of a pass with weights, in order; the last gives the logits."""
        layers = [(la.query_key_value, la.output, la.gate_up, la.down) for la in self._layers]
        return [product for layer in layers for product in layer] + [self._head]


def can_fuse(model: PreTrainedModel) -> bool:
    """Whether the model is of a type whose layers this module knows."""
    config: Any = model.config
    is_known = config.model_type in _FAMILY and type(model).__name__.endswith("ForCausalLM")
    if not is_known or config.hidden_act != "silu":
        return False
    inner: Any = model.model
    # A head that is rotated in part only is left to the model itself.
    cos, _ = _rotary_tables(inner.rotary_emb, 1, model.dtype)
    return bool(cos.shape[1] == inner.layers[0].self_attn.head_dim)


def _rotary_tables(rotary: Any, num_positions: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and signed sine of all positions, [num_positions, D].

    transformers adds rotate_half(x) * sin, where rotate_half swaps the halves and negates the
    first; here the halves are swapped and the sine of the first half is negative.
    """
    like = torch.empty(1, 1, 1, dtype=dtype)
    cos, sin = rotary(like, position_ids=torch.arange(num_positions).unsqueeze(0))
    cos, sin = cos[0].clone(), sin[0].clone()
    sin[:, : sin.shape[1] // 2].neg_()
    return cos, sin


def _take_apart(layer: Any, window: int | None, make_linear: MakeLinear) -> _Layer:
    """Pack a layer's weights, and free the ones it had, so that memory does not double."""
    attention, mlp = layer.self_attn, layer.mlp
    head_dim = attention.head_dim
    fused = _Layer(
        index=attention.layer_idx,
        num_heads=attention.q_proj.out_features // head_dim,
        num_key_heads=attention.k_proj.out_features // head_dim,
        head_dim=head_dim,
        features=AttentionFeatures(attention.scaling, window),
        before_attention=_Norm.of(layer.input_layernorm),
        query_key_value=_joined(make_linear, attention.q_proj, attention.k_proj, attention.v_proj),
        query_norm=_Norm.of(attention.q_norm) if hasattr(attention, "q_norm") else None,
        key_norm=_Norm.of(attention.k_norm) if hasattr(attention, "k_norm") else None,
        output=_joined(make_linear, attention.o_proj),
        before_mlp=_Norm.of(layer.post_attention_layernorm),
        gate_up=_joined(make_linear, mlp.gate_proj, mlp.up_proj),
        down=_joined(make_linear, mlp.down_proj),
    )
    for module in (attention, mlp):
        for name in [n for n, child in module.named_children() if isinstance(child, nn.Linear)]:
            delattr(module, name)
    return fused


def _joined(make_linear: MakeLinear, *linears: nn.Linear) -> RowLinear:
    """One product for linear layers of the same input."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    biases = [linear.bias for linear in linears]
    if all(bias is None for bias in biases):
        return make_linear(weight, None)
    zeros = [torch.zeros(linear.out_features, dtype=weight.dtype) for linear in linears]
    parts = [
        zero if bias is None else bias.detach() for bias, zero in zip(biases, zeros, strict=True)
    ]
    return make_linear(weight, torch.cat(parts))
