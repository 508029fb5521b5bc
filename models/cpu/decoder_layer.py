"""One decoder layer of the Llama family as steps of compiled kernels, and the memory of its rows.

Query, key and value share one product. Gate and up share another, which applies the gate. A
residual is added inside the product before it. Decoders (`fused_decoder.py`) and drafting layers
(`fused_mtp.py`) are programs of such steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from models.attention.features import AttentionFeatures
from models.cpu.batch import LaneStorage
from models.cpu.kernels import parameters
from models.cpu.kernels.compiling import Call
from models.cpu.ops import (
    HeadNorms,
    PassTable,
    Rotation,
    buffer,
    norm,
    room_for_packed,
    rotate_and_store,
    set_attend_rows,
)
from models.cpu.product import Epilogue, KernelLinear
from models.layers.family import forget_linears, joined_weight
from models.layers.linear import MakeLinear

_MAX_KEPT_ROWS = 64  # buffers of larger passes, where they count for little, are not kept

# Buffers of a pass: rows between layers, normed, queries with keys and values, attended, gated.
HIDDEN, NORMED, MIXED, ATTENDED, GATED = map(buffer, range(5))


@dataclass(frozen=True, slots=True)
class Norm:
    """Root mean square norm of rows."""

    weight: Tensor
    epsilon: float

    def step(self, table: PassTable, source: int = HIDDEN) -> Call:
        """Return the step that norms rows between layers, or those of another buffer."""
        return norm(self.weight, self.epsilon, table, source, NORMED)


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer."""

    index: int
    num_heads: int
    head_dim: int
    features: AttentionFeatures
    head_norms: HeadNorms | None
    before_attention: Norm
    query_key_value: KernelLinear
    output: KernelLinear
    before_mlp: Norm
    gate_up: KernelLinear
    down: KernelLinear

    def steps(
        self, storage: LaneStorage, tables: tuple[Tensor, Tensor], table: PassTable
    ) -> list[Call]:
        """Return the steps of a pass in this layer, in order."""
        rotation = Rotation(*tables, self.head_norms)
        keys = storage.layers[self.index]
        attend = storage.attend_step(self.index, self.num_heads, self.features, table)
        stride = self.query_key_value.num_outputs
        set_attend_rows(attend, MIXED, ATTENDED, row_stride=stride, head_stride=self.head_dim)
        residual = Epilogue(residual=HIDDEN)
        return [
            self.before_attention.step(table),
            *self.query_key_value.steps(table, NORMED, MIXED, Epilogue()),
            rotate_and_store(keys, self.num_heads, rotation, table, MIXED),
            attend,
            *self.output.steps(table, ATTENDED, HIDDEN, residual),
            self.before_mlp.step(table),
            *self.gate_up.steps(table, NORMED, GATED, Epilogue()),
            *self.down.steps(table, GATED, HIDDEN, residual),
        ]

    @property
    def products(self) -> list[KernelLinear]:
        """The products in order."""
        return [self.query_key_value, self.output, self.gate_up, self.down]

    def widths(self, hidden_size: int) -> list[int]:
        """Return the widths of a pass's buffers."""
        mixed = max(self.query_key_value.num_outputs, hidden_size)
        attended = self.output.in_features
        return [hidden_size, hidden_size, mixed, attended, self.gate_up.num_outputs]


class Buffers:
    """The table of a pass with memory for its rows, whatever their number.

    Args:
        widths: of the first buffers.
        like: a tensor of the rows' type.
    """

    def __init__(self, widths: list[int], like: Tensor) -> None:
        self.table = PassTable()
        self._widths, self._like = widths, like
        self._num_rows = 0
        self._buffers: list[Tensor] = []

    def room_for(self, num_rows: int) -> Tensor:
        """Make room for a pass of so many rows; return the first buffer, [R, width]."""
        self.table.values[parameters.NUM_ROWS] = num_rows
        is_large = self._num_rows > _MAX_KEPT_ROWS >= num_rows
        if not self._buffers or num_rows > self._num_rows or is_large:
            self._num_rows = max(num_rows, _MAX_KEPT_ROWS)
            self._buffers = [self._like.new_empty(self._num_rows, width) for width in self._widths]
            for number, rows in enumerate(self._buffers):
                self.table.put(buffer(number), rows)
            self._packed = room_for_packed(self._num_rows, max(self._widths))
            self.table.put(parameters.PACKED_ROWS, self._packed)
        return self._buffers[0][:num_rows]

    def rows(self, number: int) -> Tensor:
        """Buffer `number` [R, width] of the newest pass."""
        return self._buffers[number][: int(self.table.values[parameters.NUM_ROWS])]


def num_weights(product: KernelLinear) -> int:
    """Numbers of its weight."""
    return product.in_features * product.out_features


def norm_of(module: Any) -> Norm:
    """Return the norm of a transformers module."""
    return Norm(module.weight.detach(), module.variance_epsilon)


def take_apart(layer: Any, window: int | None, make_linear: MakeLinear) -> Layer:
    """Pack a layer's weights, and free the ones it had, so that memory does not double."""
    attention, mlp = layer.self_attn, layer.mlp
    head_dim = attention.head_dim
    fused = Layer(
        index=attention.layer_idx,
        num_heads=attention.q_proj.out_features // head_dim,
        head_dim=head_dim,
        features=AttentionFeatures(attention.scaling, window),
        head_norms=_head_norms(attention),
        before_attention=norm_of(layer.input_layernorm),
        query_key_value=_joined(make_linear, attention.q_proj, attention.k_proj, attention.v_proj),
        output=_joined(make_linear, attention.o_proj),
        before_mlp=norm_of(layer.post_attention_layernorm),
        gate_up=_joined(partial(make_linear, is_gated=True), mlp.gate_proj, mlp.up_proj),
        down=_joined(make_linear, mlp.down_proj),
    )
    forget_linears(attention, mlp)
    return fused


def _head_norms(attention: Any) -> HeadNorms | None:
    if not hasattr(attention, "q_norm"):
        return None
    query, key = attention.q_norm, attention.k_norm
    assert query.variance_epsilon == key.variance_epsilon, "both are the config's"
    weights = (query.weight.detach().contiguous(), key.weight.detach().contiguous())
    return HeadNorms(*weights, query.variance_epsilon)


def _joined(make_linear: MakeLinear, *linears: nn.Linear) -> KernelLinear:
    """Join linear layers of the same input into one product."""
    joined: KernelLinear = make_linear(*joined_weight(*linears))
    return joined
