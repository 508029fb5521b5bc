"""Reads the config of a folder of drafting heads without its weights: no torch here.

A request may name the kind that a target is served with, so the router needs to know it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from models.files import read_json
from models.protocol.messages import MAX_DRAFT_TOKENS

HeadsKind = Literal["medusa", "mtp", "eagle3"]
EARLY_EXIT = "early_exit"
CHECKPOINT = "checkpoint"  # in place of a folder: the MTP layer in the target's own
NAMES = ("mtp", "medusa", "eagle3", EARLY_EXIT)  # all that may draft in a target's own process

_WITH_KEYS = ("mtp", "eagle3")  # those whose layer has keys in the cache
_EAGLE3_NAME = "LlamaForCausalLMEagle3"  # the architecture's name in the original spelling


@dataclass(frozen=True, slots=True)
class TargetHeads:
    """The drafter in the target's own process.

    Attributes:
        kind: one of `NAMES`.
        max_tokens: of a draft; others go on from their own state as far as is wanted.
    """

    kind: str
    max_tokens: int = MAX_DRAFT_TOKENS


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """The number of Medusa heads in their config, and of layers of each."""

    num_heads: int
    num_layers: int


def target_heads(folder: str | None, early_exit: int | None) -> TargetHeads | None:
    """Return the drafter in the target's process for these config keys; None if there is none.

    Args:
        folder: of heads, or `CHECKPOINT`.
        early_exit: layers that draft.

    Raises:
        ValueError: as `heads_kind` and `read_sizes`.
    """
    if folder == CHECKPOINT:
        return TargetHeads("mtp")
    if folder is not None:
        kind = heads_kind(Path(folder))
        if kind == "medusa":
            return TargetHeads(kind, read_sizes(Path(folder)).num_heads)
        return TargetHeads(kind)
    return None if early_exit is None else TargetHeads(EARLY_EXIT)


def heads_kind(folder: Path) -> HeadsKind:
    """Return the kind of a folder's heads.

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
    if kind == "eagle3" or _EAGLE3_NAME in (config.get("architectures") or ()):
        return "eagle3"
    raise ValueError(
        f"heads {str(folder)!r} is of model_type {kind!r}; "
        "only medusa, mtp and eagle3 are served so far"
    )


def num_key_layers(folder: str | None) -> int:
    """Layers of the KV cache that the heads of a folder have, behind those of the target.

    Raises:
        ValueError: as `heads_kind`.
    """
    heads = target_heads(folder, None)
    return int(heads is not None and heads.kind in _WITH_KEYS)


def read_heads_config(folder: Path) -> dict[str, Any]:
    """Read the config of a folder of heads.

    Raises:
        ValueError: it has none, or one that cannot be read.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"heads {str(folder)!r} has no config.json")
    return read_json(path)


def proposed_tokens(name: str, config: dict[str, Any], default: int) -> int:
    """Return the longest draft.

    It is the number proposed by default, else the steps of its training.

    Args:
        name: of the folder, for refusals.
        config: of `speculators`.
        default: where it says neither.

    Raises:
        ValueError: it is out of range.
    """
    methods = (config.get("speculators_config") or {}).get("proposal_methods") or []
    proposed: Any = methods[0].get("speculative_tokens") if methods else None
    key = "num_speculative_steps" if proposed is None else "speculative_tokens"
    value = config.get(key, default) if proposed is None else proposed
    if not isinstance(value, int) or not 1 <= value <= MAX_DRAFT_TOKENS:
        raise ValueError(f"{name}: {key} must be 1 to {MAX_DRAFT_TOKENS}, got {value!r}")
    return value


def read_sizes(folder: Path) -> HeadSizes:
    """Number of Medusa heads, and of residual layers of each.

    Raises:
        ValueError: the folder has no config of Medusa heads, or one that says nothing of a size.
    """
    config = read_heads_config(folder)
    is_old = "medusa_num_heads" in config
    num_heads = config.get("medusa_num_heads") if is_old else config.get("num_heads")
    num_layers = config.get("medusa_num_layers" if is_old else "num_hidden_layers", 1)
    for key, value in (("num_heads", num_heads), ("num_hidden_layers", num_layers)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"heads {str(folder)!r}: {key} must be at least 1, got {value!r}")
    assert isinstance(num_heads, int)
    return HeadSizes(num_heads, num_layers)
