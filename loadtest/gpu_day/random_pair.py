"""A random pair of checkpoints of a well-known size, for machines without the real ones.

Layers are random but add next to nothing to the hidden row, because their output projections are
tiny. So the next token is a random function of the last one. The draft's hidden row is the first
part of the target's, so it computes the same function. A chosen share of tokens is then exchanged
in the draft's embedding: after those it guesses wrong. Costs are those of the real sizes; texts
mean nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

_TINY_STD = 1e-6  # for the output projections
_STD = 0.02


@dataclass(frozen=True)
class Shape:
    """Sizes of one Llama."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_key_heads: int
    intermediate_size: int


_LLAMA_1B = Shape(128256, 2048, 16, 32, 8, 8192)
# Target and draft of each name; the draft is the size one would take.
PAIRS = {
    "llama-8b": (Shape(128256, 4096, 32, 32, 8, 14336), _LLAMA_1B),
    "llama-1b": (_LLAMA_1B, Shape(128256, 512, 4, 8, 8, 2048)),
    "349m": (Shape(4096, 1024, 25, 16, 16, 3072), Shape(4096, 256, 8, 4, 4, 2304)),
    "tiny": (Shape(256, 64, 2, 4, 2, 128), Shape(256, 32, 1, 4, 4, 64)),
}


def make_random_pair(
    name: str, output: Path, *, acceptance: float = 0.8, device: str = "cpu"
) -> None:
    """Write `output`/target and `output`/draft, bfloat16, with the sizes PAIRS[name].

    `acceptance` is the share of tokens after which the two agree (greedy).

    Raises:
        ValueError: the name is unknown, or `acceptance` is not within 0 to 1.
    """
    if name not in PAIRS:
        raise ValueError(f"random pair must be one of {', '.join(PAIRS)}, got {name!r}")
    if not 0.0 <= acceptance <= 1.0:
        raise ValueError(f"acceptance must be within 0 to 1, got {acceptance:g}")
    target, draft = PAIRS[name]
    generator = torch.Generator().manual_seed(0)
    width = draft.hidden_size
    embedding = torch.randn(target.vocab_size, width, generator=generator)
    head = torch.randn(target.vocab_size, width, generator=generator) * _STD
    _write(target, output / "target", _widened(embedding, target), _widened(head, target), device)
    _write(
        draft, output / "draft", _exchanged(embedding, 1.0 - acceptance, generator), head, device
    )


def _write(shape: Shape, folder: Path, embedding: Tensor, head: Tensor, device: str) -> None:
    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_key_heads,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=0,
        initializer_range=_STD,
        dtype="bfloat16",
    )
    with torch.device(device):  # the config's dtype from the beginning: half the memory
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.normal_(std=_TINY_STD)
            layer.mlp.down_proj.weight.normal_(std=_TINY_STD)
        model.model.embed_tokens.weight.copy_(embedding)
        model.lm_head.weight.copy_(head)
    model.save_pretrained(folder)


def _widened(rows: Tensor, shape: Shape) -> Tensor:
    """Return the same rows with zeros after them, up to the hidden size."""
    return torch.nn.functional.pad(rows, (0, shape.hidden_size - rows.shape[1]))


def _exchanged(embedding: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Return the rows with those of a random `share` of tokens exchanged among them."""
    count = round(share * len(embedding))
    chosen = torch.randperm(len(embedding), generator=generator)[:count]
    mixed = embedding.clone()
    mixed[chosen] = embedding[chosen.roll(1)]
    return mixed
