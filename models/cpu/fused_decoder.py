"""The Llama family's forward pass with few, large operations: for CPUs, where each one costs.

transformers runs some forty operations per layer; here they are ten or so, half of them products.
Query, key and value share one product, gate and up another; a residual is added inside the product
before it, on its float32 accumulators; what lies between products is a compiled kernel each
(`models/cpu/ops.py`). Everything stays independent of the other rows of a pass.

A model is taken apart by the names its layers have in transformers, so only the types in
`_FAMILY` are. Knows nothing of sessions; `models/engine/runner.py` calls it in place of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from models.attention.features import AttentionFeatures, layer_windows
from models.cpu.batch import CpuPass, LaneStorage
from models.cpu.ops import Attend, Gate, HeadNorms, Norm, RotateAndStore
from models.layers.linear import PackedLinear
from models.layers.quantization import Int8Linear

# Layers of these types differ in biases, windows, and query and key norms only.
_FAMILY = frozenset({"llama", "mistral", "qwen2", "qwen3"})

_MAX_KEPT_ROWS = 64  # workspaces of larger passes, where they count for little, are not kept

RowLinear = PackedLinear | Int8Linear
MakeLinear = Callable[[Tensor, Tensor | None], RowLinear]  # of a weight and a bias


class _Workspace:
    """What one step of a layer hands to the next; layers share it.

    Made once: after a product has streamed its weights through the caches, everything that Python
    and torch touch to make a tensor is slow.

    Args:
        normed: [R, hidden].
        attended: [R, H * D].
        gated: [R * I], in pieces of `widths`.
        widths: of the pieces.
    """

    def __init__(self, normed: Tensor, attended: Tensor, gated: Tensor, widths: list[int]) -> None:
        num_rows = len(normed)
        self.normed, self.attended, self.gated = normed, attended, gated
        pieces = gated.split_with_sizes([num_rows * width for width in widths])
        self.pieces = [piece.view(num_rows, -1) for piece in pieces]
        self._widths = widths

    @classmethod
    def of(
        cls, num_rows: int, hidden: int, attended: int, widths: list[int], like: Tensor
    ) -> _Workspace:
        """Memory for so many rows of `like`'s type."""
        return cls(
            like.new_empty(num_rows, hidden),
            like.new_empty(num_rows, attended),
            like.new_empty(num_rows * sum(widths)),
            widths,
        )

    def first(self, num_rows: int) -> _Workspace:
        """The same memory for fewer rows."""
        gated = self.gated[: num_rows * sum(self._widths)]
        return _Workspace(self.normed[:num_rows], self.attended[:num_rows], gated, self._widths)


@dataclass(slots=True)
class _Layer:
    """One decoder layer."""

    index: int
    num_heads: int
    head_dim: int
    features: AttentionFeatures
    before_attention: Norm
    query_key_value: RowLinear
    head_norms: HeadNorms | None
    output: RowLinear
    before_mlp: Norm
    gate_up: RowLinear
    gate: Gate
    down: RowLinear
    # Until the storage is known:
    rotate_and_store: RotateAndStore | None = None
    attend: Attend | None = None

    def __call__(self, rows: Tensor, paged: CpuPass, work: _Workspace) -> Tensor:
        assert self.rotate_and_store is not None, "the decoder has no storage yet"
        assert self.attend is not None
        self.before_attention(rows, work.normed)
        mixed = self.query_key_value(work.normed)
        self.rotate_and_store(mixed, paged.positions, paged.slots)
        stride = mixed.shape[1]
        self.attend(mixed.data_ptr(), stride, self.head_dim, paged.plan, work.attended)
        rows = self.output.add_to(rows, work.attended)
        self.before_mlp(rows, work.normed)
        self.gate(self.gate_up(work.normed), work.gated)
        return self.down.add_pieces_to(rows, work.pieces)


class FusedDecoder:
    """A model of the Llama family, taken apart and packed.

    Args:
        model: on the CPU, with plain linear layers; it loses them.
        num_positions: positions a session may have.
        num_threads: threads of a kernel.
        make_linear: packs a weight and its bias.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        num_positions: int,
        num_threads: int,
        make_linear: MakeLinear = PackedLinear,
    ) -> None:
        inner: Any = model.model
        self._embedding = inner.embed_tokens
        self._final_norm = _norm(inner.norm, num_threads)
        self._tables = _rotary_tables(inner.rotary_emb, num_positions, model.dtype)
        head: Any = model.get_output_embeddings()
        self._head = make_linear(head.weight, head.bias)
        model.set_output_embeddings(nn.Identity())
        windows = layer_windows(model.config)
        self._workspaces: dict[int, _Workspace] = {}
        self._layers = [
            _take_apart(layer, window, make_linear, num_threads)
            for layer, window in zip(inner.layers, windows, strict=True)
        ]

    def use(self, storage: LaneStorage) -> None:
        """Keep keys and values in `storage`. To be called once, before the first pass."""
        for layer in self._layers:
            layer.rotate_and_store = RotateAndStore(
                storage.layers[layer.index],
                layer.num_heads,
                *self._tables,
                layer.head_norms,
                storage.num_threads,
            )
            layer.attend = storage.attend(layer.index, layer.num_heads, layer.features)

    def __call__(self, token_ids: Tensor, paged: CpuPass) -> Tensor:
        """Hidden rows [R, hidden] of `token_ids` [R]; keys are stored."""
        rows = nn.functional.embedding(token_ids, self._embedding.weight)
        work = self._workspace_of(len(rows), rows)
        for layer in self._layers:
            rows = layer(rows, paged, work)
        return rows

    def logits(self, rows: Tensor) -> Tensor:
        """Logits [n, V] of hidden rows [n, hidden]."""
        normed = torch.empty_like(rows)
        self._final_norm(rows, normed)
        return self._head(normed)

    def _workspace_of(self, num_rows: int, rows: Tensor) -> _Workspace:
        """For so many rows like `rows`; up to `_MAX_KEPT_ROWS` all in one memory."""
        found = self._workspaces.get(num_rows)
        if found is not None:
            return found
        if num_rows < _MAX_KEPT_ROWS:
            made = self._workspace_of(_MAX_KEPT_ROWS, rows).first(num_rows)
        else:
            layer = self._layers[0]
            num_attended = layer.num_heads * layer.head_dim
            made = _Workspace.of(num_rows, rows.shape[1], num_attended, layer.down.widths, rows)
        if num_rows <= _MAX_KEPT_ROWS:
            self._workspaces[num_rows] = made
        return made

    @property
    def products(self) -> list[RowLinear]:
        """All matrix products of a pass with weights, in order; the last gives the logits."""
        layers = [(la.query_key_value, la.output, la.gate_up, la.down) for la in self._layers]
        return [product for layer in layers for product in layer] + [self._head]


def can_fuse(model: PreTrainedModel) -> bool:
    """Whether the model is of a type whose layers this module knows."""
    config: Any = model.config
    is_known = config.model_type in _FAMILY and type(model).__name__.endswith("ForCausalLM")
    # Kernels go by the type of the storage: layers that keep float32 norms are left alone.
    has_one_type = len({parameter.dtype for parameter in model.parameters()}) == 1
    if not is_known or config.hidden_act != "silu" or not has_one_type:
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
    cos, sin = cos[0].contiguous(), sin[0].contiguous().clone()
    sin[:, : sin.shape[1] // 2].neg_()
    return cos, sin


def _norm(module: Any, num_threads: int) -> Norm:
    return Norm(module.weight, module.variance_epsilon, num_threads)


def _take_apart(
    layer: Any, window: int | None, make_linear: MakeLinear, num_threads: int
) -> _Layer:
    """Pack a layer's weights, and free the ones it had, so that memory does not double."""
    attention, mlp = layer.self_attn, layer.mlp
    head_dim = attention.head_dim
    down = _joined(make_linear, mlp.down_proj)
    fused = _Layer(
        index=attention.layer_idx,
        num_heads=attention.q_proj.out_features // head_dim,
        head_dim=head_dim,
        features=AttentionFeatures(attention.scaling, window),
        before_attention=_norm(layer.input_layernorm, num_threads),
        query_key_value=_joined(make_linear, attention.q_proj, attention.k_proj, attention.v_proj),
        head_norms=_head_norms(attention),
        output=_joined(make_linear, attention.o_proj),
        before_mlp=_norm(layer.post_attention_layernorm, num_threads),
        gate_up=_joined(make_linear, mlp.gate_proj, mlp.up_proj),
        gate=Gate(down.widths, layer.input_layernorm.weight.dtype, num_threads),
        down=down,
    )
    for module in (attention, mlp):
        for name in [n for n, child in module.named_children() if isinstance(child, nn.Linear)]:
            delattr(module, name)
    return fused


def _head_norms(attention: Any) -> HeadNorms | None:
    if not hasattr(attention, "q_norm"):
        return None
    query, key = attention.q_norm, attention.k_norm
    assert query.variance_epsilon == key.variance_epsilon, "both are the config's"
    weights = (query.weight.detach().contiguous(), key.weight.detach().contiguous())
    return HeadNorms(*weights, query.variance_epsilon)


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
