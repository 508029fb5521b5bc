"""Checkpoint folders with the small files alone: config, tokenizer, no weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file


def write_model(
    folder: Path,
    *,
    vocab_size: int = 8,
    num_tokens: int = 8,
    max_len: int = 4096,
    special: str = "<e>",
    swapped: tuple[int, int] = (0, 0),
) -> str:
    """Tokens t0, t1, ..., of which two may be swapped and the first one is special."""
    folder.mkdir()
    ids = list(range(num_tokens))
    first, second = swapped
    ids[first], ids[second] = second, first
    vocab = {f"t{token_id}": place for place, token_id in enumerate(ids) if place}
    config = {"vocab_size": vocab_size, "max_position_embeddings": max_len, "eos_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config))
    content = {
        "version": "1.0",
        "added_tokens": [{"content": special, "id": 0, "special": True} | _PLAIN],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "model": {"type": "BPE", "vocab": {special: 0} | vocab, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    save_file({"weight": np.zeros(1, np.float32)}, folder / "model.safetensors")
    return str(folder)


_PLAIN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def tree(tmp_path: Path, **target: Any) -> dict[str, Any]:
    path = write_model(tmp_path / "target")
    return {"target": {"model_path": path, **target}}
