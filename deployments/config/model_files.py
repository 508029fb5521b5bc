"""Finds the configured models and checks their small files, before minutes of loading.

Only small files are fetched from the hub here. Errors name the config key of the path. They are a
wrong path, a context that is too short, or a draft whose token ids mean something else. Knows
neither Ray nor torch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from deployments.config.fault import Fault
from deployments.config.model_paths import folder_of, resolve_folder
from deployments.config.schema import AppConfig
from deployments.config.sections.models import TARGET, ModelConfig, Models, section_of_draft
from models.checkpoint.adapters import check_adapters
from models.checkpoint.small_files import (
    check_small_files,
    longest_text,
    num_layers_of,
    read_vocab_size,
)
from models.checkpoint.stored_weights import check_weights
from models.fetch.hub import Download, missing_of
from models.heads.config import CHECKPOINT, target_heads
from models.text.tokenizer import Tokenizer
from models.text.vocabulary import num_shared_ids, read_vocabulary
from router.drafters.heads import names_heads
from router.rounds import HEADS

_TOKENIZER_KEY = "router.tokenizer_path"
Tree = TypeVar("Tree", bound=Models)


def resolved(config: Tree) -> Tree:
    """Return the tree with absolute paths.

    Values that follow from the target are filled in.

    Raises:
        Fault: a model folder does not exist.
    """
    models = {
        section: model.model_copy(
            update={
                "model_path": str(folder_of(model, section)),
                "heads": _heads_of(model, section),
                "lora_modules": _adapters_of(model, section),
            }
        )
        for section, model in config.models.items()
    }
    found = config.with_models(models)
    if not isinstance(config, AppConfig):
        return found
    target, tokenizer = found.target, config.router.tokenizer_path
    if tokenizer in ("", config.target.model_path):
        tokenizer = target.model_path
    else:
        tokenizer = str(resolve_folder(tokenizer, _TOKENIZER_KEY))
    window = min(config.router.max_model_len or target.max_model_len, target.max_model_len)
    router = config.router.model_copy(update={"tokenizer_path": tokenizer, "max_model_len": window})
    return found.model_copy(update={"router": router})


def fitted(config: Tree) -> Tree:
    """Limit each open `max_model_len` to the checkpoint's own.

    Raises:
        Fault: a model folder does not exist.
        ValueError: its config.json cannot be read.
    """
    models = {}
    for section, model in config.models.items():
        if "max_model_len" not in model.model_fields_set:
            longest = longest_text(folder_of(model, section))
            if longest is not None:
                window = min(longest, model.max_model_len)
                models[section] = model.model_copy(update={"max_model_len": window})
    return config.with_models(models)


def _heads_of(model: ModelConfig, section: str) -> str | None:
    if model.heads is None or model.heads == CHECKPOINT:
        return model.heads
    return str(resolve_folder(model.heads, f"{section}.heads"))


def _adapters_of(model: ModelConfig, section: str) -> dict[str, str]:
    modules, key = model.lora_modules.items(), f"{section}.lora_modules"
    return {name: str(resolve_folder(path, f"{key}.{name}")) for name, path in modules}


# --- what they say --------------------------------------------------------------------------------


def file_faults(config: Models) -> list[Fault]:
    """Return all faults of the model folders that an unresolved config names."""
    faults = []
    for section, model in config.models.items():
        faults += _faults_of(_check_folder, model, section, section in config.models_here)
    if isinstance(config, AppConfig):
        faults = faults or _faults_of(_check_method, config)
        tokenizer = config.router.tokenizer_path
        if tokenizer not in ("", config.target.model_path):
            faults += _faults_of(_check_tokenizer, tokenizer)
    return faults or _faults_of(check_models, resolved(config))


def check_models(config: Models) -> None:
    """Check the resolved checkpoints' small files against the config and against each other.

    Raises:
        Fault: a file is missing, a context is too short, or the draft's token ids do not mean what
            the target's mean.
    """
    for section, model in config.models.items():
        _check_model(model, section, section in config.models_here)
    if isinstance(config, AppConfig):
        _check_method(config)
    for pool, draft in config.draft_models.items():
        key = f"{section_of_draft(pool)}.model_path"
        check_pair(Path(config.target.model_path), Path(draft.model_path), key)


def with_shared_vocabulary(config: Tree) -> Tree:
    """Limit draft models to token ids that the target has.

    Raises:
        ValueError: a tokenizer cannot be read, or a token id means different tokens.
    """
    models = {}
    for pool, draft in config.draft_models.items():
        section = section_of_draft(pool)
        num_shared = num_shared_with(
            Path(config.target.model_path), Path(draft.model_path), f"{section}.model_path"
        )
        own_limit = draft.vocab_size or num_shared
        models[section] = draft.model_copy(update={"vocab_size": min(own_limit, num_shared)})
    return config.with_models(models)


def vocabulary_of_router(config: AppConfig) -> str:
    """Return the digest of the token ids that a resolved config's target must have; "": any.

    Raises:
        ValueError: the tokenizer cannot be read.
    """
    if config.router.tokenizer_path != config.target.model_path:
        return ""  # somebody knows why
    return read_vocabulary(Path(config.target.model_path) / "tokenizer.json").digest


def num_shared_with(target: Path, draft: Path, key: str = "draft.model_path") -> int:
    """Token ids that two checkpoints share, from 0 on.

    Raises:
        ValueError: a tokenizer cannot be read, or one of the ids means different tokens; the
            message names it.
    """
    vocabularies = [read_vocabulary(folder / "tokenizer.json") for folder in (target, draft)]
    try:
        return num_shared_ids(*vocabularies)
    except ValueError as error:
        raise Fault(key, f"{error}: {draft} and {target} must share one vocabulary") from None


def _faults_of(check: Callable[..., None], *arguments: Any) -> list[Fault]:
    try:
        check(*arguments)
    except Fault as fault:
        return [fault]
    except ValueError as error:  # the file is not what its name says; the error names it
        return [Fault("", str(error))]
    return []


def _check_folder(model: ModelConfig, section: str, is_here: bool) -> None:
    folder = folder_of(model, section)
    where = {"model_path": str(folder), "lora_modules": _adapters_of(model, section)}
    found = model.model_copy(update=where)
    _check_model(found, section, is_here)
    check_adapters(found, f"{section}.lora_modules")
    _check_heads(model, section)
    _check_early_exit(model, folder, section)


def _check_heads(model: ModelConfig, section: str) -> None:
    try:
        target_heads(_heads_of(model, section), model.early_exit)
    except ValueError as error:
        raise error if isinstance(error, Fault) else Fault(f"{section}.heads", str(error)) from None


def _check_method(config: AppConfig) -> None:
    """Hold a method that names heads to the heads that there are."""
    speculation, key = config.router.speculation, "router.speculation"
    if not names_heads(speculation.method):
        return
    heads = target_heads(_heads_of(config.target, "target"), config.target.early_exit)
    if heads is None or speculation.method not in (heads.kind, HEADS.name):
        found = "none" if heads is None else heads.kind
        raise Fault(f"{key}.method", f"is {speculation.method}, the target's heads are {found}")
    if (speculation.fixed_length or 0) > heads.max_tokens:
        raise Fault(
            f"{key}.num_speculative_tokens",
            f"at most {heads.max_tokens} with method {heads.kind}: there are so many heads "
            f"(got {speculation.fixed_length})",
        )


def _check_early_exit(model: ModelConfig, folder: Path, section: str) -> None:
    num_layers = num_layers_of(folder)
    if model.early_exit and num_layers is not None and model.early_exit >= num_layers:
        raise Fault(
            f"{section}.early_exit",
            f"must be below the {num_layers} layers of the model, got {model.early_exit}",
        )


def _check_tokenizer(path: str) -> None:
    folder = resolve_folder(path, _TOKENIZER_KEY)
    try:
        Tokenizer.load(folder)
    except ValueError as error:
        raise Fault(_TOKENIZER_KEY, str(error)) from None


def _check_model(model: ModelConfig, section: str, is_here: bool) -> None:
    folder = Path(model.model_path)
    check_files(folder, f"{section}.model_path", has_grammars=section == TARGET)
    if not is_here:
        return
    longest = longest_text(folder)
    if longest is not None and model.max_model_len > longest:
        raise Fault(
            f"{section}.max_model_len",
            f"{model.max_model_len} is more than the checkpoint's max_position_embeddings, "
            f"{longest}",
        )
    _check_kv_tokens(model, section)


def check_files(folder: Path, key: str, *, has_grammars: bool) -> None:
    """Check that a checkpoint is whole, or that it can be fetched.

    The check reads its small files and the headers of the others.

    Args:
        folder: of the checkpoint.
        key: the config key that named it.
        has_grammars: see `check_small_files`.

    Raises:
        Fault: a file is missing or cannot be used; names it and the reason.
    """
    try:
        check_small_files(folder, has_grammars=has_grammars)
        if to_come(folder, key) is None:
            check_weights(folder)
    except ValueError as error:
        raise error if isinstance(error, Fault) else Fault(key, str(error)) from None


def to_come(folder: Path, key: str) -> Download | None:
    """Return the weights of a checkpoint that must still be fetched from the hub; None if none.

    Raises:
        Fault: the hub cannot be asked, or has none.
    """
    try:
        return missing_of(folder)
    except ValueError as error:
        raise Fault(key, str(error)) from None


def _check_kv_tokens(model: ModelConfig, section: str) -> None:
    if model.kv_cache_memory is not None or model.gpu_memory_utilization is not None:
        return  # how many tokens that is, is known once the model is loaded
    num_tokens = model.num_blocks * model.block_tokens
    if num_tokens < model.max_model_len:
        blocks = "" if num_tokens == model.kv_cache_tokens else f" ({num_tokens} in whole blocks)"
        raise Fault(
            f"{section}.kv_cache_tokens",
            f"{model.kv_cache_tokens}{blocks} is less than max_model_len, {model.max_model_len}: "
            "one longest session must fit",
        )


def check_pair(target: Path, draft: Path, key: str) -> None:
    """Check the tokenizers id by id; logits may be padded to different sizes.

    Raises:
        Fault: ids do not mean the same, or the draft has too few.
        ValueError: a file cannot be read.
    """
    num_shared_with(target, draft, key)
    num_ids = read_vocabulary(target / "tokenizer.json").size
    num_columns = read_vocab_size(draft)
    if min(num_ids, read_vocab_size(target)) > num_columns:
        raise Fault(
            key,
            f"vocab_size {num_columns} of {draft} is less than the {num_ids} token ids of "
            f"{target}: the draft could not read the target's text",
        )
