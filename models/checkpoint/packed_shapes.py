"""Finds weights in groups in a checkpoint's files, by their headers: no weight is read.

Imports no torch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from models.checkpoint.stored_weights import stored_shapes
from models.config import GROUPED, EngineConfig
from models.packed_names import CODES, FOLDER, GROUP, MINIMA, SCALES

Shapes = Mapping[str, tuple[int, ...]]


def packed_layers(shapes: Shapes) -> list[str]:
    """Return the names of the layers whose weights are in groups; empty: there are none."""
    return [name.removesuffix(CODES) for name in shapes if name.endswith(CODES)]


def whole_shapes(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a checkpoint's weights, as if none were in groups."""
    layers = packed_layers(shapes)
    parts = {name + part for name in layers for part in (CODES, SCALES, MINIMA)}
    whole = {name: shape for name, shape in shapes.items() if name not in parts}
    return whole | {f"{name}.weight": _shape(shapes, name) for name in layers}


def kept_bytes(shapes: Shapes, itemsize: int) -> int:
    """Return the memory of a checkpoint whose weights are kept as they are stored.

    Args:
        shapes: of all its tensors.
        itemsize: bytes of a number that is in no group.
    """
    total = 0
    for name, shape in shapes.items():
        kind = name[name.rfind(".") :]
        is_part = kind in (CODES, SCALES, MINIMA)
        total += math.prod(shape) * ({CODES: 1}.get(kind, 2) if is_part else itemsize)
    return total


def as_packed(config: EngineConfig) -> EngineConfig:
    """Return the config of the packed model in the checkpoint's folder, where that is asked for.

    A folder that was converted from a file of few bits may have that file's own weights beside
    those it was converted to. Then q4 or q8 means these, by the bits that most of them have:
    nothing is rounded twice.

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
    for name in packed_layers(shapes):
        counts[4 if name + MINIMA in shapes else 8] += math.prod(_shape(shapes, name))
    return max(counts, key=counts.__getitem__, default=0)


def _shape(shapes: Shapes, name: str) -> tuple[int, ...]:
    num_outputs, num_groups = shapes[name + SCALES]
    return num_outputs, num_groups * GROUP
