"""What safetensors files hold, by their headers: no weight is read. Standard library only.

A file begins with the length of its header, 8 bytes little-endian, then the header as JSON: a
shape, a type and an extent for each tensor (https://github.com/huggingface/safetensors).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

INDEX_NAME = "model.safetensors.index.json"
_LONGEST_HEADER = 100_000_000  # bytes; the format's own limit


def missing_shards(folder: Path) -> list[str]:
    """Files that the checkpoint's index names and that are not there, sorted.

    Raises:
        ValueError: there is an index that cannot be read.
    """
    return [name for name in _indexed_files(folder) if not (folder / name).is_file()]


def num_stored_parameters(folder: Path) -> int:
    """Numbers in all tensors of a checkpoint; tied weights are stored, and counted, once.

    Raises:
        ValueError: a file cannot be read or is no safetensors file.
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
    header = _header(path)
    header.pop("__metadata__", None)
    return sum(math.prod(tensor["shape"]) for tensor in header.values())


def _header(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= _LONGEST_HEADER:
                raise ValueError(f"a header of {length} bytes")
            header: dict[str, Any] = json.loads(file.read(length))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is no safetensors file: {error}") from None
    return header
