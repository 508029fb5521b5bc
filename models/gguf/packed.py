"""Reads the blocks of a GGUF file as weights in groups (`models/packed_form.py`), with numpy.

    Q8_0, Q4_0, Q4_1  are such groups: their numbers stay what they are
    Q4_K              scales and minima are products of two numbers there, rounded to float16 here
    others            rounded to 8 bits by Q8_0's rule; F32, F16 and BF16 stay whole

The blocks' layouts are those of https://github.com/ggml-org/ggml (src/ggml-common.h).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize, quantize
from gguf.quants import Q4_K

from models.gguf.header import GgufHeader, GgufTensor
from models.gguf.names import in_order, name_in_transformers
from models.packed_form import CODES, GROUP, MINIMA, OFFSET, SCALES, group_bytes

Array = Any  # of numpy
_Parts = tuple[Array, Array, Array | None]  # codes [N, I] uint8, scales and minima [N, G] float16
_Kind = GGMLQuantizationType
_WHOLE = (_Kind.F32, _Kind.F16, _Kind.BF16)
_FOUR_BITS = (_Kind.Q4_0, _Kind.Q4_1, _Kind.Q4_K)
_ZERO = 8  # code of zero in Q4_0


def holds_groups(header: GgufHeader) -> bool:
    """Return whether a file has weights of few bits at all."""
    return any(tensor.type not in _WHOLE for tensor in header.tensors)


def num_packed_bytes(header: GgufHeader) -> int:
    """Return the bytes of a file's weights as they will be kept."""
    return sum(map(_kept_bytes, header.tensors))


def _kept_bytes(tensor: GgufTensor) -> int:
    if tensor.type in _WHOLE:
        return 4 * tensor.num_elements
    return tensor.num_elements // GROUP * group_bytes(4 if tensor.type in _FOUR_BITS else 8)


def packed_tensors(header: GgufHeader, tensor: GgufTensor) -> dict[str, Array]:
    """Return what a checkpoint's file keeps of a tensor, by the names it has there.

    Raises:
        ValueError: it is of no part that is known, or has a number of inputs that is in no groups.
    """
    name = name_in_transformers(tensor.name)
    if len(tensor.shape) < 2 or tensor.type in _WHOLE:
        return {name: whole_tensor(header, tensor)}
    if tensor.shape[0] % GROUP:
        raise ValueError(f"tensor {tensor.name!r} has {tensor.shape[0]} inputs: no whole groups")
    layer = name.removesuffix(".weight")
    return {
        layer + end: np.ascontiguousarray(in_order(header, tensor.name, part))
        for end, part in groups_of(_rows(tensor), tensor.type).items()
    }


def whole_tensor(header: GgufHeader, tensor: GgufTensor) -> Array:
    """Return the numbers of a tensor in the order that transformers has them, float32."""
    numbers = in_order(header, tensor.name, dequantize(_rows(tensor), tensor.type))
    # Unquantised numbers lie in the file itself.
    return np.require(numbers, requirements=["C", "W"])


def groups_of(rows: Array, kind: GGMLQuantizationType) -> dict[str, Array]:
    """Return what a checkpoint's file keeps of a matrix, by the ends of the names.

    Args:
        rows: its blocks' bytes, [outputs, bytes].
        kind: of the blocks.
    """
    if kind not in _READ:
        rows, kind = quantize(dequantize(rows, kind), _Kind.Q8_0), _Kind.Q8_0
    blocks = rows.reshape(len(rows), -1, GGML_QUANT_SIZES[kind][1])
    codes, scales, minima = _READ[kind](blocks)
    if minima is None:
        return {CODES: codes, SCALES: scales}
    return {CODES: codes[:, 0::2] | codes[:, 1::2] << 4, SCALES: scales, MINIMA: minima}


def _rows(tensor: GgufTensor) -> Array:
    """Return the bytes of a tensor, [outputs, bytes]; its shape has the inputs first."""
    raw = np.memmap(tensor.part, np.uint8, "r", tensor.start, (tensor.end - tensor.start,))
    return raw if len(tensor.shape) < 2 else raw.reshape(tensor.shape[-1], -1)


def _halves(blocks: Array, place: int) -> Array:
    """Return the float16 at a place of each block, [outputs, blocks]."""
    return np.ascontiguousarray(blocks[:, :, place : place + 2]).view("<f2")[:, :, 0]


def _flat(codes: Array) -> Array:
    return codes.reshape(len(codes), -1)


def _nibbles(codes: Array) -> Array:
    """Return the codes of blocks: the lower halves of all bytes, then the upper ones."""
    return np.concatenate((codes & 15, codes >> 4), 2)


def _q8_0(blocks: Array) -> _Parts:
    codes = blocks[:, :, 2:].view(np.int8).astype(np.int16) + OFFSET
    return _flat(codes).astype(np.uint8), _halves(blocks, 0), None


def _q4_0(blocks: Array) -> _Parts:
    scales = _halves(blocks, 0)
    return _flat(_nibbles(blocks[:, :, 2:])), scales, scales * np.float16(-_ZERO)


def _q4_1(blocks: Array) -> _Parts:
    return _flat(_nibbles(blocks[:, :, 4:])), _halves(blocks, 0), _halves(blocks, 2)


def _q4_k(blocks: Array) -> _Parts:
    scales, minima = _halves(blocks, 0)[..., None], _halves(blocks, 2)[..., None]
    num_blocks = blocks.shape[:2]
    of_scales, of_minima = Q4_K.get_scale_min(blocks[:, :, 4:16].reshape(-1, 12))
    wide = scales.astype(np.float32) * of_scales.reshape(*num_blocks, 8)
    least = -minima.astype(np.float32) * of_minima.reshape(*num_blocks, 8)
    # Two groups share the bytes of 32 codes: the lower halves are the first one's.
    pairs = blocks[:, :, 16:].reshape(*num_blocks, 4, 1, GROUP)
    codes = np.concatenate((pairs & 15, pairs >> 4), 3)
    return _flat(codes), _flat(wide).astype(np.float16), _flat(least).astype(np.float16)


_READ: dict[GGMLQuantizationType, Callable[[Array], _Parts]] = {
    _Kind.Q8_0: _q8_0,
    _Kind.Q4_0: _q4_0,
    _Kind.Q4_1: _q4_1,
    _Kind.Q4_K: _q4_k,
}
