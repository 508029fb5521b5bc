"""Byte-level tokenizers, trained on a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers


def byte_level(
    lines: Sequence[str], specials: Sequence[str], *, vocab_size: int = 400, cut: Any = None
) -> Tokenizer:
    """Train a byte-level BPE on lines; special tokens have the first ids.

    Args:
        cut: in place of the pre-tokenizer that such tokenizers have.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = cut or pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer
