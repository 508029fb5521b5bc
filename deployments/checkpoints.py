"""Whether the checkpoints that a config names can be served as it says, by their small files.

So that a wrong path, or a pair that does not fit together, is reported before minutes of loading.
Knows neither Ray nor torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deployments.config import AppConfig, ModelConfig


def check_models(config: AppConfig) -> None:
    """Check the resolved checkpoints' small files against the config and against each other.

    Raises:
        ValueError: a file is missing, a context is too short, or the draft's token ids do not
            mean what the target's mean.
    """
    _check_model(config.target, "target")
    if config.draft is None:
        return
    _check_model(config.draft, "draft")
    _check_pair(Path(config.target.model_path), Path(config.draft.model_path))


def _check_model(model: ModelConfig, section: str) -> None:
    folder = Path(model.model_path)
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise ValueError(f"{section}.model_path: {folder} has no {name}")
    if not any(folder.glob("*.safetensors")):
        raise ValueError(f"{section}.model_path: {folder} has no *.safetensors weights")
    longest = _text_config(folder).get("max_position_embeddings")
    if isinstance(longest, int) and model.max_model_len > longest:
        raise ValueError(
            f"{section}.max_model_len: {model.max_model_len} is more than the checkpoint's "
            f"max_position_embeddings, {longest}"
        )
    _check_kv_tokens(model, section)


def _check_kv_tokens(model: ModelConfig, section: str) -> None:
    if model.kv_cache_memory is not None or model.gpu_memory_utilization is not None:
        return  # how many tokens that is, is known once the model is loaded
    num_tokens = model.kv_cache_tokens // model.block_size * model.block_size
    if num_tokens < model.max_model_len:
        blocks = "" if num_tokens == model.kv_cache_tokens else f" ({num_tokens} in whole blocks)"
        raise ValueError(
            f"{section}.kv_cache_tokens: {model.kv_cache_tokens}{blocks} is less than "
            f"max_model_len, {model.max_model_len}: one longest session must fit"
        )


def _check_pair(target: Path, draft: Path) -> None:
    sizes = [read_vocab_size(folder) for folder in (target, draft)]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"draft.model_path: vocab_size {sizes[1]} of {draft} differs from {sizes[0]} of the "
            f"target {target}; draft and target must share one vocabulary"
        )
    vocabularies = [_vocabulary(folder / "tokenizer.json") for folder in (target, draft)]
    if vocabularies[0] != vocabularies[1]:
        differing = len(set(vocabularies[0].items()) ^ set(vocabularies[1].items()))
        raise ValueError(
            f"draft.model_path: the tokenizer of {draft} differs from that of the target {target} "
            f"in {differing} entries; a token id must mean the same text in both"
        )


def read_vocab_size(folder: Path) -> int:
    """Columns of the checkpoint's logits, padding included, by its config.json.

    Raises:
        ValueError: the file cannot be read or does not say.
    """
    size = _text_config(folder).get("vocab_size")
    if not isinstance(size, int):
        raise ValueError(f"{folder / 'config.json'} has no vocab_size")
    return size


def _text_config(folder: Path) -> dict[str, Any]:
    content = _read_json(folder / "config.json")
    nested = content.get("text_config")
    return nested if isinstance(nested, dict) else content


def _vocabulary(path: Path) -> dict[str, int]:
    """Token text -> id, added tokens included; both list and dict layouts of `vocab`."""
    tokenizer = _read_json(path)
    vocab = tokenizer.get("model", {}).get("vocab", {})
    if isinstance(vocab, Mapping):
        entries = dict(vocab)
    else:
        entries = {str(item[0]): index for index, item in enumerate(vocab)}
    entries.update({item["content"]: item["id"] for item in tokenizer.get("added_tokens", [])})
    return entries


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    return content
