"""A draft model that mostly agrees with the tiny target."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM


@pytest.fixture(scope="session")
def good_draft(tiny_target: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target's own weights but for a little noise: often right, `tiny_draft` hardly ever."""
    folder = tmp_path_factory.mktemp("good")
    model = LlamaForCausalLM.from_pretrained(tiny_target)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.add_((0.1 * weight.float().std() * noise).to(weight.dtype))
    model.save_pretrained(folder)
    return folder
