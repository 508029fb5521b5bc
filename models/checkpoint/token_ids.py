"""Reads the token ids that a checkpoint's model reads, may draw, and ends a text with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from transformers import GenerationConfig, PreTrainedConfig
from transformers.utils.hub import cached_file

from models.config import EngineConfig
from models.text.vocabulary import DrawableIds, Vocabulary, drawable_ids, read_vocabulary


@dataclass(frozen=True, slots=True)
class TokenIds:
    """The ids of a checkpoint.

    Attributes:
        num_columns: columns of the logits, padding included; ids that may be read.
        drawable: ids that may be drawn.
        eos_ids: ids that end a generation, as the checkpoint's own files name them.
    """

    num_columns: int
    drawable: DrawableIds
    eos_ids: tuple[int, ...]


def read_token_ids(config: EngineConfig, hf_config: PreTrainedConfig) -> TokenIds:
    """Read the ids of the checkpoint that `config` names.

    Raises:
        ValueError: a file of it cannot be read, or has fewer ids than the config.
    """
    num_columns = hf_config.get_text_config().vocab_size
    eos_ids = _eos_ids(config.model_path, hf_config)
    vocabulary = _find_vocabulary(config.model_path)
    drawable = drawable_ids(vocabulary, num_columns, eos_ids, config.vocab_size)
    return TokenIds(num_columns, drawable, eos_ids)


def _find_vocabulary(model_path: str) -> Vocabulary | None:
    """Find the vocabulary of the checkpoint's tokenizer, if it has one."""
    file = Path(model_path) / "tokenizer.json"
    if not Path(model_path).is_dir():
        found = cached_file(
            model_path, "tokenizer.json", _raise_exceptions_for_missing_entries=False
        )
        file = Path(found or file)
    return read_vocabulary(file) if file.is_file() else None


def _eos_ids(model_path: str, hf_config: PreTrainedConfig) -> tuple[int, ...]:
    try:
        ids = GenerationConfig.from_pretrained(model_path).eos_token_id
    except OSError:  # it has no such file
        ids = None
    if ids is None:
        ids = getattr(hf_config.get_text_config(), "eos_token_id", None)
    if ids is None:
        return ()
    return (ids,) if isinstance(ids, int) else tuple(ids)
