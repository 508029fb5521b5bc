"""A tiny target, and a draft that says much of what it says."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from tests.cases.tiny_llama import write_tiny_llama


def write_pair(folder: Path, vocab_size: int) -> tuple[Path, Path]:
    target = write_tiny_llama(folder / "target", vocab_size=vocab_size)
    model = AutoModelForCausalLM.from_pretrained(target)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.06)
    model.save_pretrained(folder / "draft")
    return target, folder / "draft"
