"""What a folder of drafting heads holds: of which kind they are, and their weights by key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from torch import Tensor

HeadsKind = Literal["medusa", "mtp"]

_OLD_NAME = "medusa_lm_head.pt"


def heads_kind(folder: Path) -> HeadsKind:
    """Of which kind the heads of a folder are.

    Raises:
        ValueError: it has no config, or one of a kind that is not served.
    """
    config = read_heads_config(folder)
    if "medusa_num_heads" in config:
        return "medusa"
    kind = config.get("speculators_model_type") or config.get("model_type")
    if kind == "medusa":
        return "medusa"
    if kind == "mtp":
        return "mtp"
    raise ValueError(
        f"heads {str(folder)!r} is of model_type {kind!r}; only medusa and mtp are served so far"
    )


def num_key_layers(folder: str | None) -> int:
    """Layers of the KV cache that the heads of a folder have, behind those of the target.

    Raises:
        ValueError: as `heads_kind`.
    """
    return int(folder is not None and heads_kind(Path(folder)) == "mtp")


def read_heads_config(folder: Path) -> dict[str, Any]:
    """The config of a folder of heads.

    Raises:
        ValueError: it has none.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"heads {str(folder)!r} has no config.json")
    config: dict[str, Any] = json.loads(path.read_text())
    return config


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
