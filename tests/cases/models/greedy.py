"""The reference of texts: `generate` of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def greedy_text(model: Any, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """Return the ids that a model of transformers adds to a prompt, on its own device."""
    ids = torch.tensor([list(prompt)], device=model.device)
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=num_tokens,
        do_sample=False,
        pad_token_id=0,
    )
    return output[0, len(prompt) :].tolist()
