"""Reads the token ids that a checkpoint's model reads, may draw, and ends a text with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedConfig

from models.config import EngineConfig
from models.text.tokenizer_files import model_eos_ids
from models.text.vocabulary import DrawableIds, drawable_ids, read_vocabulary


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
    folder = Path(config.model_path)
    eos_ids = model_eos_ids(folder)
    file = folder / "tokenizer.json"
    vocabulary = read_vocabulary(file) if file.is_file() else None
    drawable = drawable_ids(vocabulary, num_columns, eos_ids, config.vocab_size)
    return TokenIds(num_columns, drawable, eos_ids)
