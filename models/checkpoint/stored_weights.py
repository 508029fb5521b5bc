"""Counts what a checkpoint's safetensors files hold, by their headers: no weight is read.

Without torch: safetensors gives shapes through numpy.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from safetensors import SafetensorError, safe_open

INDEX_NAME = "model.safetensors.index.json"


def missing_shards(folder: Path) -> list[str]:
    """Files that the checkpoint's index names and that are not there, sorted.

    Raises:
        ValueError: there is an index that cannot be read.
    """
    return [name for name in _indexed_files(folder) if not (folder / name).is_file()]


def num_stored_parameters(folder: Path) -> int:
    """Numbers in all tensors of a checkpoint; tied weights are stored, and counted, once.

    Raises:
        ValueError: a file cannot be read, is cut off, or is no safetensors file.
    """
    names = _indexed_files(folder) or sorted(path.name for path in folder.glob("*.safetensors"))
    return sum(_num_parameters(folder / name) for name in names)


def _indexed_files(folder: Path) -> list[str]:
    index = folder / INDEX_NAME
    if not index.is_file():
        return []
    try:
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"cannot read {index}: {error}") from None


def _num_parameters(path: Path) -> int:
    try:
        with safe_open(path, framework="np") as file:
            return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118  # no mapping
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} is no safetensors file: {error}") from None
