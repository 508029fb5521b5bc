"""Counts what a checkpoint's safetensors files hold, by their headers: no weight is read.

Without torch: safetensors gives shapes through numpy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open

INDEX_NAME = "model.safetensors.index.json"
_FLOAT8 = "F8_E4M3"
_T = TypeVar("_T")


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
    return sum(sum(_tensors(folder / name, _num_parameters)) for name in _files(folder))


def stores_float8(folder: Path) -> bool:
    """Whether layers are stored in float8, which takes a byte for each number.

    Raises:
        ValueError: as above.
    """
    return any(_FLOAT8 in _tensors(folder / name, _dtype) for name in _files(folder))


def _files(folder: Path) -> list[str]:
    return _indexed_files(folder) or sorted(path.name for path in folder.glob("*.safetensors"))


def _indexed_files(folder: Path) -> list[str]:
    index = folder / INDEX_NAME
    if not index.is_file():
        return []
    try:
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"cannot read {index}: {error}") from None


def _num_parameters(tensor: Any) -> int:
    return math.prod(tensor.get_shape())


def _dtype(tensor: Any) -> str:
    name: str = tensor.get_dtype()
    return name


def _tensors(path: Path, what: Callable[[Any], _T]) -> list[_T]:
    """What each tensor of a file is like, by its header."""
    try:
        with safe_open(path, framework="np") as file:
            return [what(file.get_slice(name)) for name in file.keys()]  # noqa: SIM118  # no mapping
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} is no safetensors file: {error}") from None
