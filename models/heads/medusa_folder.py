"""Reads a folder of Medusa heads, in either of its two spellings.

    weights       `medusa_lm_head.pt` or any `*.safetensors`
    FasterDecoding  medusa_num_heads, medusa_num_layers; `I.J.linear.weight`, `I.K.weight`
    vLLM            num_heads, num_hidden_layers, original_lm_head, medusa_fc_bias,
                    truncated_vocab_size; `blocks.I.layers.J.weight`, `lm_heads.I.weight`,
                    `token_map`

I is the head, J one of its residual layers, K their number. Where a head has no output layer of its
own, the target's serves all of them. Anything else is refused by name and key.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from models.heads.config import read_sizes
from models.heads.draft_ids import Words
from models.heads.folder import stored_weights


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """The weights of Medusa heads.

    Attributes:
        layers: of each head its residual layers, a weight [F, F] and a bias [F] or None each.
        outputs: of each head the layer that gives its logits, [V, F]; one for all: the same. Of
            ranks that share the target each has the rows of its words.
        token_ids: [V] what the columns of the logits mean, among these words; None: ids themselves.
    """

    layers: list[list[tuple[Tensor, Tensor | None]]]
    outputs: list[Tensor]
    token_ids: Tensor | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of the heads, each counted once.

        They include a copy of the target's output layer if they share it.
        """
        layers = [each for head in self.layers for layer in head for each in layer]
        tensors = {id(each): each for each in [*layers, *self.outputs] if each is not None}
        return sum(each.nbytes for each in tensors.values())


def read_heads(folder: Path, target_head: Tensor, words: Words | None = None) -> HeadWeights:
    """Read the heads of a folder for a target.

    Args:
        folder: of the heads.
        target_head: [V, F] gives the target's logits; of `words` alone where they are not all.
        words: whose logits are made here; None: all.

    Raises:
        ValueError: the folder holds no such heads, or heads for another target; names the key.
    """
    sizes = read_sizes(folder)
    stored = {_modern(key): value for key, value in stored_weights(folder).items()}
    width = target_head.shape[1]
    words = words or Words(0, len(target_head), len(target_head))
    token_ids = _checked_ids(folder, stored.pop("token_map", None), words.total)
    num_columns = words.total if token_ids is None else len(token_ids)
    layers, outputs = [], []

    def taken(key: str, shape: tuple[int, ...]) -> Tensor:
        found = stored.pop(key, None)
        if found is None:
            raise ValueError(f"heads {str(folder)!r} lacks {key}")
        if found.shape != shape:
            raise ValueError(
                f"heads {str(folder)!r}: {key} has shape {list(found.shape)}, "
                f"the target needs {list(shape)}"
            )
        return found.to(target_head.dtype)

    places = words.places(token_ids)
    if "lm_head.weight" in stored:
        shared = words.rows(taken("lm_head.weight", (num_columns, width)), token_ids)
    else:
        shared = target_head if places is None else target_head[places]
    for head in range(sizes.num_heads):
        residuals = []
        for layer in range(sizes.num_layers):
            name = f"blocks.{head}.layers.{layer}"
            bias = taken(f"{name}.bias", (width,)) if f"{name}.bias" in stored else None
            residuals.append((taken(f"{name}.weight", (width, width)), bias))
        layers.append(residuals)
        name = f"lm_heads.{head}.weight"
        is_own = name in stored
        outputs.append(
            words.rows(taken(name, (num_columns, width)), token_ids) if is_own else shared
        )
    if stored:
        raise ValueError(f"heads {str(folder)!r} has {min(stored)}, which is no part of Medusa's")
    return HeadWeights(layers, outputs, places)


def _checked_ids(folder: Path, token_ids: Tensor | None, vocab_size: int) -> Tensor | None:
    """Return the ids that heads draft, after a check.

    Raises:
        ValueError: they are not.
    """
    if token_ids is not None and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < vocab_size:
        raise ValueError(f"heads {str(folder)!r}: token_map has ids beyond {vocab_size - 1}")
    return token_ids


def _modern(key: str) -> str:
    """Return the newer spelling of a key."""
    key = key.removeprefix("medusa_head.")
    if found := re.fullmatch(r"(\d+)\.(\d+)\.linear\.(weight|bias)", key):
        return f"blocks.{found[1]}.layers.{found[2]}.{found[3]}"
    if found := re.fullmatch(r"(\d+)\.\d+\.weight", key):
        return f"lm_heads.{found[1]}.weight"
    return key
