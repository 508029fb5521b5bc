"""The weights of a folder of drafting heads, or of a checkpoint that holds some, by key."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

_OLD_NAMES = ("medusa_lm_head.pt", "pytorch_model.bin")


def stored_under(folder: Path, prefixes: tuple[str, ...]) -> dict[str, Tensor]:
    """Those weights of a checkpoint whose keys begin with one of the prefixes; no other is read."""
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            keys = [key for key in file.keys() if key.startswith(prefixes)]  # noqa: SIM118
            found |= {key: file.get_tensor(key) for key in keys}
    return found


def stored_weights(folder: Path) -> dict[str, Tensor]:
    """All weights of a folder of heads by key.

    Raises:
        ValueError: there are none.
    """
    files = sorted(folder.glob("*.safetensors"))
    if files:
        return {key: value for path in files for key, value in load_file(path).items()}
    for name in _OLD_NAMES:
        if (folder / name).is_file():
            found: dict[str, Tensor] = torch.load(
                folder / name, map_location="cpu", weights_only=True
            )
            return found
    raise ValueError(f"heads {str(folder)!r} has none of *.safetensors, {', '.join(_OLD_NAMES)}")
