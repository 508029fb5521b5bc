"""What the small files of the configured checkpoints say, before minutes of loading.

A wrong path, a context that is too short or a draft whose token ids mean something else is reported
with the config key that named it. Knows neither Ray nor torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deployments.config.model_paths import resolve_folder, resolve_model
from deployments.config.schema import AppConfig, ModelConfig
from models.checkpoint.stored_weights import missing_shards
from models.text.vocabulary import num_shared_ids, read_vocabulary


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


def file_faults(config: AppConfig) -> list[str]:
    """All that is wrong with the model folders that an unresolved config names; empty: nothing."""
    faults = []
    for section, model in (("target", config.target), ("draft", config.draft)):
        if model is not None:
            faults += _complaints(_check_folder, model, section)
    tokenizer = config.router.tokenizer_path
    if tokenizer not in ("", config.target.model_path):
        faults += _complaints(_check_tokenizer, tokenizer)
    return faults or _complaints(check_models, config.resolved())


def with_shared_vocabulary(config: AppConfig) -> AppConfig:
    """The same tree; the draft draws no token id that the target does not have.

    Raises:
        ValueError: a tokenizer cannot be read, or a token id means different tokens.
    """
    if config.draft is None:
        return config
    num_shared = num_shared_with(Path(config.target.model_path), Path(config.draft.model_path))
    own_limit = config.draft.vocab_size or num_shared
    draft = config.draft.model_copy(update={"vocab_size": min(own_limit, num_shared)})
    return config.model_copy(update={"draft": draft})


def _complaints(check: Callable[..., None], *arguments: Any) -> list[str]:
    try:
        check(*arguments)
    except ValueError as error:
        return [str(error)]
    return []


def _check_folder(model: ModelConfig, section: str) -> None:
    folder = resolve_model(model.model_path, model.dtype, f"{section}.model_path")
    _check_model(model.model_copy(update={"model_path": str(folder)}), section)


def _check_tokenizer(path: str) -> None:
    folder = resolve_folder(path, "router.tokenizer_path")
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(f"router.tokenizer_path: {folder} has no tokenizer.json")


def _check_model(model: ModelConfig, section: str) -> None:
    folder = Path(model.model_path)
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise ValueError(f"{section}.model_path: {folder} has no {name}")
    if not any(folder.glob("*.safetensors")):
        raise ValueError(f"{section}.model_path: {folder} has no *.safetensors weights")
    if absent := missing_shards(folder):
        raise ValueError(
            f"{section}.model_path: {folder} lacks {len(absent)} of the files that its index "
            f"names, first {absent[0]}"
        )
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
    """Check the tokenizers id by id; logits may be padded to different sizes."""
    num_shared_with(target, draft)
    num_ids = read_vocabulary(target / "tokenizer.json").size
    num_columns = read_vocab_size(draft)
    if min(num_ids, read_vocab_size(target)) > num_columns:
        raise ValueError(
            f"draft.model_path: vocab_size {num_columns} of {draft} is less than the {num_ids} "
            f"token ids of the target {target}: the draft could not read its text"
        )


def num_shared_with(target: Path, draft: Path) -> int:
    """Token ids that two checkpoints share, from 0 on.

    Raises:
        ValueError: one of them means different tokens; the message names it.
    """
    vocabularies = [read_vocabulary(folder / "tokenizer.json") for folder in (target, draft)]
    try:
        return num_shared_ids(*vocabularies)
    except ValueError as error:
        raise ValueError(
            f"draft.model_path: {error}: {draft} and {target} must share one vocabulary"
        ) from None


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


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    return content
