"""The weights of a folder of drafting heads, or of a checkpoint that holds some, by key."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from models.files import naming, refuse_pointer, unreadable

_OLD_NAMES = ("medusa_lm_head.pt", "pytorch_model.bin")


def stored_under(folder: Path, prefixes: tuple[str, ...]) -> dict[str, Tensor]:
    """Read the weights of a checkpoint whose keys begin with one of the prefixes, and no others."""
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        refuse_pointer(path)
        with naming(path), safe_open(path, framework="pt") as file:
            keys = [key for key in file.keys() if key.startswith(prefixes)]  # noqa: SIM118
            found |= {key: file.get_tensor(key) for key in keys}
    return found


def stored_weights(folder: Path) -> dict[str, Tensor]:
    """Read all weights of a folder of heads by key.

    Raises:
        ValueError: there are none, or a file cannot be read.
    """
    files = sorted(folder.glob("*.safetensors"))
    if files:
        return {key: value for path in files for key, value in _loaded(path).items()}
    for name in _OLD_NAMES:
        if (folder / name).is_file():
            return _loaded(folder / name)
    raise ValueError(f"heads {str(folder)!r} has none of *.safetensors, {', '.join(_OLD_NAMES)}")


def _loaded(path: Path) -> dict[str, Tensor]:
    refuse_pointer(path)
    with naming(path):
        if path.suffix == ".safetensors":
            return load_file(path)
        found: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(found, dict) or not all(isinstance(one, Tensor) for one in found.values()):
        raise unreadable(path, "it holds something else than tensors by name")
    return found
