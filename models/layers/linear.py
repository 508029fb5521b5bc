"""Linear layers whose result for a row does not depend on the other rows of the pass, by oneDNN.

They serve on CPUs where the compiled kernels (`models/cpu/product.py`) do not.

A GEMM usually picks its kernel, and with it the order of its sums, by the number of rows. oneDNN's
packed linear kernel keeps the order on a CPU for up to 1024 inputs. This was tried in float32 and
bfloat16 for 1 to 512 rows. So longer rows are cut into pieces of at most 1024 inputs. A piece is
added to the ones before it inside the kernel, on its float32 accumulators. The order is always the
same. Packing also makes 2 to 8 rows cost about what one row costs. oneDNN would take kernels that
do not keep the order on a CPU with AMX. So it is told to do without AMX.

Activation functions are wrapped for the same reason. torch computes the last few elements of a
block with scalar code, whose rounding differs from the vector code's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from models.layers.grouped import GroupedLinear, weight_of

# Read by oneDNN when it is first used: the highest instruction set below AMX.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

MAX_PACKED_INPUTS = 1024
# torch computes up to so many elements in one thread, so that no border between threads cuts a
# vector block.
SERIAL_ELEMENTS = 16384
# Vector code works on blocks of two AVX-512 registers: 64 bfloat16 or 32 float32.
VECTOR_ELEMENTS = 64
_PACKED_BATCH_HINT = 8  # rows the packed layout is chosen for; a verify round has about so many


# Makes a linear layer that keeps a row's bits of a weight [outputs, inputs] and a bias [outputs] or
# None; the weight is not kept.
MakeLinear = Callable[..., Any]


def can_pack(dtype: torch.dtype) -> bool:
    """Return whether this torch and this CPU have the packed kernel for `dtype`."""
    probe = torch.ones(8, 8, dtype=dtype)
    try:
        packed = _pack(probe)
        out = _packed_linear(probe, packed, None)
        out = _packed_linear_add(probe, out, packed, None)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return bool((out == 16).all())


def _pack(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACKED_BATCH_HINT)


def _packed_linear(rows: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")


def _packed_linear_add(rows: Tensor, other: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise.binary(rows, other, packed, bias, "add")


class PackedLinear(nn.Module):
    """`nn.Linear` for inference on a CPU; keeps its weight in packed form only.

    Args:
        weight: [outputs, inputs], float32 or bfloat16; not kept.
        bias: [outputs] or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        num_pieces = -(-self.in_features // MAX_PACKED_INPUTS)
        pieces = weight.detach().tensor_split(num_pieces, dim=1)
        self._widths = [piece.shape[1] for piece in pieces]
        # Packed tensors are opaque: kept out of parameters(), state_dict() and to().
        self._packed = [_pack(piece) for piece in pieces]
        self.weight = weight.new_empty(0)  # for models that ask for its dtype
        self._bias = None if bias is None else bias.detach().clone()

    def forward(self, rows: Tensor) -> Tensor:  # [..., inputs] -> [..., outputs]
        """Rows times the weight; each row's result is a function of that row alone."""
        if rows.numel() == 0:
            return rows.new_empty(*rows.shape[:-1], self.out_features)
        if len(self._packed) == 1:
            return _packed_linear(rows, self._packed[0], self._bias)
        pieces = rows.split_with_sizes(self._widths, dim=-1)
        out = _packed_linear(pieces[0].contiguous(), self._packed[0], self._bias)
        return _add_pieces(out, pieces[1:], self._packed[1:])


def _add_pieces(out: Tensor, pieces: Sequence[Tensor], packed: Sequence[Tensor]) -> Tensor:
    for piece, weight in zip(pieces, packed, strict=True):
        out = _packed_linear_add(piece.contiguous(), out, weight, None)
    return out


class RowwiseActivation(nn.Module):
    """An elementwise function on a CPU, computed so that every element takes the vector code."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function

    def forward(self, rows: Tensor) -> Tensor:  # [..., width] -> same
        """Apply the wrapped function to each element."""
        width = rows.shape[-1]
        missing = -width % VECTOR_ELEMENTS
        if missing:
            padded = nn.functional.pad(rows, (0, missing))
            return self.forward(padded)[..., :width]
        if rows.numel() <= SERIAL_ELEMENTS:
            return self.function(rows)
        flat = rows.reshape(-1, width)
        rows_per_call = max(1, SERIAL_ELEMENTS // width)
        pieces = [self.function(piece) for piece in flat.split(rows_per_call)]
        return torch.cat(pieces).view(rows.shape)


def plain_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """torch's own linear layer with this weight [outputs, inputs], which is not copied."""
    num_outputs, num_inputs = weight.shape
    linear = nn.Linear(num_inputs, num_outputs, bias=False, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear


def make_rowwise(model: nn.Module, make_linear: MakeLinear = PackedLinear) -> None:
    """Replace, in place, every linear layer and activation of a model on the CPU.

    The embedding keeps its own weight when it shares it with the output layer.

    Args:
        make_linear: the layer to put in place of one with this weight and bias.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) in (nn.Linear, GroupedLinear):
                setattr(parent, name, make_linear(weight_of(child), child.bias))
            elif type(child) is Conv1D:  # GPT-2's linear layer: its weight is [inputs, outputs]
                setattr(parent, name, make_linear(child.weight.T, child.bias))
            elif _is_activation(child):
                setattr(parent, name, RowwiseActivation(child))


def _is_activation(module: nn.Module) -> bool:
    home = type(module).__module__
    if home not in ("torch.nn.modules.activation", "transformers.activations"):
        return False
    is_over_rows = isinstance(module, nn.MultiheadAttention | nn.Softmax | nn.LogSoftmax)
    return not is_over_rows and not list(module.parameters())
