"""Medusa heads for a frozen model: what is trained, by what loss, and how they are written.

Head i learns the target's own distribution i + 1 places behind the token that its state gives. The
text is one that the target wrote. Only the residual layers train; the output layer is the target's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from models.distill.student import Step
from models.distill.teacher import Lesson, Teacher


class ResidualHeads(nn.Module):
    """Heads of one residual layer each, which begin as nothing: the state itself.

    Args:
        num_heads: of them.
        width: of the target's states.
    """

    def __init__(self, num_heads: int, width: int) -> None:
        super().__init__()
        layers = [nn.Linear(width, width) for _ in range(num_heads)]
        for layer in layers:
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.layers = nn.ModuleList(layers)
        self.width = width

    def forward(self, states: Tensor) -> Iterator[Tensor]:
        """Yield for each head the states that give its logits, of the same shape."""
        for layer in self.layers:
            yield states + F.silu(layer(states))


class MedusaStudent:
    """Medusa heads that train.

    Args:
        teacher: their target.
        num_heads: the longest draft.
    """

    decay = 1.0

    def __init__(self, teacher: Teacher, num_heads: int) -> None:
        config: Any = teacher.model.config
        self._teacher = teacher
        self.module = ResidualHeads(num_heads, config.hidden_size)

    def steps(self, lesson: Lesson) -> Iterator[Step]:
        """See `Student`: head i guesses at the token i + 1 places behind its state's own."""
        for place, states in enumerate(self.module(lesson.states), start=1):
            shifted = F.pad(states, (0, 0, place, 0))[:, :-place]
            yield Step(place, shifted, self._teacher.output)

    def save(self, folder: Path) -> None:
        """See `Student`."""
        save_heads(self.module, self._teacher.draft_ids, folder)


def save_heads(heads: ResidualHeads, draft_ids: Tensor | None, folder: Path) -> None:
    """Write them in bfloat16, in vLLM's spelling of a Medusa folder."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        f"blocks.{index}.layers.0.{kind}": value.bfloat16().contiguous()
        for index, layer in enumerate(heads.layers)
        for kind, value in layer.state_dict().items()
    }
    if draft_ids is not None:
        weights["token_map"] = draft_ids
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": heads.width,
        "num_heads": len(heads.layers),
        "num_hidden_layers": 1,
        "medusa_fc_bias": True,
        "original_lm_head": True,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
