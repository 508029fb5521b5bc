"""The Llama family's forward pass as one program of compiled kernels.

transformers runs some forty operations per layer; here they are eight kernels, half of them
products. Query, key and value share one product; gate and up share another, which applies the gate;
a residual is added inside the product before it. Everything stays independent of the other rows of
a pass, and nothing of a pass goes back to Python between its first layer and its last.

A model is taken apart by the names its layers have in transformers (`models/layers/family.py`).
Knows nothing of sessions; `models/cpu/backend.py` calls it in place of the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from models.attention.features import AttentionFeatures, layer_windows
from models.cpu.batch import CpuPass, LaneStorage
from models.cpu.kernels import parameters
from models.cpu.kernels.compiling import Call
from models.cpu.ops import (
    HeadNorms,
    PassTable,
    Rotation,
    buffer,
    norm,
    pick,
    rotate_and_store,
    set_attend_rows,
)
from models.cpu.product import Epilogue, KernelLinear
from models.cpu.program import Program
from models.layers.family import forget_linears, joined_weight, like_of, rotary_tables
from models.layers.linear import MakeLinear

_MAX_KEPT_ROWS = 64  # buffers of larger passes, where they count for little, are not kept
# Numbers of a pass's products from which on threads share it: less is done sooner by one.
_PARALLEL_NUMBERS = 1 << 19

# Buffers of a pass: rows between layers, normed, queries with keys and values, attended, gated.
_HIDDEN, _NORMED, _MIXED, _ATTENDED, _GATED = map(buffer, range(5))
# What the first rows of a pass are picked from, and those of its end; where logits go.
_PICKED_FROM, _LOGITS = buffer(5), buffer(2)


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: Tensor
    epsilon: float

    def step(self, table: PassTable) -> Call:
        """From rows between layers to normed ones."""
        return norm(self.weight, self.epsilon, table, _HIDDEN, _NORMED)


@dataclass(frozen=True, slots=True)
class _Layer:
    """One decoder layer."""

    index: int
    num_heads: int
    head_dim: int
    features: AttentionFeatures
    head_norms: HeadNorms | None
    before_attention: _Norm
    query_key_value: KernelLinear
    output: KernelLinear
    before_mlp: _Norm
    gate_up: KernelLinear
    down: KernelLinear

    def steps(
        self, storage: LaneStorage, tables: tuple[Tensor, Tensor], table: PassTable
    ) -> list[Call]:
        """What a pass does here, in order."""
        rotation = Rotation(*tables, self.head_norms)
        keys = storage.layers[self.index]
        attend = storage.attend_step(self.index, self.num_heads, self.features, table)
        stride = self.query_key_value.num_outputs
        set_attend_rows(attend, _MIXED, _ATTENDED, row_stride=stride, head_stride=self.head_dim)
        residual = Epilogue(residual=_HIDDEN)
        return [
            self.before_attention.step(table),
            self.query_key_value.step(table, _NORMED, _MIXED, Epilogue()),
            rotate_and_store(keys, self.num_heads, rotation, table, _MIXED),
            attend,
            self.output.step(table, _ATTENDED, _HIDDEN, residual),
            self.before_mlp.step(table),
            self.gate_up.step(table, _NORMED, _GATED, Epilogue()),
            self.down.step(table, _GATED, _HIDDEN, residual),
        ]

    @property
    def products(self) -> list[KernelLinear]:
        """In order."""
        return [self.query_key_value, self.output, self.gate_up, self.down]


class FusedDecoder:
    """A model of the Llama family, taken apart and packed.

    Args:
        model: on the CPU, with plain linear layers; it loses them.
        num_positions: positions a session may have.
        num_threads: of a pass.
        make_linear: makes `KernelLinear` layers.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        num_positions: int,
        num_threads: int,
        make_linear: MakeLinear = KernelLinear,
    ) -> None:
        inner: Any = model.model
        self._embedding = inner.embed_tokens
        self._final_norm = _norm(inner.norm)
        self._tables = rotary_tables(inner.rotary_emb, num_positions, like_of(model))
        head: Any = model.get_output_embeddings()
        self._head = make_linear(head.weight, head.bias)
        model.set_output_embeddings(nn.Identity())
        windows = layer_windows(model.config)
        self._layers = [
            _take_apart(layer, window, make_linear)
            for layer, window in zip(inner.layers, windows, strict=True)
        ]
        self._num_threads = num_threads
        self._numbers_per_row = sum(_num_numbers(product) for product in self.products[:-1])
        weight = self._embedding.weight.detach()
        self._row_bytes = weight[0].nbytes
        self._pass = _Buffers(self._widths(), weight)
        self._pass.table.put(_PICKED_FROM, weight)
        self._end = _Buffers([self._embedding.embedding_dim] * 2, weight)
        self._program: Program | None = None  # until the storage is known

    def use(self, storage: LaneStorage) -> None:
        """Keep keys and values in `storage`. To be called once, before the first pass."""
        first, last = self._pass.table, self._end.table
        steps = [pick(self._row_bytes, first, _PICKED_FROM, _HIDDEN)]
        for layer in self._layers:
            steps += layer.steps(storage, self._tables, first)
        steps += [
            pick(self._row_bytes, last, _PICKED_FROM, _HIDDEN),
            self._final_norm.step(last),
            self._head.step(last, _NORMED, _LOGITS, Epilogue(is_wide=True)),
        ]
        self._program = Program(steps, self._num_threads)

    def __call__(self, token_ids: Tensor, paged: CpuPass, keep: Tensor) -> Tensor:
        """Logits [n, V] float32 of rows `keep` [n] of a pass of `token_ids` [R]; keys are stored.

        Indices are int64 and contiguous.
        """
        assert self._program is not None, "the decoder has no storage yet"
        num_rows, num_kept = len(token_ids), len(keep)
        table, end = self._pass.table, self._end.table
        hidden = self._pass.room_for(num_rows)
        table.put(parameters.PICKED, token_ids)
        table.put(parameters.POSITIONS, paged.positions)
        table.put(parameters.SLOTS, paged.slots)
        paged.plan.enter(table)
        self._end.room_for(num_kept)
        logits = torch.empty(num_kept, self._head.num_outputs)
        end.put(parameters.PICKED, keep)
        end.put(_PICKED_FROM, hidden)
        end.put(_LOGITS, logits)
        num_numbers = num_rows * self._numbers_per_row + num_kept * _num_numbers(self._head)
        self._program.run(is_short=num_numbers < _PARALLEL_NUMBERS)
        return logits

    @property
    def hidden(self) -> Tensor:
        """The normed rows [n, F] that gave the newest pass's logits; the next overwrites them."""
        return self._end.rows(1)

    def _widths(self) -> list[int]:
        """Of the buffers of a pass."""
        layer, hidden = self._layers[0], self._embedding.embedding_dim
        mixed, attended = layer.query_key_value.num_outputs, layer.output.in_features
        return [hidden, hidden, mixed, attended, layer.gate_up.num_outputs]

    @property
    def products(self) -> list[KernelLinear]:
        """All matrix products of a pass with weights, in order; the last gives the logits."""
        return [product for layer in self._layers for product in layer.products] + [self._head]


class _Buffers:
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
        """Have a pass of so many rows; the first buffer, [R, width]."""
        self.table.values[parameters.NUM_ROWS] = num_rows
        if num_rows > self._num_rows or self._num_rows > _MAX_KEPT_ROWS >= num_rows:
            self._num_rows = max(num_rows, _MAX_KEPT_ROWS)
            self._buffers = [self._like.new_empty(self._num_rows, width) for width in self._widths]
            for number, rows in enumerate(self._buffers):
                self.table.put(buffer(number), rows)
        return self._buffers[0][:num_rows]

    def rows(self, number: int) -> Tensor:
        """Buffer `number` [R, width] of the newest pass."""
        return self._buffers[number][: int(self.table.values[parameters.NUM_ROWS])]


def _num_numbers(product: KernelLinear) -> int:
    """Numbers of its weight."""
    return product.in_features * product.out_features


def _norm(module: Any) -> _Norm:
    return _Norm(module.weight.detach(), module.variance_epsilon)


def _take_apart(layer: Any, window: int | None, make_linear: MakeLinear) -> _Layer:
    """Pack a layer's weights, and free the ones it had, so that memory does not double."""
    attention, mlp = layer.self_attn, layer.mlp
    head_dim = attention.head_dim
    fused = _Layer(
        index=attention.layer_idx,
        num_heads=attention.q_proj.out_features // head_dim,
        head_dim=head_dim,
        features=AttentionFeatures(attention.scaling, window),
        head_norms=_head_norms(attention),
        before_attention=_norm(layer.input_layernorm),
        query_key_value=_joined(make_linear, attention.q_proj, attention.k_proj, attention.v_proj),
        output=_joined(make_linear, attention.o_proj),
        before_mlp=_norm(layer.post_attention_layernorm),
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
    """One product for linear layers of the same input."""
    joined: KernelLinear = make_linear(*joined_weight(*linears))
    return joined
