"""Reads what a checkpoint's safetensors files hold, by their headers: no weight is read.

Imports no torch: safetensors gives shapes through numpy. Which files count is the rule of
transformers, which loads them: model.safetensors, else those that the index names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from models.files import read_json, refuse_pointer, unreadable

WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
_FLOAT8 = "F8_E4M3"
_STORED_BYTES = {_FLOAT8: 1, "U8": 1, "I8": 1, "I16": 2, "I32": 4, "I64": 8}  # the others are cast


def missing_shards(folder: Path) -> list[str]:
    """Files that the checkpoint's index names and that are not there, sorted.

    Raises:
        ValueError: there is an index that cannot be read.
    """
    if (folder / WEIGHTS_NAME).is_file():
        return []
    return [name for name in sorted(set(_index(folder).values())) if not (folder / name).is_file()]


def check_weights(folder: Path) -> None:
    """Check that all files of a checkpoint's weights are there, and what their headers say of them.

    Raises:
        ValueError: one is missing, cut off, a git-lfs pointer or no safetensors file, or lacks a
            tensor that the index looks for in it; the message names it.
    """
    files = weight_files(folder)
    if absent := [path.name for path in files if not path.is_file()]:
        raise ValueError(
            f"{folder} lacks {len(absent)} of the files that {INDEX_NAME} names, first {absent[0]}"
        )
    index = {} if files[0].name == WEIGHTS_NAME else _index(folder)
    for path in files:
        names = {name for name, _, _ in stored_tensors(path)}
        for name, file in index.items():
            if file == path.name and name not in names:
                raise unreadable(path, f"it has no {name}, which {INDEX_NAME} looks for in it")


def weight_files(folder: Path) -> list[Path]:
    """Return the files of a checkpoint's weights, whether they exist or not.

    Raises:
        ValueError: there are none, or an index that cannot be read.
    """
    if (folder / WEIGHTS_NAME).exists():
        return [folder / WEIGHTS_NAME]
    if names := sorted(set(_index(folder).values())):
        return [folder / name for name in names]
    others = sorted(path.name for path in folder.glob("*.safetensors"))
    if not others:
        raise ValueError(f"{folder} has no *.safetensors weights")
    raise ValueError(
        f"{folder} has neither {WEIGHTS_NAME} nor {INDEX_NAME}, only {', '.join(others[:3])}"
    )


def stored_tensors(path: Path) -> list[tuple[str, tuple[int, ...], str]]:
    """Name, shape and type of each tensor of a file, by its header.

    Raises:
        ValueError: it cannot be read, is cut off, or is no safetensors file; names the file.
    """
    refuse_pointer(path)
    try:
        with safe_open(path, framework="np") as file:
            names = list(file.keys())
            found = [(name, file.get_slice(name)) for name in names]
            return [(name, tuple(one.get_shape()), one.get_dtype()) for name, one in found]
    except (OSError, SafetensorError, ValueError, TypeError, OverflowError) as error:
        raise unreadable(path, f"no whole safetensors file ({error})") from None


def num_stored_parameters(folder: Path) -> int:
    """Numbers in all tensors of a checkpoint; tied weights are stored, and counted, once.

    Raises:
        ValueError: a file cannot be read, is cut off, or is no safetensors file.
    """
    return sum(math.prod(shape) for _, shape, _ in _all_tensors(folder))


def num_stored_bytes(folder: Path, itemsize: int) -> int:
    """Bytes of a checkpoint's tensors where numbers of floating point take `itemsize` each.

    Those of other types (packed integers, float8) take what they take in the files.

    Raises:
        ValueError: as above.
    """
    return sum(
        math.prod(shape) * _STORED_BYTES.get(dtype, itemsize)
        for _, shape, dtype in _all_tensors(folder)
    )


def stores_float8(folder: Path) -> bool:
    """Return whether layers are stored in float8, which takes a byte for each number.

    Raises:
        ValueError: as above.
    """
    return bool(float8_shapes(folder))


def float8_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors that are stored in float8.

    Raises:
        ValueError: as above.
    """
    return {name: shape for name, shape, dtype in _all_tensors(folder) if dtype == _FLOAT8}


def stored_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a checkpoint's tensors by their names.

    Raises:
        ValueError: as above.
    """
    return {name: shape for name, shape, _ in _all_tensors(folder)}


def _all_tensors(folder: Path) -> Iterator[tuple[str, tuple[int, ...], str]]:
    for path in weight_files(folder):
        yield from stored_tensors(path)


def _index(folder: Path) -> dict[str, str]:
    """Files by the names of the tensors in them; empty: there is no index."""
    path = folder / INDEX_NAME
    if not path.is_file():
        return {}
    index = read_json(path)
    if not isinstance(index.get("metadata"), dict):  # transformers reads no index without it
        raise unreadable(path, "its metadata must be an object")
    found: Any = index.get("weight_map")
    names = found.values() if isinstance(found, dict) else [None]
    if not found or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise unreadable(path, "its weight_map must give the name of a file for each tensor")
    files: dict[str, str] = found
    return files
