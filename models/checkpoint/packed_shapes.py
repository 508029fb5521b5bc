"""Finds weights in groups in a checkpoint's files, by their headers: no weight is read.

Such weights lie in our own form (`models/packed_form.py`), or in those of AWQ and GPTQ. Imports no
torch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from models.checkpoint.stored_weights import stored_shapes
from models.config import GROUPED, EngineConfig
from models.packed_form import CODES, FOLDER, GROUP, MINIMA, SCALES, group_bytes

Shapes = Mapping[str, tuple[int, ...]]

# Tensors of AWQ and GPTQ: codes, what is zero, and the group of each input. Scales are as ours.
QWEIGHT, QZEROS, GROUP_OF = ".qweight", ".qzeros", ".g_idx"
WORD_BITS = 32  # of the integers that hold their codes
_PARTS = (CODES, SCALES, MINIMA, QWEIGHT, QZEROS, GROUP_OF)


class PackedShape(NamedTuple):
    """A weight in groups."""

    num_outputs: int
    num_inputs: int
    bits: int  # of a code


def packed_shapes(shapes: Shapes) -> dict[str, PackedShape]:
    """Return the weights in groups by the names of their layers; empty: there are none."""
    own = {name.removesuffix(CODES) for name in shapes if name.endswith(CODES)}
    others = {name.removesuffix(QWEIGHT) for name in shapes if name.endswith(QWEIGHT)}
    found = {name: _own_shape(shapes, name) for name in own}
    return found | {name: _other_shape(shapes, name) for name in others}


def whole_shapes(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a checkpoint's weights, as if none were in groups."""
    layers = packed_shapes(shapes)
    parts = {name + part for name in layers for part in _PARTS}
    whole = {name: shape for name, shape in shapes.items() if name not in parts}
    return whole | {f"{name}.weight": layer[:2] for name, layer in layers.items()}


def kept_bytes(shapes: Shapes, itemsize: int) -> int:
    """Return the memory of a checkpoint whose weights stay in groups.

    Args:
        shapes: of all its tensors.
        itemsize: bytes of a number that is in no group.
    """
    layers = packed_shapes(shapes)
    parts = {name + part for name in layers for part in _PARTS}
    whole = sum(math.prod(shape) for name, shape in shapes.items() if name not in parts)
    grouped = sum(
        layer.num_outputs * layer.num_inputs // GROUP * group_bytes(layer.bits)
        for layer in layers.values()
    )
    return whole * itemsize + grouped


def as_packed(config: EngineConfig) -> EngineConfig:
    """Return the config of the packed model in the checkpoint's folder, where that is asked for.

    A folder that was converted from a file of few bits may have that file's own weights too. Then
    q4 or q8 means these, by the bits that most of them have: nothing is rounded twice.

    Raises:
        ValueError: a file cannot be read.
    """
    bits = GROUPED.get(config.quantization or "")
    folder = Path(config.model_path) / FOLDER
    if bits is None or not folder.is_dir():
        return config
    if _usual_bits(stored_shapes(folder)) != bits:
        return config
    return config.model_copy(update={"model_path": str(folder), "quantization": None})


def _usual_bits(shapes: Shapes) -> int:
    """Return the bits of most weights that are in groups; 0: there are none."""
    counts = Counter[int]()
    for layer in packed_shapes(shapes).values():
        counts[layer.bits] += layer.num_outputs * layer.num_inputs
    return max(counts, key=counts.__getitem__, default=0)


def _own_shape(shapes: Shapes, name: str) -> PackedShape:
    """Return the shape of a weight in our own form.

    Raises:
        ValueError: its scales are missing, or of another form.
    """
    scales = shapes.get(name + SCALES, ())
    if len(scales) != 2:
        raise ValueError(f"{name}{CODES} is stored with scales of shape {list(scales)}, not [N, G]")
    num_outputs, num_groups = scales
    return PackedShape(num_outputs, num_groups * GROUP, 4 if name + MINIMA in shapes else 8)


def _other_shape(shapes: Shapes, name: str) -> PackedShape:
    """Return the shape of AWQ's words [I, N / 8], or of GPTQ's [I / 8, N].

    Raises:
        ValueError: a tensor that goes with them is missing, or one is no matrix.
    """
    for part in (SCALES, QZEROS, QWEIGHT):
        if name + part not in shapes:
            raise ValueError(f"{name}{QWEIGHT} is stored without {name}{part}")
        if len(shapes[name + part]) != 2 or 0 in shapes[name + part]:
            raise ValueError(f"{name}{part} has the shape {list(shapes[name + part])}, no matrix")
    num_outputs = shapes[name + SCALES][1]
    bits = shapes[name + QZEROS][1] * WORD_BITS // num_outputs
    if not bits:
        columns = shapes[name + QZEROS][1]
        raise ValueError(f"{name}{QZEROS} has {columns} columns, {num_outputs} outputs need more")
    num_rows, num_columns = shapes[name + QWEIGHT]
    is_awq = num_columns != num_outputs
    num_inputs = num_rows if is_awq else num_rows * WORD_BITS // bits
    return PackedShape(num_outputs, num_inputs, bits)
