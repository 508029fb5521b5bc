"""The weights of a folder of drafting heads, by key."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

_OLD_NAME = "medusa_lm_head.pt"


def stored_weights(folder: Path) -> dict[str, Tensor]:
    """All weights of a folder of heads by key.

    Raises:
        ValueError: there are none.
    """
    files = sorted(folder.glob("*.safetensors"))
    if files:
        return {key: value for path in files for key, value in load_file(path).items()}
    if (folder / _OLD_NAME).is_file():
        found: dict[str, Tensor] = torch.load(
            folder / _OLD_NAME, map_location="cpu", weights_only=True
        )
        return found
    raise ValueError(f"heads {str(folder)!r} has neither *.safetensors nor {_OLD_NAME}")
