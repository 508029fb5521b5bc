"""`python -m loadtest.draft_memory`: memory of a pair with and without its draft model.

    python -m loadtest.draft_memory --output loadtest/results/draft-memory.json

Sizes are those of the estimate that `python -m deployments.config --check` makes from a config
alone; nothing is loaded. Pairs are that of `configs/demo.yaml`, and published ones by the shapes in
their own `config.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deployments.config.serve_file import read_serve_file
from loadtest.report.machine import ROOT
from loadtest.report.record import head, write_json
from models.checkpoint.memory_estimate import memory_estimate
from models.config import EngineConfig

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128_256,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
}
PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "Llama 3.2 1B": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "tie_word_embeddings": True,
    },
    "Llama 3.1 8B": {
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
    "Llama 3.1 70B": {
        "hidden_size": 8192,
        "intermediate_size": 28_672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "tie_word_embeddings": False,
    },
}
_PAIRS = (
    ("Llama 3.1 8B", "Llama 3.2 1B"),
    ("Llama 3.1 70B", "Llama 3.2 1B"),
    ("Llama 3.1 70B", "Llama 3.1 8B"),
)

Size = dict[str, int]


def size_of(config: EngineConfig) -> Size:
    """Return parameters, bytes of weights and bytes of KV a token."""
    taken = memory_estimate(config)
    return {
        "parameters": taken.num_parameters,
        "weight_bytes": taken.weight_bytes,
        "kv_bytes_per_token": taken.kv_bytes_per_token,
    }


def published_size(shape: Mapping[str, Any], folder: Path) -> Size:
    """Return the size, in bfloat16, of a model of which only the shape is here."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**_LLAMA, **shape}), encoding="utf-8")
    (folder / "model.safetensors").touch()  # the estimate reads none of it
    return size_of(EngineConfig(model_path=str(folder), dtype="bfloat16"))


def pair_of(name: str, target: Size, draft: Size, num_tokens: int) -> dict[str, Any]:
    """Return a pair's sizes, and what they come to for so many tokens of text in all."""
    alone, more = (
        size["weight_bytes"] + num_tokens * size["kv_bytes_per_token"] for size in (target, draft)
    )
    return {
        "pair": name,
        "target": target,
        "draft": draft,
        "without_bytes": alone,
        "with_bytes": alone + more,
    }


def pairs(num_tokens: int) -> list[dict[str, Any]]:
    """Return the shipped pair and the published ones."""
    config = read_serve_file(ROOT / "configs" / "demo.yaml", {}).config
    assert config.draft is not None, "the demo has a draft model"
    target, draft = (
        size_of(model.model_copy(update={"model_path": str(ROOT / model.model_path)}))
        for model in (config.target, config.draft)
    )
    found = [pair_of("demo pair", target, draft, num_tokens)]
    with tempfile.TemporaryDirectory() as folder:
        sizes = {
            name: published_size(shape, Path(folder) / str(number))
            for number, (name, shape) in enumerate(PUBLISHED.items())
        }
    return found + [
        pair_of(f"{one}, {two}", sizes[one], sizes[two], num_tokens) for one, two in _PAIRS
    ]


def main(words: Sequence[str] | None = None) -> int:
    """Compute from the command line; 0."""
    given = list(sys.argv[1:] if words is None else words)
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.draft_memory",
        description="Compute the memory of pairs with and without their draft model.",
    )
    parser.add_argument("--texts", type=int, default=32, help="that run at once")
    parser.add_argument("--tokens", type=int, default=2048, help="of each, prompt included")
    parser.add_argument("--output", type=Path, help="file for the result")
    options = parser.parse_args(given)
    if min(options.texts, options.tokens) < 1:
        parser.error(f"texts and tokens must be at least 1, got {options.texts}, {options.tokens}")
    found = pairs(options.texts * options.tokens)
    content = head("python -m loadtest.draft_memory", given, vars(options)) | {"pairs": found}
    write_json(options.output, content)
    for pair in found:
        alone, together = pair["without_bytes"], pair["with_bytes"]
        print(f"{pair['pair']}: {alone / 1e9:.2f} GB without the draft, {together / 1e9:.2f} with")
    return 0


if __name__ == "__main__":
    sys.exit(main())
