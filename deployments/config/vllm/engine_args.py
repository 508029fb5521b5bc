"""Translates vLLM's words to the config tree, for `LLM` and `python -m deployments.config`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deployments.config.keys import put
from deployments.config.model_paths import resolve_model
from deployments.config.sections.models import ModelConfig
from deployments.config.vllm.speculative import translated_speculation
from deployments.config.vllm.words import WORDS, Word, asks_for_nothing, refusal
from models.checkpoint.small_files import longest_text, stored_dtype

_MEMORY = ("gpu_memory_utilization", "kv_cache_memory_bytes")
_QUANTIZATIONS = ("int8", "fp8", "q8", "q4")
_DEFAULT_DTYPE: str = ModelConfig.model_fields["dtype"].default


def engine_tree(words: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `args` that vLLM's words mean, with `target`, `draft` and `router`.

    Keys of a model that are this service's own (`num_threads`, `kv_cache_tokens`, ...) may stand
    beside them. They are for target and draft alike.

    Raises:
        ValueError: a word is unknown, or means nothing here; names it, its value and what to use.
    """
    tree: dict[str, Any] = {"target": {}, "draft": None, "router": {}}
    shared: dict[str, Any] = {}
    first = [key for key in ("model", "revision") if key in words]  # others refer to them
    for key in dict.fromkeys([*first, *words]):
        value = words[key]
        if key in WORDS:
            _take(tree, shared, key, value)
        elif key in ModelConfig.model_fields:
            tree["target"][key] = shared[key] = value
        else:
            raise ValueError(f"unknown key {key!r}")
    if (given := words.get("speculative_config")) is not None:
        _speculate(tree, shared, given)
        _check_memory(words, tree["draft"])
    return tree


def given_words(
    words: Mapping[str, Any], others: Mapping[str, Word]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split words: return the tree of those in another table, and the other words.

    Raises:
        ValueError: as `engine_tree`.
    """
    tree: dict[str, Any] = {}
    left = {key: value for key, value in words.items() if key not in others}
    for key, word in others.items():
        value = words.get(key)
        if asks_for_nothing(word, value):
            continue
        if not word.place:
            raise refusal(key, value, word.instead)
        put(tree, word.place.split("."), value)
    return tree, left


def _take(tree: dict[str, Any], shared: dict[str, Any], key: str, value: Any) -> None:
    word = WORDS[key]
    if key == "speculative_config" or value is None:
        return
    if not word.place:
        if not asks_for_nothing(word, value):
            raise refusal(key, value, word.instead)
        return
    value = _value(tree, key, word, value)
    put(tree, word.place.split("."), value)
    if word.is_shared:
        shared[word.place.rpartition(".")[2]] = value


def _value(tree: dict[str, Any], key: str, word: Word, value: Any) -> Any:
    """vLLM's value as it is written here."""
    if key in ("model", "tokenizer"):
        return os.fspath(value) if isinstance(value, Path) else value
    if key == "dtype" and value == "auto":
        return _auto_dtype(tree["target"])
    if key == "device" and value == "auto":
        raise refusal(key, value, word.instead)
    if key == "quantization" and value not in _QUANTIZATIONS:
        raise refusal(
            key, value, f"must be {' or '.join(_QUANTIZATIONS)}; stored weights need no word"
        )
    if key == "served_model_name" and isinstance(value, list):
        if len(value) != 1:
            raise refusal(key, value, "a model has one name here")
        return value[0]
    if word.values and isinstance(value, bool | str):
        return word.values.get(value, value)
    return value


def _auto_dtype(target: Mapping[str, Any]) -> str:
    """vLLM's rule: what the checkpoint is stored in, and 16 bits where that is float32."""
    path = target.get("model_path")
    if path is None:
        return _DEFAULT_DTYPE
    folder = _folder(target, path, "target.model_path")
    found = stored_dtype(folder)
    return found if found in ("bfloat16", "float16") else _DEFAULT_DTYPE


def _speculate(tree: dict[str, Any], shared: Mapping[str, Any], given: object) -> None:
    target = tree["target"]
    found = translated_speculation(
        given,
        target=str(target.get("model_path", "")),
        tensor_parallel_size=target.get("tensor_parallel_size", 1),
    )
    tree["router"]["speculation"] = found.limits
    if found.heads is not None:
        if "heads" in target:
            raise ValueError("heads and speculative_config both name heads: give one of them")
        target["heads"] = found.heads
    if found.draft is not None:
        own = {key: value for key, value in shared.items() if key not in ("heads", "early_exit")}
        draft = own | found.draft
        if "max_model_len" not in draft and "max_model_len" in target:
            draft["max_model_len"] = _window(draft, target["max_model_len"])
        tree["draft"] = draft


def _window(draft: Mapping[str, Any], window: Any) -> Any:
    """Return the target's window, limited to the draft model's own."""
    folder = _folder(draft, draft["model_path"], "speculative_config.model")
    longest = longest_text(folder)
    return window if longest is None or not isinstance(window, int) else min(window, longest)


def _folder(model: Mapping[str, Any], path: str, key: str) -> Path:
    """Return the folder of a model; of a GGUF file the form that will be served, most likely."""
    is_on_cpu = str(model.get("device", "cpu")).startswith("cpu")
    dtype = str(model.get("dtype", _DEFAULT_DTYPE))
    return resolve_model(path, dtype, key, model.get("revision"), takes_groups=is_on_cpu)


def _check_memory(words: Mapping[str, Any], draft: Mapping[str, Any] | None) -> None:
    """vLLM divides one share among target and draft, which are two processes with one each here."""
    for key in _MEMORY:
        if draft is not None and words.get(key) is not None:
            raise refusal(
                key,
                words[key],
                "with a draft model each of both has its own here: leave it out and give "
                "kv_cache_tokens, or target.kv_cache_memory and draft.kv_cache_memory",
            )
